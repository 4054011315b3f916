package singleflight

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golockers/locker"
)

// closeWithin calls Close with a context that ends after d, and returns how long that took.
func closeWithin(t *testing.T, l *Loader[string], d time.Duration) (took time.Duration, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	start := time.Now()
	err = l.Close(ctx)
	return time.Since(start), err
}

func requireClosed(t *testing.T, l *Loader[string]) {
	t.Helper()
	start := time.Now()
	_, err := l.Load(t.Context(), "k")
	require.ErrorIs(t, err, locker.ErrClosed)
	require.EqualError(t, err, `singleflight: load "k": the Loader is closed`)
	err = l.Update(t.Context(), "k", func(context.Context) error { t.Error("called"); return nil })
	require.EqualError(t, err, `singleflight: update "k": the Loader is closed`)
	require.ErrorIs(t, err, locker.ErrClosed)
	require.Zero(t, time.Since(start))
}

func TestCloseIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		l := NewLoader(p.locker(), p.cache(), p.slowly(0, "fresh"))
		require.NoError(t, (<-goLoad(t.Context(), l, "k")).err)
		synctest.Wait()
		p.reset()
		require.NoError(t, l.Close(cancelled()))
		require.NoError(t, l.Close(t.Context()), "a second time")
		requireClosed(t, l)
		l.Forget("k")
		require.Empty(t, p.all(), "nothing was asked")
		requireIdle(t, l, b, "k")

		require.EqualError(t, (*Loader[string])(nil).Close(t.Context()), "singleflight: close: nil Loader")
		require.NoError(t, new(Loader[string]).Close(t.Context()))
	})
}

// A load in progress goes on for its callers, and is stored; later ones are refused.
func TestCloseAwaitsLoads(t *testing.T) {
	contexts(t, func(t *testing.T, ctx context.Context) {
		b := newBackend()
		p := b.process()
		p.onSet = func(context.Context) error { time.Sleep(300 * time.Millisecond); return nil }
		p.onRelease = func(context.Context) (bool, error) {
			time.Sleep(200 * time.Millisecond)
			return true, nil
		}
		l := NewLoader(p.locker(), p.cache(), p.slowly(time.Second, "fresh"))
		c := goLoad(ctx, l, "k")
		time.Sleep(500 * time.Millisecond)
		time.AfterFunc(100*time.Millisecond, func() { requireClosed(t, l) })
		took, err := closeWithin(t, l, time.Minute)
		require.NoError(t, err)
		require.Equal(t, time.Second, took, "the rest of the load, the store and the release")
		require.Equal(t, loaded{"fresh", nil, time.Second}, <-c)
		stored, _ := b.get("k")
		require.Equal(t, "fresh", stored)
		require.Equal(t, 1, p.count("release"))
	})
}

// A load without the lock, since the cache cannot be read, is awaited as well.
func TestCloseAwaitsLoadsWithoutCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		p.onGet = func(context.Context, string) error { return errAnswered }
		p.onSet = func(context.Context) error { time.Sleep(300 * time.Millisecond); return nil }
		l := NewLoader(p.locker(), p.cache(), p.slowly(time.Second, "fresh"))
		c := goLoad(t.Context(), l, "k")
		synctest.Wait()
		took, err := closeWithin(t, l, time.Minute)
		require.NoError(t, err)
		require.Equal(t, 1300*time.Millisecond, took)
		require.Equal(t, loaded{"fresh", nil, time.Second}, <-c)
		require.Equal(t, []string{"get", "source", "set"}, p.all())
		requireIdle(t, l, b, "k")
	})
}

