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

// counting counts the requests that reach a backend, and can make them fail.
type counting struct {
	locker.Locker
	requests atomic.Int64
	fail     atomic.Pointer[error] // what every request ends with, if it is set
}

func (c *counting) request() error {
	c.requests.Add(1)
	if err := c.fail.Load(); err != nil {
		return *err
	}
	return nil
}

func (c *counting) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if err := c.request(); err != nil {
		return false, err
	}
	return c.Locker.Acquire(ctx, key, token, ttl)
}

func (c *counting) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if err := c.request(); err != nil {
		return false, err
	}
	return c.Locker.Extend(ctx, key, token, ttl)
}

func (c *counting) Release(ctx context.Context, key, token string) (bool, error) {
	if err := c.request(); err != nil {
		return false, err
	}
	return c.Locker.Release(ctx, key, token)
}

// lining is a counting backend that keeps a line.
type lining struct{ *counting }

func (l lining) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	if err := l.request(); err != nil {
		return time.Time{}, err
	}
	return l.Locker.(locker.Waiter).Wait(ctx, key, token, ttl)
}

func (l lining) Fence(ctx context.Context, key, token string) (uint64, bool, error) {
	return l.Locker.(locker.Fencer).Fence(ctx, key, token)
}

// watching is a counting backend that wakes watchers and keeps no line.
type watching struct{ *counting }

func (w watching) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	return w.watch(ctx, key)
}

// watch lets wake-ups arrive as over a network, a little later and in any order. In one process the last
// watcher would mostly be the first to run, and the same two contenders win again and again.
func (c *counting) watch(ctx context.Context, key string) (<-chan struct{}, error) {
	woken, err := c.Locker.(locker.Watcher).Watch(ctx, key)
	arrived := make(chan struct{}, 1)
	go func() {
		for {
			select {
			case <-woken:
			case <-ctx.Done():
				return
			}
			time.Sleep(rand.N(time.Millisecond))
			select {
			case arrived <- struct{}{}:
			default:
			}
		}
	}()
	return arrived, err
}

// unlined has the methods of a backend that keeps a line, and keeps none.
type unlined struct{ *counting }

func (unlined) Wait(context.Context, string, string, time.Duration) (time.Time, error) {
	return time.Time{}, fmt.Errorf("no line here: %w", errors.ErrUnsupported)
}

// unlinedWatching keeps no line either, and can be watched.
type unlinedWatching struct{ unlined }

func (w unlinedWatching) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	return w.watch(ctx, key)
}

// unwatched has all methods, and can neither keep a line nor be watched.
type unwatched struct{ unlined }

func (unwatched) Watch(context.Context, string) (<-chan struct{}, error) {
	return nil, fmt.Errorf("nothing to watch: %w", errors.ErrUnsupported)
}

// backends are the kinds of Locker that there are to wrap.
func backends() map[string]func(*memory.Locker) (locker.Locker, *counting) {
	return map[string]func(*memory.Locker) (locker.Locker, *counting){
		"line":    func(m *memory.Locker) (locker.Locker, *counting) { c := &counting{Locker: m}; return lining{c}, c },
		"watch":   func(m *memory.Locker) (locker.Locker, *counting) { c := &counting{Locker: m}; return watching{c}, c },
		"polling": func(m *memory.Locker) (locker.Locker, *counting) { c := &counting{Locker: m}; return c, c },
		"no line, watch": func(m *memory.Locker) (locker.Locker, *counting) {
			c := &counting{Locker: m}
			return unlinedWatching{unlined{c}}, c
		},
		"no line, no watch": func(m *memory.Locker) (locker.Locker, *counting) {
			c := &counting{Locker: m}
			return unwatched{unlined{c}}, c
		},
	}
}

// eachBackend runs f in a synctest bubble over every kind of backend.
func eachBackend(t *testing.T, f func(t *testing.T, inner locker.Locker, c *counting)) {
	for name, wrap := range backends() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner, c := wrap(memory.New())
				f(t, inner, c)
				time.Sleep(10 * time.Second) // clean-ups end; a goroutine that does not panics the bubble
			})
		})
	}
}

// overLine runs f in a bubble over a backend that keeps a line.
func overLine(t *testing.T, f func(t *testing.T, m *memory.Locker, inner locker.Locker, c *counting)) {
	synctest.Test(t, func(t *testing.T) {
		m := memory.New()
		c := &counting{Locker: m}
		f(t, m, lining{c}, c)
		time.Sleep(10 * time.Second)
	})
}

func mustLock(t testing.TB, l locker.Locker, ttl time.Duration, opts ...locker.Option) *locker.Lease {
	lease, err := locker.Lock(context.Background(), l, "k", ttl, opts...)
	require.NoError(t, err)
	return lease
}

// queue starts n waiters one after the other and returns what each of them gets, in the order of joining.
func queue(ctx context.Context, l locker.Locker, n int, ttl time.Duration) []chan *locker.Lease {
	out := make([]chan *locker.Lease, n)
	for i := range out {
		out[i] = make(chan *locker.Lease, 1)
		go func() {
			lease, _ := locker.Lock(ctx, l, "k", ttl)
			out[i] <- lease
		}()
		synctest.Wait()
	}
	return out
}

