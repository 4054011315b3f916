package singleflight

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/golockers/locker/lockertest"
	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/redigo"
	"github.com/golockers/locker/redisv9"
	"github.com/golockers/locker/semaphore"
	"github.com/golockers/locker/singleflight/slots"
)

// The longest durations are options like any other: nothing overflows under contention, in an
// outage or in an Update.
func TestLongestDurations(t *testing.T) {
	all := map[string]LoaderOption{
		"MaxHold":        WithMaxHold(math.MaxInt64),
		"LockTTL":        WithLockTTL(math.MaxInt64),
		"MaxWait":        WithMaxWait(math.MaxInt64),
		"BackendTimeout": WithBackendTimeout(math.MaxInt64),
		"OutagePause":    WithOutagePause(math.MaxInt64),
	}
	all["all"] = func(o *loaderOptions) {
		for name, opt := range all {
			if name != "all" {
				opt(o)
			}
		}
	}
	for name, opt := range all {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBackend()
				p, q := b.process(), b.process()
				l := NewLoader(p.locker(), p.deleteCache(), p.slowly(time.Second, "fresh"), opt)
				m := NewLoader(pollLocker{q}, q.deleteCache(), q.slowly(time.Second, "fresh"), opt)
				one, other := goLoad(t.Context(), l, "k"), goLoad(t.Context(), m, "k")
				require.NoError(t, (<-one).err)
				require.NoError(t, (<-other).err)
				synctest.Wait()
				require.Equal(t, 1, p.count("source")+q.count("source"))

				for _, l := range []*Loader[string]{l, m} {
					require.NoError(t, l.Update(t.Context(), "k", func(context.Context) error { return nil }))
				}
				_, ok := b.get("k")
				require.False(t, ok)

				if name != "BackendTimeout" && name != "all" { // with those an outage of a year is none
					p.onGet = func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }
					for range 2 {
						v, err := l.Load(t.Context(), "other")
						require.NoError(t, err)
						require.Equal(t, "fresh", v)
					}
					time.Sleep(time.Minute) // a probe ends
				}
				require.NoError(t, m.Close(t.Context()))
				require.NoError(t, l.Close(t.Context()))
			})
		})
	}
}

// panicky is a cache whose methods panic where it says so.
type panicky struct {
	addCache
	in   string
	over *atomic.Bool
}

func (c panicky) fail(method string) {
	if c.in == method && !c.over.Load() {
		panic(errors.New("in " + method))
	}
}

func (c panicky) Set(ctx context.Context, key, v string) error {
	c.fail("Set")
	return c.addCache.Set(ctx, key, v)
}

func (c panicky) Add(ctx context.Context, key, v string) (bool, error) {
	c.fail("Add")
	return c.addCache.Add(ctx, key, v)
}

func (c panicky) Delete(_ context.Context, key string) error {
	c.fail("Delete")
	c.backend.remove(key)
	return nil
}

// panickyKeeper is a cache one of whose methods panics.
type panickyKeeper struct {
	*memory.Cache[string]
	in string
}

func (c panickyKeeper) Look(ctx context.Context, all ...*slots.Slot[string]) error {
	if c.in == "Look" {
		panic(errors.New("in Look"))
	}
	return c.Cache.Look(ctx, all...)
}

func (c panickyKeeper) Put(ctx context.Context, all ...*slots.Slot[string]) error {
	if c.in == "Put" {
		panic(errors.New("in Put"))
	}
	return c.Cache.Put(ctx, all...)
}