// A call that waits for another process's value gets it.
func TestCloseAwaitsWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p, q := b.process(), b.process()
		holder := NewLoader(p.locker(), p.cache(), p.slowly(5*time.Second, "fresh"))
		l := NewLoader(q.locker(), q.cache(), q.slowly(0, "must not load"))
		first := goLoad(t.Context(), holder, "k")
		synctest.Wait()
		second := goLoad(t.Context(), l, "k")
		synctest.Wait()
		took, err := closeWithin(t, l, time.Minute)
		require.NoError(t, err)
		require.Equal(t, 5*time.Second, took)
		require.Equal(t, loaded{"fresh", nil, 5 * time.Second}, <-second)
		require.Equal(t, "fresh", (<-first).v)
		requireIdle(t, l, b, "k")
	})
}

// Work that no caller waits for ends at once, and leaves no lock behind.
func TestCloseEndsWorkWithoutCallers(t *testing.T) {
	for _, how := range []string{"refresh", "left before", "left meanwhile", "left while reading"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBackend()
				p := b.process()
				if how == "refresh" {
					b.stale["k"] = "stale"
				}
				if how == "left while reading" {
					p.onGet = func(context.Context, string) error { time.Sleep(400 * time.Millisecond); return nil }
				}
				l := NewLoader(p.locker(), p.staleCache(), p.slowly(10*time.Second, "fresh"))
				patience := 100 * time.Millisecond
				if how == "left meanwhile" {
					patience = 500 * time.Millisecond
				}
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				c := goLoad(ctx, l, "k")
				time.Sleep(200 * time.Millisecond)
				took, err := closeWithin(t, l, time.Minute)
				require.NoError(t, err)
				require.LessOrEqual(t, took, 600*time.Millisecond)
				if how == "refresh" {
					require.Equal(t, loaded{"stale", nil, 0}, <-c)
				} else {
					require.Equal(t, loaded{"", context.DeadlineExceeded, patience}, <-c)
				}
				_, stored := b.get("k")
				require.False(t, stored)
				time.Sleep(time.Second)
				requireIdle(t, l, b, "k")
			})
		})
	}
}

// When Close's ctx ends, the sources' contexts end, and their callers get ErrClosed. A source that ignores its context
// holds up neither Close nor the release of the lock, and its value is not stored.
func TestCloseCutShort(t *testing.T) {
	for _, stubborn := range []bool{false, true} {
		t.Run(fmt.Sprint("stubborn ", stubborn), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBackend()
				p := b.process()
				source := p.slowly(time.Hour, "late")
				if stubborn {
					source = func(context.Context, string) (string, error) { time.Sleep(5 * time.Second); return "late", nil }
				}
				l := NewLoader(p.locker(), p.cache(), source)
				c := goLoad(t.Context(), l, "k")
				synctest.Wait()
				took, err := closeWithin(t, l, time.Second)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.EqualError(t, err, "singleflight: close: context deadline exceeded")
				requireFree(t, b, "k")
				if stubborn {
					require.Equal(t, time.Second+defaultOptions.backendTimeout, took)
					require.Equal(t, loaded{"late", nil, 5 * time.Second}, <-c)
				} else {
					require.Equal(t, time.Second, took)
					got := <-c
					require.Equal(t, time.Second, got.took)
					require.ErrorIs(t, got.err, locker.ErrClosed)
					require.NotErrorIs(t, got.err, context.Canceled, "the caller's has not ended")
				}
				synctest.Wait()
				_, stored := b.get("k")
				require.False(t, stored)
				requireIdle(t, l, b, "k")
			})
		})
	}
}

// An error of the source that is not its context's keeps its identity.
func TestCloseCutShortSourceError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		cause := errors.New("interrupted")
		l := NewLoader(p.locker(), p.cache(), func(ctx context.Context, _ string) (string, error) {
			<-ctx.Done()
			return "", cause
		})
		c := goLoad(t.Context(), l, "k")
		synctest.Wait()
		_, err := closeWithin(t, l, time.Second)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		got := <-c
		require.EqualError(t, got.err, `singleflight: load "k": the Loader is closed: interrupted`)
		require.ErrorIs(t, got.err, locker.ErrClosed)
		require.ErrorIs(t, got.err, cause)
		requireIdle(t, l, b, "k")
	})
}