func TestUncontended(t *testing.T) {
	overLine(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, c *counting) {
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
		time.Sleep(10 * time.Second)
		assert.Zero(t, cohort.Entries(l))
	})
}

func TestServesInOrder(t *testing.T) {
	eachBackend(t, func(t *testing.T, inner locker.Locker, _ *counting) {
		l := cohort.New(inner)
		first := mustLock(t, l, time.Minute)
		waiting := queue(t.Context(), l, 10, time.Minute)
		require.NoError(t, first.Unlock(t.Context()))
		for i, c := range waiting {
			lease := <-c
			require.NotNil(t, lease)
			assert.LessOrEqual(t, time.Until(lease.Deadline()), time.Minute)
			for _, later := range waiting[i+1:] {
				assert.Empty(t, later, "two at once, or out of order")
			}
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
		waiting := queue(t.Context(), l, 51, time.Minute)
		require.NoError(t, first.Unlock(t.Context()))
		for i, w := range waiting {
			if i == 0 {
				c.requests.Store(0)
			}
			lease := <-w
			if i < len(waiting)-1 {
				require.NoError(t, lease.Unlock(t.Context()))
				continue
			}
			assert.Zero(t, c.requests.Load())
			require.NoError(t, lease.Unlock(t.Context()))
			assert.EqualValues(t, 1, c.requests.Load())
		}
	})
}

func TestTryLockBehindWaiters(t *testing.T) {
	overLine(t, func(t *testing.T, _ *memory.Locker, inner locker.Locker, c *counting) {
		l := cohort.New(inner)
		first := mustLock(t, l, time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		waiting := queue(ctx, l, 3, time.Minute)
		c.requests.Store(0)
		_, err := locker.TryLock(t.Context(), l, "k", time.Minute)
		assert.ErrorIs(t, err, locker.ErrHeld)
		assert.Zero(t, c.requests.Load())

		again, err := l.Acquire(t.Context(), "k", first.Token(), time.Minute)
		assert.NoError(t, err)
		assert.True(t, again, "the holder itself is not another")

		cancel()
		for _, w := range waiting {
			assert.Nil(t, <-w)
		}
		synctest.Wait()
		require.NoError(t, first.Unlock(t.Context()))
		lease, err := locker.TryLock(t.Context(), l, "k", time.Minute)
		require.NoError(t, err, "the waiters have left something")
		require.NoError(t, lease.Unlock(t.Context()))
		assert.Zero(t, cohort.Entries(l))
	})
}

// startTenure gets a lease in a tenure that was taken for the queue, so for MaxTenure longer than its ttl, with
// n more waiters behind it.
func startTenure(t *testing.T, l *cohort.Locker, n int, ttl time.Duration) (*locker.Lease, []chan *locker.Lease) {
	other := mustLock(t, cohort.Inner(l), time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	driver := queue(ctx, l, 1, ttl)[0] // drives for itself alone, and leaves
	waiting := queue(t.Context(), l, n+1, ttl)
	cancel()
	require.Nil(t, <-driver)
	synctest.Wait()
	require.NoError(t, other.Unlock(t.Context()))
	lease := <-waiting[0]
	require.NotNil(t, lease)
	synctest.Wait()
	return lease, waiting[1:]
}

// passToNext unlocks a lease and returns the one of the next waiter.
func passToNext(t *testing.T, lease *locker.Lease, next <-chan *locker.Lease) *locker.Lease {
	require.NoError(t, lease.Unlock(t.Context()))
	lease = <-next
	require.NotNil(t, lease)
	return lease
}

func TestCohortTokensAreLocal(t *testing.T) {
	overLine(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, _ *counting) {
		l := cohort.New(inner)
		lease, waiting := startTenure(t, l, 1, time.Minute)
		ctx := t.Context()
		for name, elsewhere := range map[string]locker.Locker{"backend": m, "another": cohort.New(inner)} {
			extended, err := elsewhere.Extend(ctx, "k", lease.Token(), time.Hour)
			require.NoError(t, err, name)
			assert.False(t, extended, name)
			released, err := elsewhere.Release(ctx, "k", lease.Token())
			require.NoError(t, err, name)
			assert.False(t, released, name)
		}
		again, err := l.Acquire(ctx, "k", lease.Token(), time.Minute)
		require.NoError(t, err)
		assert.True(t, again)
		n, err := lease.Fence(ctx)
		require.NoError(t, err)
		require.NoError(t, lease.Unlock(ctx))
		released, err := l.Release(ctx, "k", lease.Token())
		require.NoError(t, err)
		assert.False(t, released, "a stale holder released its successor's lock")
		extended, err := l.Extend(ctx, "k", lease.Token(), time.Hour)
		require.NoError(t, err)
		assert.False(t, extended)
		_, ok, err := l.Fence(ctx, "k", lease.Token())
		require.NoError(t, err)
		assert.False(t, ok)

		next := <-waiting[0]
		larger, err := next.Fence(ctx)
		require.NoError(t, err)
		assert.Greater(t, larger, n)
		require.NoError(t, next.Unlock(ctx))
	})
}

func TestPassesOverAHolderThatVanished(t *testing.T) {
	overLine(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, _ *counting) {
		l := cohort.New(inner)
		lease, waiting := startTenure(t, l, 2, time.Second)
		start := time.Now()
		second := <-waiting[0]
		assert.Equal(t, time.Second, time.Since(start), "its own ttl, not the tenure's")
		assert.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld)
		_ = second // vanishes, too, when the tenure's time is up
		third := <-waiting[1]
		assert.Equal(t, 2*time.Second, time.Since(start))
		_ = third // and the last one, with nobody waiting here
		_, err := locker.Lock(t.Context(), m, "k", time.Second)
		require.NoError(t, err)
		assert.Equal(t, 3*time.Second, time.Since(start))
	})
}

