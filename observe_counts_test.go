package locker_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/golockers/locker/internal/waithook"
	"github.com/golockers/locker/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// tally is an Observer that adds up what events change.
type tally struct {
	mu              sync.Mutex
	waiters, leases int
	began, ended    int // changes of leases by 1, and by -1
}

func (c *tally) Observe(_ context.Context, e locker.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiters += e.Waiters
	c.leases += e.Leases
	switch e.Leases {
	case 1:
		c.began++
	case -1:
		c.ended++
	}
}

func (c *tally) now() [2]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return [2]int{c.waiters, c.leases}
}

// Whatever becomes of an acquisition and its lease, each is counted once, for as long as it lasts.
func TestEventsAddUp(t *testing.T) {
	const ttl = 3 * time.Second
	broken := func(context.Context, string) (bool, error) { return false, errBackend }
	for name, end := range map[string]func(t *testing.T, f *fake, lease *locker.Lease){
		"unlocked": func(t *testing.T, _ *fake, lease *locker.Lease) {
			assert.NoError(t, lease.Unlock(t.Context()))
			assert.Error(t, lease.Unlock(t.Context()))
		},
		"detached": func(_ *testing.T, _ *fake, lease *locker.Lease) { lease.Detach(); lease.Detach() },
		"refused by Unlock": func(t *testing.T, f *fake, lease *locker.Lease) {
			f.steal("k", time.Minute)
			assert.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld)
		},
		"refused by Extend": func(t *testing.T, f *fake, lease *locker.Lease) {
			f.steal("k", time.Minute)
			assert.ErrorIs(t, lease.Extend(t.Context(), ttl), locker.ErrNotHeld)
		},
		"Unlock without an answer, until one": func(t *testing.T, f *fake, lease *locker.Lease) {
			f.onRelease = broken
			assert.ErrorIs(t, lease.Unlock(t.Context()), errBackend)
			assert.ErrorIs(t, lease.Unlock(t.Context()), errBackend)
			f.onRelease = nil
			assert.NoError(t, lease.Unlock(t.Context()))
		},
		"Unlock without an answer, then Detach": func(t *testing.T, f *fake, lease *locker.Lease) {
			f.onRelease = broken
			assert.ErrorIs(t, lease.Unlock(t.Context()), errBackend)
			lease.Detach()
		},
		"expired, then Unlock without an answer": func(t *testing.T, f *fake, lease *locker.Lease) {
			f.extendBy(func(context.Context, string, time.Duration) (bool, error) { return false, errBackend })
			time.Sleep(2 * ttl)
			f.onRelease = broken
			assert.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld)
			f.onRelease = nil
			assert.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld)
		},
		"never used again": func(_ *testing.T, f *fake, _ *locker.Lease) {
			f.steal("k", time.Minute)
			time.Sleep(2 * ttl)
		},
	} {
		for how, opts := range map[string][]locker.Option{"": nil, ", with keep-alive": {locker.WithKeepAlive()}} {
			bubble(t, name+how, func(t *testing.T) {
				c, f := &tally{}, &fake{}
				lease := tryLock(t, locker.Observed(f, c), ttl, opts...)
				assert.Equal(t, [2]int{0, 1}, c.now())
				end(t, f, lease)
				assert.Equal(t, [2]int{}, c.now())
				time.Sleep(time.Minute)
				assert.Equal(t, 1, c.began)
				assert.Equal(t, 1, c.ended)
			})
		}
	}
	bubble(t, "resumed, with a minimum hold", func(t *testing.T) {
		c, l := &tally{}, memory.New()
		observed := locker.Observed(l, c)
		lease := tryLock(t, observed, time.Minute)
		lease.Detach()
		resumed, err := locker.Resume(t.Context(), observed, "k", lease.Token(), time.Minute)
		require.NoError(t, err)
		assert.Equal(t, [2]int{0, 1}, c.now())
		assert.NoError(t, resumed.Unlock(t.Context()))
		_, err = locker.Resume(t.Context(), observed, "k", lease.Token(), time.Minute)
		assert.Error(t, err)
		assert.NoError(t, tryLock(t, observed, time.Minute, locker.WithMinHold(time.Hour)).Unlock(t.Context()))
		assert.Equal(t, [2]int{}, c.now())
		assert.Equal(t, 3, c.ended)
	})
	bubble(t, "several, never used again", func(t *testing.T) {
		c := &tally{}
		_, err := locker.LockAll(t.Context(), locker.Observed(memory.New(), c), []string{"a", "b"}, ttl)
		require.NoError(t, err)
		assert.Equal(t, [2]int{0, 2}, c.now())
		time.Sleep(time.Minute)
		assert.Equal(t, [2]int{}, c.now())
	})
	bubble(t, "waiting", func(t *testing.T) {
		for _, inner := range []locker.Locker{memory.New(), plain{memory.New()}, cohort.New(memory.New())} {
			c := &tally{}
			l := locker.Observed(inner, c)
			held := tryLock(t, inner, time.Hour)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			var g sync.WaitGroup
			for range 3 {
				g.Go(func() { _, err := locker.Lock(ctx, l, "k", time.Minute); assert.Error(t, err) })
				g.Go(func() {
					lease, err := locker.Lock(t.Context(), l, "k", time.Minute)
					if assert.NoError(t, err) {
						assert.NoError(t, lease.Unlock(t.Context()))
					}
				})
			}
			time.Sleep(time.Second / 2)
			assert.Equal(t, [2]int{6, 0}, c.now())
			time.Sleep(time.Second)
			assert.Equal(t, [2]int{3, 0}, c.now())
			cancel()
			assert.NoError(t, held.Unlock(t.Context()))
			g.Wait()
			assert.Equal(t, [2]int{}, c.now())
			assert.Equal(t, 3, c.ended)
		}
	})
	bubble(t, "a Locker that does not return", func(t *testing.T) {
		for _, leave := range []func(){func() { panic(errBackend) }, runtime.Goexit} {
			c := &tally{}
			l := &lined{fake: &fake{}}
			l.wait = func(ctx context.Context, _, _ string, _ time.Duration) (time.Time, error) {
				waithook.Call(ctx)
				assert.Equal(t, [2]int{1, 0}, c.now())
				leave()
				return time.Time{}, nil
			}
			observed := locker.Observed(l, c)
			for _, wait := range []func() error{
				func() error { _, err := locker.Lock(t.Context(), observed, "k", time.Minute); return err },
				func() error {
					_, err := observed.(locker.Waiter).Wait(t.Context(), "k", "t", time.Minute)
					return err
				},
			} {
				go func() {
					defer func() { _ = recover() }()
					assert.NoError(t, errors.Join(wait(), errBackend), "it returned")
				}()
				synctest.Wait()
				assert.Equal(t, [2]int{}, c.now())
			}
		}
	})
	bubble(t, "a Release that does not return", func(t *testing.T) {
		for _, leave := range []func(){func() { panic(errBackend) }, runtime.Goexit} {
			c, f := &tally{}, &fake{}
			lease := tryLock(t, locker.Observed(f, c), ttl)
			f.onRelease = func(context.Context, string) (bool, error) { leave(); return false, nil }
			go func() {
				defer func() { _ = recover() }()
				assert.NoError(t, errors.Join(lease.Unlock(t.Context()), errBackend), "it returned")
			}()
			synctest.Wait()
			assert.Equal(t, [2]int{}, c.now())
			f.onRelease = nil
			assert.NoError(t, lease.Unlock(t.Context()))
			assert.Equal(t, 1, c.ended)
		}
	})
	for name, extend := range map[string]func(context.Context, string, time.Duration) (bool, error){
		"hangs":    func(context.Context, string, time.Duration) (bool, error) { time.Sleep(time.Hour); return true, nil },
		"exits":    func(context.Context, string, time.Duration) (bool, error) { runtime.Goexit(); return true, nil },
		"fails so": func(context.Context, string, time.Duration) (bool, error) { return false, locker.ErrNotHeld },
	} {
		bubble(t, "a loss on time, though the keep-alive "+name, func(t *testing.T) {
			c, f := &tally{}, &fake{onExtend: extend}
			_ = tryLock(t, locker.Observed(f, c), ttl, locker.WithKeepAlive())
			time.Sleep(ttl - 1)
			synctest.Wait()
			assert.Equal(t, [2]int{0, 1}, c.now())
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			assert.Equal(t, [2]int{}, c.now())
			time.Sleep(time.Hour)
			assert.Equal(t, 1, c.ended)
		})
	}
	bubble(t, "no lease", func(t *testing.T) {
		c := &tally{}
		l := locker.Observed(memory.New(), c)
		for _, release := range []bool{true, false} {
			acquired, err := l.Acquire(t.Context(), "k", "t", time.Second)
			assert.True(t, acquired)
			assert.NoError(t, err)
			if release {
				_, err = l.Release(t.Context(), "k", "t")
				assert.NoError(t, err)
			}
		}
		time.Sleep(time.Minute)
		assert.NoError(t, tryLock(t, cohort.New(l), time.Minute).Unlock(t.Context()))
		time.Sleep(time.Hour)
		assert.Equal(t, [2]int{}, c.now())
		assert.Zero(t, c.began)
	})
}