// A wait for another process's value ends in the same way, whether or not its caller can leave.
func TestCloseCutShortWhileWaiting(t *testing.T) {
	contexts(t, func(t *testing.T, ctx context.Context) {
		b := newBackend()
		lease, err := locker.TryLock(t.Context(), b.locks, "k", time.Hour)
		require.NoError(t, err)
		p := b.process()
		l := NewLoader(p.locker(), p.cache(), p.slowly(0, "must not load"))
		c := goLoad(ctx, l, "k")
		time.Sleep(100 * time.Millisecond)
		took, err := closeWithin(t, l, time.Second)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.LessOrEqual(t, took, time.Second+defaultOptions.backendTimeout)
		got := <-c
		require.ErrorIs(t, got.err, locker.ErrClosed)
		require.Zero(t, p.count("source"))
		require.NoError(t, lease.Unlock(t.Context()))
		requireIdle(t, l, b, "k")
	})
}

// A caller whose own ctx ends gets its error, not ErrClosed.
func TestCloseCallersOwnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		l := NewLoader(p.locker(), p.cache(), p.slowly(time.Hour, "late"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		c := goLoad(ctx, l, "k")
		synctest.Wait()
		_, err := closeWithin(t, l, 2*time.Second)
		require.NoError(t, err, "it has left, and the load ended with it")
		require.Equal(t, loaded{"", context.DeadlineExceeded, time.Second}, <-c)
		requireIdle(t, l, b, "k")
	})
}

// A refresh is ended during its attempt to take the lock, which has succeeded on the backend: Close waits until
// the lock is released.
func TestCloseDuringAnAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		b.stale["k"] = "stale"
		p := b.process()
		l := NewLoader(lateLocker{p.locker()}, Cache[string](p.staleCache()), p.slowly(time.Hour, "late"))
		require.Equal(t, "stale", (<-goLoad(t.Context(), l, "k")).v)
		time.Sleep(100 * time.Millisecond)
		_, err := locker.TryLock(t.Context(), b.locks, "k", time.Second)
		require.ErrorIs(t, err, locker.ErrHeld, "taken, though the refresh does not know it")
		took, err := closeWithin(t, l, time.Minute)
		require.NoError(t, err)
		require.Less(t, took, time.Second)
		requireFree(t, b, "k")
		require.Zero(t, p.count("source"))
		requireIdle(t, l, b, "k")
	})
}

// lateLocker takes the lock at once and answers half a second later, or with its context's error. Its releases
// take 200 ms.
type lateLocker struct{ locker.Locker }

func (l lateLocker) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	ok, err := l.Locker.Acquire(ctx, key, token, ttl)
	select {
	case <-time.After(500 * time.Millisecond):
		return ok, err
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

func (l lateLocker) Release(ctx context.Context, key, token string) (bool, error) {
	time.Sleep(200 * time.Millisecond)
	return l.Locker.Release(ctx, key, token)
}

// A load that takes the lock after Close was called, and is left then, ends as well.
func TestCloseThenLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		lease, err := locker.TryLock(t.Context(), b.locks, "k", time.Hour)
		require.NoError(t, err)
		p := b.process()
		l := NewLoader(p.locker(), p.cache(), p.slowly(10*time.Second, "late"))
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		c := goLoad(ctx, l, "k")
		synctest.Wait()
		time.AfterFunc(time.Second, func() { assert.NoError(t, lease.Unlock(context.Background())) })
		took, err := closeWithin(t, l, time.Minute)
		require.NoError(t, err)
		require.Equal(t, 2*time.Second, took)
		require.Equal(t, 1, p.count("source"))
		require.Equal(t, loaded{"", context.DeadlineExceeded, 2 * time.Second}, <-c)
		requireIdle(t, l, b, "k")
	})
}

