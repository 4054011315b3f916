package redisv9

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker/internal/inflight"
	"github.com/golockers/locker/internal/redislock"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// atOnce calls f and g n times, each time at the same moment.
func atOnce(n int, f, g func(i int)) {
	var arrived atomic.Int64
	var all sync.WaitGroup
	for _, h := range []func(i int){f, g} {
		all.Go(func() {
			for i := range n {
				arrived.Add(1)
				for spins := 1; arrived.Load() < 2*int64(i+1); spins++ {
					if spins%1000 == 0 {
						runtime.Gosched()
					}
				}
				h(i)
			}
		})
	}
	all.Wait()
}

func isReady(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// If a caller leaves a call at the moment when something happens to it, the two agree on its outcome.
func TestStatesOfACall(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "localhost:0"})
	t.Cleanup(func() { _ = client.Close() })
	l := New(client, WithBatching(1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	const isLeft int32 = left // variables hide that name below
	const n = 5_000           // luck decides which of the two is first
	leaving := func(state int32, event func(c *batched) bool) (calls []*batched, left, happened []bool) {
		calls, left, happened = make([]*batched, n), make([]bool, n), make([]bool, n)
		for i := range calls {
			s := redislock.NewSending(ctx, "t")
			calls[i] = newBatched(l.batches, s, redis.NewCmd(ctx, "set", "k", s))
			calls[i].state.Store(state)
		}
		atOnce(n, func(i int) { left[i] = calls[i].leave() }, func(i int) { happened[i] = event(calls[i]) })
		return calls, left, happened
	}
	finish := func(c *batched) bool {
		c.finish(inflight.ErrGoexit, false)
		return true
	}

	_, left, isAlone := leaving(waiting, (*batched).goAlone)
	for i := range n {
		require.NotEqual(t, left[i], isAlone[i], "either it has a slot or its caller has left")
	}
	calls, left, isSent := leaving(waiting, func(c *batched) bool { return c.Args()[0] == "set" })
	for i, c := range calls {
		require.True(t, left[i])
		require.Equal(t, isSent[i], c.state.Load() == isLeft, "either it was sent or it was withdrawn")
		finish(c)
	}
	for _, state := range []int32{waiting, underWay} {
		calls, left, _ := leaving(state, finish)
		for i, c := range calls {
			if left[i] && c.gone == nil {
				require.EqualValues(t, withdrawn, c.state.Load(), "its caller has withdrawn it")
				continue
			}
			require.EqualValues(t, over, c.state.Load())
			require.Equal(t, inflight.ErrGoexit, c.err)
			if left[i] {
				require.True(t, isReady(c.gone), "it is over")
			} else {
				require.True(t, isReady(c.wake), "its caller is told")
			}
		}
	}
	short, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := l.Release(short, "k", "t")
	assert.NotErrorIs(t, err, context.DeadlineExceeded, "it waits for a call that is over")
}
