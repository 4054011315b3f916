package cohort_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/golockers/locker/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestUncontended(t *testing.T) {
	overQueue(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, c *counting) {
		l := cohort.New(inner)
		for name, lock := range map[string]func(context.Context, locker.Locker, string, time.Duration,
			...locker.Option) (*locker.Lease, error){"lock": locker.Lock, "try lock": locker.TryLock} {
			c.requests.Store(0)
			lease, err := lock(t.Context(), l, "k", time.Minute)
			require.NoError(t, err, name)
			require.NoError(t, lease.Unlock(t.Context()), name)
			assert.EqualValues(t, 2, c.requests.Load(), name)

			lease, err = lock(t.Context(), l, "k", time.Second) // and vanishes
			require.NoError(t, err, name)
			start := time.Now()
			after, err := locker.Lock(t.Context(), m, "k", time.Second)
			require.NoError(t, err, name)
			assert.Equal(t, time.Second, time.Since(start), "not its exact ttl")
			assert.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld, name)
			require.NoError(t, after.Unlock(t.Context()))
		}
		time.Sleep(2 * time.Minute)
		assert.Zero(t, cohort.Entries(l))
	})
}

func TestServesInOrder(t *testing.T) {
	eachBackend(t, func(t *testing.T, inner locker.Locker, _ *counting) {
		l := cohort.New(inner)
		first := mustLock(t, l, time.Minute)
		queue := join(t.Context(), l, 10, time.Minute)
		require.NoError(t, first.Unlock(t.Context()))
		for range 10 {
			lease := queue.next(t)
			assert.LessOrEqual(t, time.Until(lease.Deadline()), time.Minute)
			queue.requireWaiting(t, "two at once, or out of order")
			_, err := locker.TryLock(t.Context(), inner, "k", time.Minute)
			assert.ErrorIs(t, err, locker.ErrHeld)
			require.NoError(t, lease.Unlock(t.Context()))
		}
		_, err := locker.TryLock(t.Context(), inner, "k", time.Minute)
		assert.NoError(t, err, "not free in the end")
		assert.Zero(t, cohort.Entries(l))
	})
}

func TestHandsOnWithoutRequests(t *testing.T) {
	eachBackend(t, func(t *testing.T, inner locker.Locker, c *counting) {
		l := cohort.New(inner)
		first := mustLock(t, l, time.Minute)
		queue := join(t.Context(), l, 52, time.Minute)
		require.NoError(t, first.Unlock(t.Context()))
		tenure := tenure{queue.next(t), queue}
		c.requests.Store(0)
		for range 51 {
			tenure.passToNext(t)
		}
		assert.Zero(t, c.requests.Load())
		tenure.unlock(t)
		assert.EqualValues(t, 1, c.requests.Load())
	})
}

func TestTryLockBehindWaiters(t *testing.T) {
	overQueue(t, func(t *testing.T, _ *memory.Locker, inner locker.Locker, c *counting) {
		l := cohort.New(inner)
		first := mustLock(t, l, time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		queue := join(ctx, l, 3, time.Minute)
		c.requests.Store(0)
		_, err := locker.TryLock(t.Context(), l, "k", time.Minute)
		assert.ErrorIs(t, err, locker.ErrHeld)
		assert.Zero(t, c.requests.Load())

		again, err := l.Acquire(t.Context(), "k", first.Token(), time.Minute)
		assert.NoError(t, err)
		assert.True(t, again, "the holder itself is not another")

		cancel()
		queue.requireGone(t)
		synctest.Wait()
		require.NoError(t, first.Unlock(t.Context()))
		lease, err := locker.TryLock(t.Context(), l, "k", time.Minute)
		require.NoError(t, err, "the waiters have left something")
		require.NoError(t, lease.Unlock(t.Context()))
		assert.Zero(t, cohort.Entries(l))
	})
}

func TestCohortTokensAreLocal(t *testing.T) {
	overQueue(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, _ *counting) {
		l := cohort.New(inner)
		tenure := startTenure(t, l, 1, time.Minute)
		stale := tenure.holder
		ctx := t.Context()
		for name, elsewhere := range map[string]locker.Locker{"backend": m, "another": cohort.New(inner)} {
			extended, err := elsewhere.Extend(ctx, "k", stale.Token(), time.Hour)
			require.NoError(t, err, name)
			assert.False(t, extended, name)
			released, err := elsewhere.Release(ctx, "k", stale.Token())
			require.NoError(t, err, name)
			assert.False(t, released, name)
		}
		again, err := l.Acquire(ctx, "k", stale.Token(), time.Minute)
		require.NoError(t, err)
		assert.True(t, again)
		n, err := stale.Fence(ctx)
		require.NoError(t, err)
		tenure.passToNext(t)
		released, err := l.Release(ctx, "k", stale.Token())
		require.NoError(t, err)
		assert.False(t, released, "a stale holder released its successor's lock")
		extended, err := l.Extend(ctx, "k", stale.Token(), time.Hour)
		require.NoError(t, err)
		assert.False(t, extended)
		_, ok, err := l.Fence(ctx, "k", stale.Token())
		require.NoError(t, err)
		assert.False(t, ok)

		larger, err := tenure.holder.Fence(ctx)
		require.NoError(t, err)
		assert.Greater(t, larger, n)
		tenure.unlock(t)
	})
}