// A Load that is reading the cache when Close returns may return what it finds, and takes no lock.
func TestCloseWhileReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		b.set("there", "fresh")
		p := b.process()
		p.onGet = func(context.Context, string) error { time.Sleep(time.Second); return nil }
		l := NewLoader(p.locker(), p.cache(), p.slowly(0, "must not load"))
		there, missing := goLoad(t.Context(), l, "there"), goLoad(t.Context(), l, "missing")
		synctest.Wait()
		took, err := closeWithin(t, l, time.Minute)
		require.NoError(t, err)
		require.Zero(t, took)
		require.Equal(t, loaded{"fresh", nil, time.Second}, <-there)
		require.EqualError(t, (<-missing).err, `singleflight: load "missing": the Loader is closed`)
		require.Equal(t, []string{"get", "get"}, p.all())
		requireIdle(t, l, b, "missing")
	})
}

// While Close waits for another load, a load whose callers left while it read the cache takes no lock.
func TestCloseWhileReadingForNoCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		l := NewLoader(p.locker(), p.cache(), p.slowly(5*time.Second, "fresh"))
		other := goLoad(t.Context(), l, "other")
		synctest.Wait()
		p.onGet = func(context.Context, string) error { time.Sleep(300 * time.Millisecond); return nil }
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		c := goLoad(ctx, l, "k")
		time.Sleep(200 * time.Millisecond)
		_, err := closeWithin(t, l, time.Minute)
		require.NoError(t, err)
		require.Equal(t, "fresh", (<-other).v)
		require.Equal(t, context.DeadlineExceeded, (<-c).err)
		require.Equal(t, 1, p.count("acquire"))
		requireIdle(t, l, b, "k")
	})
}

// A backend that hangs does not hold up Close for longer than documented.
func TestCloseBackendHangs(t *testing.T) {
	for name, sabotage := range map[string]func(p *fakeProcess){
		"acquire": func(p *fakeProcess) {
			p.onAcquire = func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }
			p.onRelease = hang
		},
		"set":                  func(p *fakeProcess) { p.onSet = func(ctx context.Context) error { _, err := hang(ctx); return err } },
		"set that ignores ctx": func(p *fakeProcess) { p.onSet = func(context.Context) error { time.Sleep(time.Hour); return nil } },
		"release":              func(p *fakeProcess) { p.onRelease = hang },
		"release that ignores it": func(p *fakeProcess) {
			p.onRelease = func(context.Context) (bool, error) { time.Sleep(time.Hour); return false, nil }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBackend()
				p := b.process()
				sabotage(p)
				l := NewLoader(p.locker(), p.cache(), p.slowly(0, "fresh"))
				c := goLoad(t.Context(), l, "k")
				synctest.Wait()
				took, err := closeWithin(t, l, time.Second)
				require.Error(t, err)
				require.LessOrEqual(t, took, time.Second+defaultOptions.backendTimeout)
				<-c
				requireClosed(t, l)
				if p.onRelease == nil {
					requireFree(t, b, "k")
				}
				time.Sleep(2 * time.Hour)
				requireIdle(t, l, b, "k")
			})
		})
	}
}

// Of two Closes, the one with less time cuts the work short for both.
func TestCloseTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		l := NewLoader(p.locker(), p.cache(), p.slowly(time.Hour, "late"))
		c := goLoad(t.Context(), l, "k")
		synctest.Wait()
		patient := make(chan error)
		go func() { patient <- l.Close(context.Background()) }()
		took, err := closeWithin(t, l, time.Second)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Second, took)
		require.NoError(t, <-patient)
		require.ErrorIs(t, (<-c).err, locker.ErrClosed)
		requireIdle(t, l, b, "k")
	})
}

