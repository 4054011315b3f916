package singleflight

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/golockers/locker"
	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/singleflight/slots"
)

// source is a source whose value changes. It takes a second, and returns what was true when it was called.
type source struct{ truth atomic.Value }

func newSource() *source {
	s := new(source)
	s.truth.Store("old")
	return s
}

func (s *source) load(context.Context, string) (string, error) {
	v := s.truth.Load().(string)
	time.Sleep(time.Second)
	return v, nil
}

// change is what a caller does to change the source. between runs between Forget and the deletion.
func (s *source) change(l *Loader[string], b *fakeBackend, key string, between func()) {
	s.truth.Store("new")
	l.Forget(key)
	between()
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.values, key)
	delete(b.stale, key)
}

// A read of the cache that began between Forget and the deletion is not shared with callers that come after the
// deletion: neither a fresh value nor a stale one.
func TestForgetThenDeleteThenLoad(t *testing.T) {
	for _, where := range []string{"get", "stale"} {
		for _, after := range []time.Duration{time.Millisecond, time.Second} {
			t.Run(fmt.Sprint(where, " ", after), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newBackend()
					p := b.process()
					src := newSource()
					if where == "get" {
						b.set("k", "old")
					} else {
						b.stale["k"] = "old"
					}
					l := NewLoader(p.locker(), Cache[string](slowCache{p.staleCache(), where}), src.load)
					var before <-chan loaded
					src.change(l, b, "k", func() {
						time.Sleep(after)
						before = goLoad(t.Context(), l, "k")
						time.Sleep(time.Millisecond) // it has read, and does not have it yet
					})
					var cs []<-chan loaded
					for range 10 {
						cs = append(cs, goLoad(t.Context(), l, "k"))
						time.Sleep(20 * time.Millisecond)
					}
					for _, c := range cs {
						require.Equal(t, "new", (<-c).v)
					}
					require.Equal(t, "old", (<-before).v)
					synctest.Wait()
					stored, _ := b.get("k")
					require.Equal(t, "new", stored)
					time.Sleep(time.Second)
					requireIdle(t, l, b, "k")
				})
			})
		}
	}
}

// slowCache takes 100 ms from reading to answering.
type slowCache struct {
	staleCache
	where string
}

func (c slowCache) Get(ctx context.Context, key string) (string, bool, error) {
	v, ok, err := c.staleCache.Get(ctx, key)
	if c.where == "get" {
		time.Sleep(100 * time.Millisecond)
	}
	return v, ok, err
}

func (c slowCache) Stale(ctx context.Context, key string) (string, bool, error) {
	v, ok, err := c.staleCache.Stale(ctx, key)
	if c.where == "stale" {
		time.Sleep(100 * time.Millisecond)
	}
	return v, ok, err
}

// A Set that has begun does not land after the deletion: Forget waits for it, but only for a backend timeout.
func TestForgetWaitsForAStore(t *testing.T) {
	for _, tc := range []struct{ takes, waits time.Duration }{
		{300 * time.Millisecond, 300 * time.Millisecond},
		{time.Hour, 2 * time.Second},
	} {
		t.Run(tc.takes.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBackend()
				p := b.process()
				first := true
				p.onSet = func(context.Context) error {
					if first {
						first = false
						time.Sleep(tc.takes)
					}
					return nil
				}
				src := newSource()
				l := NewLoader(p.locker(), p.cache(), src.load)
				require.Equal(t, "old", (<-goLoad(t.Context(), l, "k")).v)
				synctest.Wait()
				require.Equal(t, 1, p.count("set"))
				start := time.Now()
				src.change(l, b, "k", func() {})
				require.Equal(t, tc.waits, time.Since(start))
				require.Equal(t, "new", (<-goLoad(t.Context(), l, "k")).v, "also if it is being stored")
				synctest.Wait()
				if tc.takes < time.Minute {
					stored, _ := b.get("k")
					require.Equal(t, "new", stored)
				}
				time.Sleep(2 * time.Hour)
				requireIdle(t, l, b, "k")
			})
		})
	}
}

// Callers load at random times around many changes. What each gets was true at the last deletion before its call, or
// later.
func TestForgetStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		pause := func(i, n int) { time.Sleep(time.Duration(i*7919%n) * time.Millisecond) }
		calls := atomic.Int64{}
		p.onGet = func(context.Context, string) error { pause(int(calls.Add(1)), 13); return nil }
		p.onSet = func(context.Context) error { pause(int(calls.Add(1)), 17); return nil }
		var truth, deleted atomic.Int64
		l := NewLoader(p.locker(), Cache[string](slowCache{p.staleCache(), "get"}), func(context.Context, string) (string, error) {
			v := truth.Load()
			pause(int(calls.Add(1)), 29)
			return fmt.Sprint(v), nil
		})
		end := time.Now().Add(20 * time.Second)
		done := make(chan error)
		for i := range 20 {
			go func() {
				for n := i; time.Now().Before(end); n++ {
					pause(n, 31)
					at := deleted.Load()
					v, err := l.Load(context.Background(), "k")
					var got int64
					if err == nil {
						_, err = fmt.Sscan(v, &got)
					}
					if err != nil || got < at {
						done <- fmt.Errorf("got %q, %v after %d was deleted", v, err, at)
						return
					}
				}
				done <- nil
			}()
		}
		go func() {
			for n := 1; time.Now().Before(end); n++ {
				v := truth.Add(1)
				l.Forget("k")
				pause(n, 11)
				b.remove("k")
				deleted.Store(v)
				pause(n, 67)
			}
			done <- nil
		}()
		for range 21 {
			require.NoError(t, <-done)
		}
		time.Sleep(time.Second)
		requireIdle(t, l, b, "k")
	})
}