func TestPassesOverAHolderThatVanished(t *testing.T) {
	overQueue(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, _ *counting) {
		l := cohort.New(inner)
		tenure := startTenure(t, l, 2, time.Second)
		first, start := tenure.holder, time.Now()
		tenure.awaitNext(t)
		assert.Equal(t, time.Second, time.Since(start), "its own ttl, not the tenure's")
		assert.ErrorIs(t, first.Unlock(t.Context()), locker.ErrNotHeld)
		tenure.awaitNext(t) // the second one vanishes as well, when the tenure's time is up
		assert.Equal(t, 2*time.Second, time.Since(start))
		_, err := locker.Lock(t.Context(), m, "k", time.Second) // and so does the last one
		require.NoError(t, err)
		assert.Equal(t, 3*time.Second, time.Since(start))
	})
}

func TestExtend(t *testing.T) {
	overQueue(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, c *counting) {
		l := cohort.New(inner)
		tenure := startTenure(t, l, 1, 10*time.Second)
		c.requests.Store(0)
		time.Sleep(20 * time.Millisecond)
		require.NoError(t, tenure.holder.Extend(t.Context(), 10*time.Second))
		assert.Zero(t, c.requests.Load(), "the backend's lock lasts long enough")
		require.NoError(t, tenure.holder.Extend(t.Context(), time.Second))
		assert.EqualValues(t, 1, c.requests.Load(), "others would wait for longer than necessary if the process died")
		require.NoError(t, tenure.holder.Extend(t.Context(), time.Minute))
		assert.EqualValues(t, 2, c.requests.Load())
		time.Sleep(time.Minute - time.Millisecond)
		_, err := locker.TryLock(t.Context(), m, "k", time.Second)
		assert.ErrorIs(t, err, locker.ErrHeld)
		tenure.queue.requireWaiting(t, "two holders")
		time.Sleep(time.Millisecond)
		tenure.awaitNext(t)
		tenure.unlock(t)
	})
}

func TestLeavesTheNextItsWholeTTL(t *testing.T) {
	overQueue(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, c *counting) {
		l := cohort.New(inner)
		tenure := startTenure(t, l, 0, time.Second)
		tenure.queue = join(t.Context(), l, 1, time.Hour)
		tenure.passToNext(t)
		assert.Equal(t, time.Hour, time.Until(tenure.holder.Deadline()))
		time.Sleep(time.Hour - time.Millisecond)
		_, err := locker.TryLock(t.Context(), m, "k", time.Second)
		assert.ErrorIs(t, err, locker.ErrHeld)
		tenure.unlock(t)
	})
}

func TestGivesUpAfter(t *testing.T) {
	for name, opt := range map[string]cohort.Option{
		"passes":                  cohort.WithMaxHandoffs(3),
		"tenure":                  cohort.WithMaxTenure(30 * time.Millisecond),
		"never handed on, passes": cohort.WithMaxHandoffs(0),
		"never handed on, tenure": cohort.WithMaxTenure(-1),
	} {
		t.Run(name, func(t *testing.T) {
			overQueue(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, _ *counting) {
				l := cohort.New(inner, opt)
				first := mustLock(t, l, time.Minute)
				const others = 20
				queue := join(t.Context(), l, others, time.Minute)
				other := make(chan int, 1) // after how many of the queue the other process had its turn
				var served atomic.Int64
				go func() {
					lease := mustLock(t, m, time.Minute)
					other <- int(served.Load())
					assert.NoError(t, lease.Unlock(context.Background()))
				}()
				synctest.Wait()
				require.NoError(t, first.Unlock(t.Context()))
				for range others {
					lease := queue.next(t)
					served.Add(1)
					time.Sleep(10 * time.Millisecond)
					require.NoError(t, lease.Unlock(t.Context()))
					synctest.Wait()
				}
				require.NotEmpty(t, other, "the other process had no turn")
				assert.LessOrEqual(t, <-other, 5, "the other process waits for everyone here")
			})
		})
	}
}