// A panic of the cache while it stores or deletes is an error, and not the end of the process.
func TestCachePanics(t *testing.T) {
	t.Run("storing", func(t *testing.T) {
		for _, method := range []string{"Set", "Add"} {
			synctest.Test(t, func(t *testing.T) {
				b := newBackend()
				p := b.process()
				if method == "Add" {
					p.onAcquire = func(context.Context, string) error { return errors.New("down") }
				}
				var mu sync.Mutex
				var events []LoadEvent
				l := NewLoader(p.locker(), panicky{p.addCache(), method, new(atomic.Bool)}, p.slowly(time.Second, "fresh"),
					WithLoadObserver(func(_ context.Context, e LoadEvent) {
						mu.Lock()
						defer mu.Unlock()
						if e.Kind == StoreFailed {
							events = append(events, e)
						}
					}))
				v, err := l.Load(t.Context(), "k")
				require.NoError(t, err)
				require.Equal(t, "fresh", v)
				time.Sleep(10 * time.Second) // the cleanup of the failed attempt
				mu.Lock()
				defer mu.Unlock()
				require.Len(t, events, 1)
				requirePanic(t, events[0].Err, "in "+method)
				requireIdle(t, l, b, "k")
			})
		}
	})
	t.Run("deleting", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newBackend()
			p := b.process()
			c := panicky{p.addCache(), "Delete", new(atomic.Bool)}
			l := NewLoader(p.locker(), c, p.slowly(time.Second, "fresh"))
			err := l.Update(t.Context(), "k", func(context.Context) error { return nil })
			requirePanic(t, err, "in Delete")
			require.ErrorContains(t, err, "the old value could not be deleted")
			synctest.Wait()
			c.over.Store(true)
			time.Sleep(time.Minute)
			requireIdle(t, l, b, "k")
		})
	})
	t.Run("deleting later", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newBackend()
			p := b.process()
			down, c := errors.New("down"), panicky{p.addCache(), "Delete", new(atomic.Bool)}
			l := NewLoader(p.locker(), c, p.slowly(time.Second, "fresh"))
			requirePanic(t, l.Update(t.Context(), "k", func(context.Context) error { return down }), "in Delete")
			time.Sleep(10 * time.Second) // in the background, again and again
			require.NoError(t, l.Close(t.Context()))
		})
	})
	t.Run("a keeper", func(t *testing.T) {
		for _, fails := range []error{nil, errors.New("it failed")} {
			for _, in := range []string{"Put", "Look"} {
				for _, load := range []func(context.Context, *Loader[string]) error{
					func(ctx context.Context, l *Loader[string]) error { _, err := l.Load(ctx, "k"); return err },
					func(ctx context.Context, l *Loader[string]) error {
						_, err := l.LoadMany(ctx, []string{"k", "l"})
						return err
					},
				} {
					synctest.Test(t, func(t *testing.T) {
						m := memory.NewCache(memory.CacheConfig[string]{TTL: time.Hour})
						stored := make(chan LoadEvent, 10)
						l := NewLoader(memory.New(), panickyKeeper{m, in}, func(context.Context, string) (string, error) { return "v", fails },
							WithLoadObserver(func(_ context.Context, e LoadEvent) {
								if e.Kind == StoreFailed {
									stored <- e
								}
							}))
						if err := load(t.Context(), l); fails != nil {
							require.ErrorIs(t, err, fails)
						} else {
							require.NoError(t, err)
						}
						if in == "Put" && fails == nil {
							requirePanic(t, (<-stored).Err, "in Put")
						}
						require.NoError(t, l.Close(t.Context()))
					})
				}
			}
		}
	})
	t.Run("TTLOf of a nil pointer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			type user struct{ ttl time.Duration }
			cache := memory.NewCache(memory.CacheConfig[*user]{TTLOf: func(u *user) time.Duration { return u.ttl }})
			absent := func(context.Context, string) (*user, error) { return nil, nil }
			l := NewLoader(memory.New(), cache, absent)
			u, err := l.Load(t.Context(), "k")
			require.NoError(t, err)
			require.Nil(t, u)
			require.NoError(t, l.Close(t.Context()))
		})
	})
}

// panickyReader is a StaleCache whose reads take a second, and panic where it says so.
type panickyReader struct {
	staleCache
	in string
}

func (c panickyReader) Get(ctx context.Context, key string) (string, bool, error) {
	time.Sleep(time.Second)
	if c.in == "Get" {
		panic(errors.New("in Get"))
	}
	return c.staleCache.Get(ctx, key)
}