// Close waits for an Update in progress, or ends its change's context.
func TestCloseUpdate(t *testing.T) {
	for _, patience := range []time.Duration{time.Minute, time.Second} {
		t.Run(patience.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBackend()
				b.set("k", "old")
				p := b.process()
				l := NewLoader(p.locker(), p.deleteCache(), p.slowly(0, "fresh"))
				updated := make(chan error)
				go func() {
					updated <- l.Update(t.Context(), "k", func(ctx context.Context) error {
						select {
						case <-time.After(10 * time.Second):
							return nil
						case <-ctx.Done():
							assert.Equal(t, locker.ErrClosed, context.Cause(ctx))
							return ctx.Err()
						}
					})
				}()
				synctest.Wait()
				took, err := closeWithin(t, l, patience)
				if patience == time.Minute {
					require.NoError(t, err)
					require.NoError(t, <-updated)
					require.Equal(t, 10*time.Second, took)
				} else {
					require.ErrorIs(t, err, context.DeadlineExceeded)
					err := <-updated
					require.ErrorIs(t, err, locker.ErrClosed)
					require.NotErrorIs(t, err, context.Canceled)
					require.Equal(t, time.Second, took)
				}
				_, there := b.get("k")
				require.False(t, there, "deleted in either case")
				requireIdle(t, l, b, "k")
			})
		})
	}
}

// An Update that waits for the lock ends with Close's ctx, without calling change.
func TestCloseUpdateThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		lease, err := locker.TryLock(t.Context(), b.locks, "k", time.Hour)
		require.NoError(t, err)
		p := b.process()
		l := NewLoader(p.locker(), p.deleteCache(), p.slowly(0, "fresh"))
		updated := make(chan error)
		go func() {
			updated <- l.Update(t.Context(), "k", func(context.Context) error { t.Error("called"); return nil })
		}()
		synctest.Wait()
		_, err = closeWithin(t, l, time.Second)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		err = <-updated
		require.ErrorIs(t, err, locker.ErrClosed)
		require.NotErrorIs(t, err, context.Canceled)
		require.NoError(t, lease.Unlock(t.Context()))
		requireIdle(t, l, b, "k")
	})
}

// Loads, refreshes and Updates of many keys go on while the Loader is closed: each gets its value or ErrClosed, and
// when Close has returned every lock is free and stays so.
func TestCloseStorm(t *testing.T) {
	for seed := range 20 {
		synctest.Test(t, func(t *testing.T) {
			b := newBackend()
			p := b.process()
			p.onGet = func(context.Context, string) error { time.Sleep(time.Millisecond); return nil }
			l := NewLoader(p.locker(), p.deleteCache(), p.slowly(time.Duration(seed)*5*time.Millisecond, "fresh"))
			for i := range 10 {
				b.stale[strconv.Itoa(i)] = "stale"
			}
			var wg sync.WaitGroup
			for i := range 50 {
				wg.Go(func() {
					for n := i; ; n++ {
						key := strconv.Itoa(n % 20)
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n%50+1)*time.Millisecond)
						var err error
						if n%7 == 0 {
							err = l.Update(ctx, key, func(context.Context) error {
								time.Sleep(time.Duration(n%10) * time.Millisecond)
								return nil
							})
						} else {
							_, err = l.Load(ctx, key)
						}
						ended := ctx.Err()
						cancel()
						if errors.Is(err, locker.ErrClosed) {
							return
						}
						if err != nil && ended == nil {
							assert.NoError(t, err)
							return
						}
					}
				})
			}
			time.Sleep(time.Duration(200+seed) * time.Millisecond)
			patience := time.Minute
			if seed%2 == 0 {
				patience = 20 * time.Millisecond
			}
			took, err := closeWithin(t, l, patience)
			if err != nil {
				require.ErrorIs(t, err, context.DeadlineExceeded)
			}
			require.LessOrEqual(t, took, patience+defaultOptions.backendTimeout)
			for range 2 {
				for i := range 20 {
					requireFree(t, b, strconv.Itoa(i))
				}
				wg.Wait()
				time.Sleep(time.Minute)
			}
			requireIdle(t, l, b, "0")
		})
	}
}