// Every process gets its share, whether or not the backend keeps a queue.
func TestIsFairBetweenProcesses(t *testing.T) {
	for name, wrap := range backends() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := memory.New()
				const processes, goroutines = 4, 8
				// Without a queue each tenure is won by chance: there must be enough of them to tell that
				// from an unfair share.
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
				defer cancel()
				served := make([]atomic.Int64, processes)
				var inside atomic.Int64
				var wg sync.WaitGroup
				for p := range processes {
					inner, _ := wrap(m)
					l := cohort.New(inner)
					for range goroutines {
						wg.Go(func() {
							for ctx.Err() == nil {
								lease, err := locker.Lock(ctx, l, "k", time.Minute)
								if err != nil {
									continue
								}
								assert.EqualValues(t, 1, inside.Add(1))
								time.Sleep(20 * time.Millisecond)
								inside.Add(-1)
								assert.NoError(t, lease.Unlock(ctx))
								served[p].Add(1)
							}
						})
					}
				}
				wg.Wait()
				time.Sleep(10 * time.Second)
				total := int64(0)
				for p := range served {
					total += served[p].Load()
				}
				for p := range served {
					share := float64(served[p].Load()) / (float64(total) / processes)
					t.Logf("process %d: %d of %d, %.2f of its share", p, served[p].Load(), total, share)
					assert.GreaterOrEqual(t, share, 0.8)
				}
			})
		})
	}
}

func TestReleaseOfUnknownOutcome(t *testing.T) {
	overQueue(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, c *counting) {
		l := cohort.New(inner)
		tenure := startTenure(t, l, 0, time.Minute)
		down := errors.New("down")
		c.fail.Store(&down)
		assert.ErrorIs(t, tenure.holder.Unlock(t.Context()), down)
		_, err := l.Acquire(t.Context(), "k", tenure.holder.Token(), time.Minute)
		assert.Error(t, err, "the token is burnt")
		c.fail.Store(nil)
		_, err = locker.TryLock(t.Context(), m, "k", time.Minute)
		assert.ErrorIs(t, err, locker.ErrHeld)
		tenure.unlock(t)
		_, err = locker.TryLock(t.Context(), m, "k", time.Minute)
		assert.NoError(t, err)
		assert.Zero(t, cohort.Entries(l))
	})
}