// A flight that began after Forget, for a caller that did not know of it, reads nothing for others to share.
func TestForgetJustBeforeTheFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newBackend().process()
		l := NewLoader(p.locker(), p.cache(), p.slowly(0, "fresh"))
		l.Forget("k")
		_, err := l.load(t.Context(), "k", nil, false, false)
		require.Equal(t, errReadAlone, err)
		require.Empty(t, p.all())
	})
}

// A value that a load reads while it waits for another one, after Forget, is not shared either: the read may precede
// the deletion. Another process holds the lock until the old value is there.
func TestForgetWhileWaiting(t *testing.T) {
	for _, second := range []bool{false, true} {
		t.Run(fmt.Sprint("under the lock ", second), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBackend()
				p := b.process()
				src := newSource()
				l := NewLoader(p.locker(), Cache[string](slowCache{p.staleCache(), "get"}), src.load)
				var before <-chan loaded
				src.change(l, b, "k", func() {
					if second { // the read before is over, and the value comes between that and the lock
						p.onAcquire = func(context.Context, string) error {
							p.onAcquire = nil
							b.set("k", "old")
							return nil
						}
						before = goLoad(t.Context(), l, "k")
						time.Sleep(150 * time.Millisecond)
						return
					}
					lease, err := locker.TryLock(t.Context(), b.locks, "k", time.Minute)
					require.NoError(t, err)
					before = goLoad(t.Context(), l, "k")
					time.Sleep(500 * time.Millisecond)
					b.set("k", "old")
					require.NoError(t, lease.Unlock(t.Context()))
					time.Sleep(50 * time.Millisecond) // it has read, and does not have it yet
				})
				require.Equal(t, "new", (<-goLoad(t.Context(), l, "k")).v)
				require.Equal(t, "new", (<-before).v, "it looks again")
				time.Sleep(time.Second)
				requireIdle(t, l, b, "k")
			})
		})
	}
}

// The time in which the old value is to be deleted begins when Forget returns, however long it waited.
func TestForgetAfterASlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		first := true
		p.onSet = func(context.Context) error {
			if first {
				first = false
				time.Sleep(1950 * time.Millisecond)
			}
			return nil
		}
		src := newSource()
		l := NewLoader(p.locker(), Cache[string](slowCache{p.staleCache(), "get"}), src.load)
		require.Equal(t, "old", (<-goLoad(t.Context(), l, "k")).v)
		synctest.Wait()
		var before <-chan loaded
		src.change(l, b, "k", func() {
			time.Sleep(1900 * time.Millisecond)
			before = goLoad(t.Context(), l, "k")
			time.Sleep(50 * time.Millisecond) // it has read, and does not have it yet
		})
		require.Equal(t, "new", (<-goLoad(t.Context(), l, "k")).v)
		require.Equal(t, "old", (<-before).v)
		time.Sleep(time.Second)
		requireIdle(t, l, b, "k")
	})
}

// lateCache is a Keeper in which another process stores a value just before a load begins.
type lateCache struct{ *memory.Cache[string] }

func (c lateCache) Look(ctx context.Context, all ...*slots.Slot[string]) error {
	if all[0].Hold > 0 {
		_ = c.Set(ctx, all[0].Key, "from elsewhere")
	}
	return c.Cache.Look(ctx, all...)
}

// After Forget a load without the lock, too, looks again for a value that another process has stored since:
// it has no version with which to store one of its own.
func TestForgetThenLoadWithoutLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newBackend().process()
		p.onAcquire = func(context.Context, string) error { return errAnswered }
		cache := memory.NewCache(memory.CacheConfig[string]{TTL: time.Hour})
		l := NewLoader[string](p.locker(), lateCache{cache}, p.slowly(time.Second, "unused"))
		l.Forget("k")
		require.Equal(t, loaded{"from elsewhere", nil, 0}, <-goLoad(t.Context(), l, "k"))
		require.Zero(t, p.count("source"))
		require.NoError(t, l.Close(t.Context()))
	})
}

// A refresh that finds a fresh value a moment after Forget has not failed: it gives it to no caller.
func TestForgetThenRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		b.stale["k"] = "stale"
		p := b.process()
		p.onStale = func(context.Context) error { b.set("k", "from elsewhere"); return nil }
		work := make(chan LoadEvent, 1)
		l := NewLoader[string](p.locker(), p.staleCache(), p.slowly(0, "unused"), WithLoadObserver(func(_ context.Context, e LoadEvent) {
			if e.Kind >= Refreshed {
				work <- e
			}
		}))
		l.Forget("k")
		require.Equal(t, loaded{"stale", nil, 0}, <-goLoad(t.Context(), l, "k"))
		e := <-work
		require.NoError(t, e.Err)
		require.Equal(t, Refreshed, e.Kind)
		require.Zero(t, p.count("source"))
		requireIdle(t, l, b, "k")
	})
}