func TestExtend(t *testing.T) {
	overLine(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, c *counting) {
		l := cohort.New(inner)
		lease, waiting := startTenure(t, l, 1, 10*time.Second)
		c.requests.Store(0)
		time.Sleep(20 * time.Millisecond)
		require.NoError(t, lease.Extend(t.Context(), 10*time.Second))
		assert.Zero(t, c.requests.Load(), "the backend's lock lasts long enough")
		require.NoError(t, lease.Extend(t.Context(), time.Second))
		assert.EqualValues(t, 1, c.requests.Load(), "if the process died, others would wait for longer than they must")
		require.NoError(t, lease.Extend(t.Context(), time.Minute))
		assert.EqualValues(t, 2, c.requests.Load())
		time.Sleep(time.Minute - time.Millisecond)
		_, err := locker.TryLock(t.Context(), m, "k", time.Second)
		assert.ErrorIs(t, err, locker.ErrHeld)
		assert.Empty(t, waiting[0])
		time.Sleep(time.Millisecond)
		next := <-waiting[0]
		assert.NotNil(t, next)
		assert.NoError(t, next.Unlock(t.Context()))
	})
}

func TestLeavesTheNextItsWholeTTL(t *testing.T) {
	overLine(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, c *counting) {
		l := cohort.New(inner)
		lease, _ := startTenure(t, l, 0, time.Second)
		long := make(chan *locker.Lease)
		go func() { long <- mustLock(t, l, time.Hour) }()
		synctest.Wait()
		require.NoError(t, lease.Unlock(t.Context()))
		got := <-long
		assert.Equal(t, time.Hour, time.Until(got.Deadline()))
		time.Sleep(time.Hour - time.Millisecond)
		_, err := locker.TryLock(t.Context(), m, "k", time.Second)
		assert.ErrorIs(t, err, locker.ErrHeld)
		require.NoError(t, got.Unlock(t.Context()))
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
			overLine(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, _ *counting) {
				l := cohort.New(inner, opt)
				first := mustLock(t, l, time.Minute)
				waiting := queue(t.Context(), l, 20, time.Minute)
				other := queue(t.Context(), m, 1, time.Minute)[0]
				require.NoError(t, first.Unlock(t.Context()))
				for i, w := range waiting {
					select {
					case lease := <-w:
						time.Sleep(10 * time.Millisecond)
						require.NoError(t, lease.Unlock(t.Context()))
					case lease := <-other:
						assert.LessOrEqual(t, i, 5, "the other process waits for everybody here")
						require.NoError(t, lease.Unlock(t.Context()))
						other = nil
						lease = <-w
						require.NoError(t, lease.Unlock(t.Context()))
					}
					synctest.Wait()
				}
				assert.Nil(t, other, "the other process had no turn")
			})
		})
	}
}

// Every process has its share, be the backend with a line or without.
func TestIsFairBetweenProcesses(t *testing.T) {
	for name, wrap := range backends() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := memory.New()
				const processes, goroutines = 4, 8
				// Where there is no line each tenure is won by luck: there must be enough of them to tell
				// that from an unfair share.
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
	overLine(t, func(t *testing.T, m *memory.Locker, inner locker.Locker, c *counting) {
		l := cohort.New(inner)
		lease, _ := startTenure(t, l, 0, time.Minute)
		down := errors.New("down")
		c.fail.Store(&down)
		assert.ErrorIs(t, lease.Unlock(t.Context()), down)
		_, err := l.Acquire(t.Context(), "k", lease.Token(), time.Minute)
		assert.Error(t, err, "the token is burnt")
		c.fail.Store(nil)
		_, err = locker.TryLock(t.Context(), m, "k", time.Minute)
		assert.ErrorIs(t, err, locker.ErrHeld)
		require.NoError(t, lease.Unlock(t.Context()))
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
		_, queues := inner.(lining)
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
		time.Sleep(time.Minute) // whoever has the lock has vanished
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

// A storm of cancellations: everybody else is served, never two inside, nothing is left.
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
	overLine(t, func(t *testing.T, _ *memory.Locker, inner locker.Locker, c *counting) {
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