func TestBackendFails(t *testing.T) {
	eachBackend(t, func(t *testing.T, inner locker.Locker, c *counting) {
		l := cohort.New(inner)
		other := mustLock(t, c.Locker, time.Minute)
		down := errors.New("down")
		var failed atomic.Int64
		var wg sync.WaitGroup
		_, queues := inner.(queueing)
		for range 10 {
			wg.Go(func() {
				lease, err := locker.Lock(t.Context(), l, "k", time.Minute)
				if queues && err == nil { // the first was in the backend's queue before the failure
					_ = lease.Unlock(t.Context())
					return
				}
				assert.ErrorIs(t, err, down)
				failed.Add(1)
			})
			synctest.Wait()
		}
		c.fail.Store(&down)
		c.requests.Store(0)
		require.NoError(t, other.Unlock(t.Context()))
		start := time.Now()
		wg.Wait()
		assert.Less(t, time.Since(start), 2*time.Second, "not even a safety poll")
		assert.True(t, queues || failed.Load() == 10)
		time.Sleep(10 * time.Second)

		c.fail.Store(nil)
		time.Sleep(time.Minute) // a holder that has vanished expires
		lease := mustLock(t, l, time.Minute)
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

func TestArguments(t *testing.T) {
	ctx := t.Context()
	dead, cancel := context.WithCancel(ctx)
	cancel()
	for name, c := range map[string]struct {
		l    *cohort.Locker
		ctx  context.Context
		text string
		is   error
	}{
		"nil":        {nil, ctx, "nil Locker", nil},
		"nil inside": {cohort.New(nil), ctx, "nil Locker", nil},
		"done":       {cohort.New(memory.New()), dead, "context canceled", context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			_, acquire := c.l.Acquire(c.ctx, "k", "t", time.Second)
			_, extend := c.l.Extend(c.ctx, "k", "t", time.Second)
			_, release := c.l.Release(c.ctx, "k", "t")
			_, wait := c.l.Wait(c.ctx, "k", "t", time.Second)
			_, watch := c.l.Watch(c.ctx, "k")
			_, _, fence := c.l.Fence(c.ctx, "k", "t")
			for op, err := range map[string]error{"acquire": acquire, "extend": extend, "release": release,
				"wait": wait, "watch": watch, "fence": fence} {
				require.Error(t, err, op)
				assert.Contains(t, err.Error(), c.text)
				if c.is != nil {
					assert.ErrorIs(t, err, c.is)
				}
			}
		})
	}
	l := cohort.New(&counting{Locker: memory.New()})
	_, err := l.Watch(ctx, "k")
	assert.ErrorIs(t, err, errors.ErrUnsupported)
	_, _, err = l.Fence(ctx, "k", "t")
	assert.ErrorIs(t, err, errors.ErrUnsupported)
}

// In a storm of cancellations all others are served, there are never two holders, and nothing is left.
func TestCancellationStorm(t *testing.T) {
	eachBackend(t, func(t *testing.T, inner locker.Locker, _ *counting) {
		lockers := []*cohort.Locker{cohort.New(inner), cohort.New(inner)}
		var inside, served, gaveUp atomic.Int64
		var wg sync.WaitGroup
		for i := range 40 {
			l := lockers[i%2]
			patient := i%4 < 2
			wg.Go(func() {
				for range 50 {
					ctx, cancel := context.WithCancel(t.Context())
					if !patient {
						ctx, cancel = context.WithTimeout(t.Context(), rand.N(40*time.Millisecond))
					}
					lease, err := locker.Lock(ctx, l, "k", time.Minute)
					if err != nil {
						assert.False(t, patient, err)
						assert.ErrorIs(t, err, context.DeadlineExceeded)
						gaveUp.Add(1)
						cancel()
						continue
					}
					assert.EqualValues(t, 1, inside.Add(1))
					time.Sleep(rand.N(2 * time.Millisecond))
					inside.Add(-1)
					assert.NoError(t, lease.Unlock(ctx))
					served.Add(1)
					cancel()
				}
			})
		}
		wg.Wait()
		time.Sleep(time.Minute)
		assert.EqualValues(t, 2000, served.Load()+gaveUp.Load())
		assert.GreaterOrEqual(t, served.Load(), int64(1000))
		for _, l := range lockers {
			assert.Zero(t, cohort.Entries(l))
		}
		lease, err := locker.TryLock(t.Context(), inner, "k", time.Second)
		require.NoError(t, err, "a grant was lost")
		assert.NoError(t, lease.Unlock(t.Context()))
	})
}

func TestForgetsHoldersThatVanish(t *testing.T) {
	overQueue(t, func(t *testing.T, _ *memory.Locker, inner locker.Locker, c *counting) {
		l := cohort.New(inner)
		for i := range 1000 {
			_, err := locker.TryLock(t.Context(), l, fmt.Sprint(i), time.Second)
			require.NoError(t, err)
		}
		c.requests.Store(0)
		time.Sleep(6 * time.Second)
		assert.Zero(t, cohort.Entries(l))
		assert.Zero(t, c.requests.Load(), "the backend's locks have ended by themselves")
	})
}

func BenchmarkOneKey(b *testing.B) {
	for _, goroutines := range []int{1, 2, 32} {
		b.Run(fmt.Sprint(goroutines), func(b *testing.B) {
			b.ReportAllocs()
			l := cohort.New(memory.New())
			ctx := context.Background()
			var wg sync.WaitGroup
			var n atomic.Int64
			for range goroutines {
				wg.Go(func() {
					for n.Add(1) <= int64(b.N) {
						lease, err := locker.Lock(ctx, l, "k", time.Minute)
						if err != nil {
							b.Error(err)
							return
						}
						if err := lease.Unlock(ctx); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}
