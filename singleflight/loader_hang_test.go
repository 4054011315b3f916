package singleflight

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/golockers/locker"
)

// callers counts how the calls of many callers with the same patience ended.
type callers struct {
	served, failed int
	lastFailure    time.Duration // when the last that was not served began, from the first one's begin
}

// callFor starts callers for the time d, with a pause of every in between, and waits for them.
func callFor(l *Loader[string], key func(i int) string, patience, every, d time.Duration) (c callers) {
	start := time.Now()
	type end struct {
		began time.Duration
		err   error
	}
	ends := make(chan end)
	n := int(d / every)
	for i := range n {
		go func() {
			time.Sleep(time.Duration(i) * every)
			began := time.Since(start)
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			_, err := l.Load(ctx, key(i))
			ends <- end{began, err}
		}()
	}
	for range n {
		if e := <-ends; e.err == nil {
			c.served++
		} else {
			c.failed++
			c.lastFailure = max(c.lastFailure, e.began)
		}
	}
	return c
}

// A backend hangs, and no caller has the time to see that. All that begin a backend timeout and a quarter
// later are served by the source, whichever backend it is and whether or not it honors contexts.
func TestLoadHangsForImpatientCallers(t *testing.T) {
	stuck := make(chan struct{})
	honoring := func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }
	ignoring := func(context.Context, string) error { <-stuck; return errAnswered }
	for _, keys := range []int{1, 1000} {
		for _, patience := range []time.Duration{100 * time.Millisecond, 900 * time.Millisecond, 1900 * time.Millisecond} {
			for name, sabotage := range map[string]func(p *fakeProcess){
				"cache":                      func(p *fakeProcess) { p.onGet = honoring },
				"cache that ignores context": func(p *fakeProcess) { p.onGet = ignoring },
				"locks":                      func(p *fakeProcess) { p.onAcquire = honoring },
				"locks, a release as well": func(p *fakeProcess) {
					p.onAcquire, p.onRelease = honoring, hang
				},
				"both": func(p *fakeProcess) {
					p.onGet, p.onAcquire, p.onRelease = honoring, honoring, hang
					p.onSet = func(ctx context.Context) error { return honoring(ctx, "") }
				},
			} {
				t.Run(fmt.Sprintf("%s, %d keys, %v", name, keys, patience), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						stuck = make(chan struct{})
						b := newBackend()
						p := b.process()
						sabotage(p)
						l := NewLoader(p.locker(), p.cache(), p.slowly(10*time.Millisecond, "fresh"))
						c := callFor(l, func(i int) string { return strconv.Itoa(i % keys) }, patience,
							10*time.Millisecond, 10*time.Second)
						t.Logf("%+v", c)
						require.LessOrEqual(t, c.lastFailure, 2500*time.Millisecond, "%+v", c)
						require.GreaterOrEqual(t, c.served, 740)
						close(stuck)
						time.Sleep(time.Minute)
					})
				})
			}
		}
	}
}

// A caller whose deadline is nearer than the backend's timeout is still in time for the source's value.
func TestLoadHangsForOneCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newBackend().process()
		p.onGet = func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }
		l := NewLoader(p.locker(), p.cache(), p.slowly(10*time.Millisecond, "fresh"))
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		v, err := l.Load(ctx, "k")
		require.NoError(t, err)
		require.Equal(t, "fresh", v)
	})
}

// A backend that is back is used again, by the next callers after a pause.
func TestLoadBackendComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		var down atomic.Bool
		down.Store(true)
		p.onGet = func(ctx context.Context, _ string) error {
			if down.Load() {
				<-ctx.Done()
			}
			return ctx.Err()
		}
		l := NewLoader(p.locker(), p.cache(), p.slowly(10*time.Millisecond, "fresh"))
		key := func(i int) string { return strconv.Itoa(i % 10) }
		callFor(l, key, 100*time.Millisecond, 10*time.Millisecond, 10*time.Second)
		down.Store(false)
		time.Sleep(3 * time.Second) // a probe that began before, and a pause
		callFor(l, key, 100*time.Millisecond, 10*time.Millisecond, time.Second)
		p.reset()
		c := callFor(l, key, 100*time.Millisecond, 10*time.Millisecond, time.Second)
		require.Equal(t, 100, c.served)
		require.Zero(t, p.count("source"))
		requireIdle(t, l, b, "0")
	})
}

// Entries that can be neither decoded nor replaced cost only their own keys coordination.
func TestLoadDamagedEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const processes, keys, rounds = 10, 20, 10
		b := newBackend()
		var sources atomic.Int32
		var ls []*Loader[string]
		for range processes {
			p := b.process()
			p.onGet = func(_ context.Context, key string) error {
				if key == "damaged 1" || key == "damaged 2" {
					return errAnswered
				}
				return nil
			}
			ls = append(ls, NewLoader(p.locker(), p.cache(), func(_ context.Context, key string) (string, error) {
				if key[0] != 'd' {
					sources.Add(1)
				}
				time.Sleep(20 * time.Millisecond)
				return "fresh", nil
			}))
		}
		for range rounds {
			var cs []<-chan loaded
			for _, l := range ls {
				for _, key := range []string{"damaged 1", "damaged 2"} {
					cs = append(cs, goLoad(t.Context(), l, key))
				}
			}
			synctest.Wait()
			for k := range keys {
				for _, l := range ls {
					cs = append(cs, goLoad(t.Context(), l, strconv.Itoa(k)))
				}
			}
			for _, c := range cs {
				require.NoError(t, (<-c).err)
			}
			synctest.Wait()
			for k := range keys {
				b.remove(strconv.Itoa(k))
			}
		}
		require.EqualValues(t, keys*rounds, sources.Load())
	})
}