func (c panickyReader) Stale(ctx context.Context, key string) (string, bool, error) {
	time.Sleep(time.Second)
	panic(errors.New("in Stale"))
}

// A panic of the cache while it reads reaches the caller, and is not the end of the process when that has
// left.
func TestCachePanicsWhileReading(t *testing.T) {
	for _, in := range []string{"Get", "Stale"} {
		for _, forgotten := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				b := newBackend()
				p := b.process()
				l := NewLoader[string](p.locker(), panickyReader{p.staleCache(), in}, p.slowly(0, "unused"))
				if forgotten {
					l.Forget("k")
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
				defer cancel()
				_, err := l.Load(ctx, "k")
				require.Equal(t, context.DeadlineExceeded, err)
				time.Sleep(time.Minute)
				require.True(t, l.cacheBreaker.allows("k"), "it did answer")
				require.PanicsWithError(t, "in "+in, func() { _, _ = l.Load(t.Context(), "k") })
				requireIdle(t, l, b, "k")
			})
		}
	}
}

func requirePanic(t *testing.T, err error, text string) {
	t.Helper()
	var p *PanicError
	require.ErrorAs(t, err, &p)
	require.ErrorContains(t, p.Unwrap(), text)
	require.NotEmpty(t, p.Stack)
}

// Over a Locker that can never work, the first Load that misses says so.
func TestLockerThatNeverWorks(t *testing.T) {
	for name, c := range map[string]struct {
		l    locker.Locker
		want error
	}{
		"cohort":           {cohort.New(nil), locker.ErrInvalidLocker},
		"cohort of cohort": {cohort.New(cohort.New(nil)), locker.ErrInvalidLocker},
		"semaphore":        {semaphore.NewLocker(nil, 2), locker.ErrInvalidLocker},
		"no permits":       {semaphore.NewLocker(memory.New(), 0), locker.ErrInvalidLocker},
		"owner":            {cohort.New(memory.New(), cohort.WithOwner("a\nb")), locker.ErrInvalidToken},
		"observed":         {locker.Observed(nil, observerFunc(nil)), locker.ErrInvalidLocker},
		"no observer":      {locker.Observed(memory.New(), nil), locker.ErrInvalidLocker},
		"redisv9":          {redisv9.New(nil), locker.ErrInvalidLocker},
		"redigo":           {redigo.New(nil), locker.ErrInvalidLocker},
		"typed nil":        {(*memory.Locker)(nil), locker.ErrInvalidLocker},
		"cohort nil":       {(*cohort.Locker)(nil), locker.ErrInvalidLocker},
		"semaphore nil":    {(*semaphore.Locker)(nil), locker.ErrInvalidLocker},
		"lockertest nil":   {(*lockertest.Locker)(nil), locker.ErrInvalidLocker},
	} {
		t.Run(name, func(t *testing.T) {
			p := newBackend().process()
			l := NewLoader(c.l, p.deleteCache(), p.slowly(0, "fresh"))
			for range 2 {
				_, err := l.Load(t.Context(), "k")
				require.ErrorIs(t, err, c.want)
				require.ErrorIs(t, l.Update(t.Context(), "k", func(context.Context) error { return nil }), c.want)
			}
			require.Zero(t, p.count("source"))
		})
	}
}

// The same holds for a cache that can never work.
func TestCacheThatNeverWorks(t *testing.T) {
	for name, c := range map[string]Cache[string]{
		"client": redisv9.NewCache(nil, redisv9.CacheConfig[string]{TTL: time.Minute}),
		"ttl":    memory.NewCache(memory.CacheConfig[string]{}),
	} {
		t.Run(name, func(t *testing.T) {
			p := newBackend().process()
			_, err := NewLoader(p.locker(), c, p.slowly(0, "fresh")).Load(t.Context(), "k")
			require.ErrorIs(t, err, locker.ErrInvalidLocker)
			require.Zero(t, p.count("source"))
		})
	}
}