// An acquisition that does not return is reported, too.
func TestObservedDoesNotReturn(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		for _, leave := range []func(){func() { panic(errBackend) }, runtime.Goexit} {
			f := &fake{
				onAcquire: func(context.Context, string, time.Duration) (bool, error) { leave(); return true, nil },
				onExtend:  func(context.Context, string, time.Duration) (bool, error) { leave(); return true, nil },
			}
			for _, acquire := range []func(locker.Locker) error{
				func(l locker.Locker) error { _, err := l.Acquire(t.Context(), "k", "t", time.Minute); return err },
				func(l locker.Locker) error { _, err := locker.TryLock(t.Context(), l, "k", time.Minute); return err },
				func(l locker.Locker) error {
					_, err := locker.Resume(t.Context(), l, "k", "t", time.Minute)
					return err
				},
			} {
				j := &journal{}
				go func() {
					defer func() { _ = recover() }()
					assert.NoError(t, errors.Join(acquire(locker.Observed(f, j)), errBackend), "it returned")
				}()
				synctest.Wait()
				if assert.Len(t, j.events, 1) {
					assert.Equal(t, locker.Failed, j.events[0].Kind)
				}
			}
		}
	})
}

// The lock that a cohort holds for its callers is not reported as lost when the ttl of its
// acquisition ends.
func TestObservedUnderCohort(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		j := &journal{}
		l := cohort.New(locker.Observed(memory.New(), j))
		waited := make(chan error, 1)
		lease := tryLock(t, l, 3*time.Second, locker.WithKeepAlive())
		go func() {
			second, err := locker.Lock(t.Context(), l, "k", 3*time.Second)
			if err == nil {
				err = second.Unlock(t.Context())
			}
			waited <- err
		}()
		time.Sleep(time.Minute)
		assert.NoError(t, lease.Unlock(t.Context()))
		require.NoError(t, <-waited)
		second, err := locker.Lock(t.Context(), l, "k", 3*time.Second, locker.WithKeepAlive())
		require.NoError(t, err)
		time.Sleep(time.Minute)
		assert.NoError(t, second.Unlock(t.Context()))
		for _, e := range j.events {
			assert.NotEqual(t, locker.Lost, e.Kind)
			assert.Zero(t, e.Leases)
		}
	})
}
