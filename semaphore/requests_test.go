package semaphore_test

import (
	"context"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/redisv9"
	"github.com/golockers/locker/semaphore"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// requests counts the commands of a client.
type requests struct{ n atomic.Int64 }

func (r *requests) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (r *requests) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		r.n.Add(1)
		return next(ctx, cmd)
	}
}

func (r *requests) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// newRedis returns a Locker and its requests.
func newRedis(tb testing.TB, addr string) (*redisv9.Locker, *requests) {
	tb.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr})
	tb.Cleanup(func() { _ = client.Close() })
	r := &requests{}
	l := redisv9.New(client)
	require.NoError(tb, locker.Do(tb.Context(), l, "warm", time.Minute, func(ctx context.Context) error {
		return locker.FromContext(ctx).Extend(ctx, time.Minute)
	}))
	client.AddHook(r)
	return l, r
}

// Operations take as many requests as the documentation states, with one queue for all permits and
// with the queue of an additional lock.
func TestRequests(t *testing.T) {
	t.Parallel()
	l, r := newRedis(t, testserver.Redis(t).Addr)
	for _, test := range []struct {
		name             string
		l                locker.Locker
		acquire, refused int64
	}{
		{"all permits", l, 1, 1},
		{"a lock", lockQueues{l}, 3, 3},
	} {
		s := semaphore.New(test.l, test.name, 3)
		count := func(n int64, fn func()) {
			t.Helper()
			before := r.n.Load()
			fn()
			assert.Equal(t, n, r.n.Load()-before, test.name)
		}
		var lease *locker.Lease
		var err error
		for range 2 { // the second time, scripts are loaded
			lease, err = s.Acquire(t.Context(), time.Minute)
			require.NoError(t, err)
			require.NoError(t, lease.Extend(t.Context(), time.Minute))
			_, err = lease.Fence(t.Context())
			require.NoError(t, err)
			require.NoError(t, lease.Unlock(t.Context()))
		}
		count(test.acquire, func() { lease, err = s.Acquire(t.Context(), time.Minute) })
		require.NoError(t, err)
		count(1, func() { require.NoError(t, lease.Unlock(t.Context())) })
		count(1, func() { lease, err = s.TryAcquire(t.Context(), time.Minute) })
		require.NoError(t, err)
		count(1, func() { require.NoError(t, lease.Extend(t.Context(), time.Minute)) })
		count(1, func() {
			_, err := lease.Fence(t.Context())
			require.NoError(t, err)
		})
		for range 2 {
			_, err = s.Acquire(t.Context(), time.Minute)
			require.NoError(t, err)
		}
		count(test.refused, func() {
			_, err = s.TryAcquire(t.Context(), time.Minute)
			require.ErrorIs(t, err, locker.ErrHeld)
		})
	}
}

// contend lets callers of some processes hold a permit often, and returns how long a turn took.
func contend(tb testing.TB, processes []locker.Locker, callers, turns, n int) time.Duration {
	tb.Helper()
	var all sync.WaitGroup
	var holders atomic.Int64
	begun := time.Now()
	for _, l := range processes {
		s := semaphore.New(l, "imports", n)
		for range callers {
			all.Go(func() {
				for range turns {
					err := s.Do(tb.Context(), time.Minute, func(context.Context) error {
						assert.LessOrEqual(tb, holders.Add(1), int64(n))
						time.Sleep(100 * time.Microsecond)
						holders.Add(-1)
						return nil
					})
					assert.NoError(tb, err)
				}
			})
		}
		tb.Cleanup(func() {
			rooms, tokens := s.Size()
			assert.Zero(tb, rooms)
			assert.Zero(tb, tokens)
		})
	}
	all.Wait()
	return time.Since(begun) / time.Duration(len(processes)*callers*turns)
}

// Under contention a turn takes few requests, and nothing is left in memory.
func TestContention(t *testing.T) {
	t.Parallel()
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		m := memory.New()
		contend(t, []locker.Locker{m, m, m}, 8, 20, 3)
	})
	for name, most := range map[string]float64{"all permits": 2.8, "a lock": 12} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const callers, turns = 8, 10
			lockers, counts := fleet(t, testserver.Redis(t).Addr, name == "a lock")
			each := contend(t, lockers, callers, turns, 3)
			perTurn := float64(total(counts)) / float64(len(lockers)*callers*turns)
			t.Logf("%.1f requests and %v a turn", perTurn, each)
			assert.Less(t, perTurn, most)
		})
	}
}

// fleet returns the Lockers of four processes, and their requests.
func fleet(tb testing.TB, addr string, usesLockQueues bool) (lockers []locker.Locker, counts []*requests) {
	tb.Helper()
	for range 4 {
		l, r := newRedis(tb, addr)
		counts = append(counts, r)
		if usesLockQueues {
			lockers = append(lockers, lockQueues{l})
		} else {
			lockers = append(lockers, l)
		}
	}
	return lockers, counts
}

func total(counts []*requests) (n int64) {
	for _, r := range counts {
		n += r.n.Load()
	}
	return n
}

// BenchmarkContended measures what a turn costs while callers of four processes always wait, with
// one queue for all permits and with the queue of an additional lock.
func BenchmarkContended(b *testing.B) {
	addr := testserver.Redis(b).Addr
	for _, queue := range []string{"all permits", "a lock"} {
		for _, n := range []int{1, 3, 10} {
			b.Run(queue+"/"+strconv.Itoa(n), func(b *testing.B) {
				const callers, turns = 8, 10
				lockers, counts := fleet(b, addr, queue == "a lock")
				all := 0.0
				for b.Loop() {
					contend(b, lockers, callers, turns, n)
					all += float64(len(lockers) * callers * turns)
				}
				b.ReportMetric(float64(total(counts))/all, "requests/turn")
				b.ReportMetric(float64(b.Elapsed().Microseconds())/all, "µs/turn")
			})
		}
	}
}
