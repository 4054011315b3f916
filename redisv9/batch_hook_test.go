package redisv9_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker/internal/inflight"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// onlookers is a hook that lets other goroutines look at commands at any time, as a hook that logs
// them may do. Only one in three pipelines passes it.
type onlookers struct {
	n   atomic.Int32
	all sync.WaitGroup
}

func (*onlookers) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*onlookers) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (h *onlookers) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() == "client" {
			return next(ctx, cmds)
		}
		for range 2 {
			h.all.Go(func() {
				for _, cmd := range cmds {
					_ = cmd.Args()
				}
			})
		}
		err := []error{nil, errJam, redis.Nil}[h.n.Add(1)%3] // the last looks like a reply
		if err == nil {
			return next(ctx, cmds)
		}
		for _, cmd := range cmds {
			cmd.SetErr(err)
		}
		return err
	}
}

// A call ends even if goroutines of a hook still look at its command.
func TestBatchWithOnlookers(t *testing.T) {
	client := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
	h := new(onlookers)
	client.AddHook(h)
	l := redisv9.New(client, redisv9.WithBatching(4))
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			for range 30 {
				for _, f := range []call{acquireCall(l, fmt.Sprint(i), "t"), releaseCall(l, fmt.Sprint(i), "t")} {
					_, err := f(ctx)
					assert.NotErrorIs(t, err, context.DeadlineExceeded)
				}
			}
		})
	}
	all.Wait()
	h.all.Wait()
	isIdle(t, l)
}

// If a hook ends the goroutine of a batch, its slot is free again and its callers get an error.
func TestBatchGoexit(t *testing.T) {
	l, h := newBatching(t, 1, &redis.Options{Addr: testserver.Redis(t).Addr})
	h.before = runtime.Goexit
	for range 2 {
		free := h.jam(t, l, 1)
		all := queues(t, t.Context(), l, acquireCall(l, "a", "t"), acquireCall(l, "b", "t"))
		free()
		for _, done := range all {
			require.ErrorIs(t, result(t, done).err, inflight.ErrGoexit)
		}
	}
	isIdle(t, l)
	acquires(t, l, "a", "t", time.Minute)
}