// A source never returns and ignores its context, and no caller waits for long. After MaxHold and the ttl the
// key is loaded again.
func TestLoadNeverReturnsForImpatientCallers(t *testing.T) {
	for _, tc := range []struct{ patience, every time.Duration }{
		{300 * time.Millisecond, 50 * time.Millisecond},
		{5 * time.Second, 50 * time.Millisecond},
		{900 * time.Millisecond, 901 * time.Millisecond}, // one after the other
		{100 * time.Millisecond, 500 * time.Millisecond},
	} {
		t.Run(fmt.Sprintf("%v every %v", tc.patience, tc.every), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBackend()
				p := b.process()
				stuck := make(chan struct{})
				var calls atomic.Int32
				l := NewLoader(p.locker(), p.cache(), func(context.Context, string) (string, error) {
					if calls.Add(1) == 1 {
						<-stuck
					}
					return "fresh", nil
				}, WithLockTTL(3*time.Second), WithMaxHold(10*time.Second))
				c := callFor(l, func(int) string { return "k" }, tc.patience, tc.every, 3*time.Minute)
				require.Less(t, c.lastFailure, 15*time.Second, "%+v", c)
				require.EqualValues(t, 2, calls.Load())
				close(stuck)
				requireIdle(t, l, b, "k")
			})
		})
	}
}

// A source that always hangs is called once for each MaxHold in a process, however many callers there are.
func TestLoadStuckSourcesAddUpSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		stuck := make(chan struct{})
		var calls atomic.Int32
		l := NewLoader(p.locker(), p.cache(), func(context.Context, string) (string, error) {
			calls.Add(1)
			<-stuck
			return "fresh", nil
		}, WithLockTTL(3*time.Second), WithMaxHold(10*time.Second), WithMaxWait(time.Second))
		callFor(l, func(int) string { return "k" }, 2*time.Second, 100*time.Millisecond, 100*time.Second)
		require.LessOrEqual(t, calls.Load(), int32(11))
		require.GreaterOrEqual(t, calls.Load(), int32(7))
		close(stuck)
		time.Sleep(time.Minute)
		requireIdle(t, l, b, "k")
	})
}

// A healthy backend on which one key's server hangs goes on to coordinate the other keys.
func TestLoadOneOfSeveralServersHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		p.onAcquire = func(ctx context.Context, key string) error {
			if key == "hangs" {
				<-ctx.Done()
			}
			return ctx.Err()
		}
		l := NewLoader(p.locker(), p.cache(), func(_ context.Context, key string) (string, error) {
			if key == "hangs" {
				return "", context.DeadlineExceeded // or it would be a hit
			}
			return "fresh", nil
		})
		done := make(chan callers)
		go func() {
			done <- callFor(l, func(int) string { return "hangs" }, time.Second, 50*time.Millisecond, 20*time.Second)
		}()
		callFor(l, strconv.Itoa, time.Second, 20*time.Millisecond, 20*time.Second)
		<-done
		require.GreaterOrEqual(t, p.count("acquire"), 980, "the other keys, but for hash collisions, are loaded under their locks")
		require.LessOrEqual(t, p.count("acquire"), 1030, "the one key's lock is tried once in a while")
		time.Sleep(time.Minute)
		lease, err := locker.TryLock(t.Context(), b.locks, "0", time.Second)
		require.NoError(t, err)
		require.NoError(t, lease.Unlock(t.Context()))
	})
}

// A caller that reads the cache for itself, after Forget, also leaves promptly, and a cache that never returns is
// left alone soon after.
func TestLoadLeavesAfterForget(t *testing.T) {
	for name, canStale := range map[string]bool{"get": false, "stale": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBackend()
				p := b.process()
				stuck := make(chan struct{})
				if canStale {
					p.onStale = func(context.Context) error { <-stuck; return nil }
				} else {
					p.onGet = func(context.Context, string) error { <-stuck; return nil }
				}
				l := NewLoader(p.locker(), Cache[string](p.staleCache()), p.slowly(0, "fresh"),
					WithBackendTimeout(time.Second))
				load := func() loaded {
					ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
					defer cancel()
					return <-goLoad(ctx, l, "k")
				}
				l.Forget("k")
				require.Equal(t, loaded{"", context.DeadlineExceeded, 300 * time.Millisecond}, load())
				time.Sleep(250 * time.Millisecond)
				require.Equal(t, loaded{"fresh", nil, 0}, load())
				close(stuck)
				time.Sleep(time.Minute)
				requireIdle(t, l, b, "k")
			})
		})
	}
}
