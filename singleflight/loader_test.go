package singleflight

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golockers/locker"
)

func TestLoadInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		l := NewLoader(p.locker(), p.cache(), p.slowly(time.Second, "fresh"))
		v, err := l.Load(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, "fresh", v)
		synctest.Wait()
		require.Equal(t, []string{"get", "acquire", "get", "source", "set", "release"}, p.all())
		stored, _ := b.get("k")
		require.Equal(t, "fresh", stored)

		p.reset()
		v, err = l.Load(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, "fresh", v)
		require.Equal(t, []string{"get"}, p.all(), "a hit is one read")
		requireIdle(t, l, b, "k")
	})
}

func TestLoadJoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		l := NewLoader(p.locker(), p.cache(), p.slowly(time.Second, "fresh"))
		var cs []<-chan loaded
		for range 100 {
			cs = append(cs, goLoad(t.Context(), l, "k"))
		}
		for _, c := range cs {
			require.Equal(t, loaded{"fresh", nil, time.Second}, <-c)
		}
		synctest.Wait()
		require.Equal(t, []string{"get", "acquire", "get", "source", "set", "release"}, p.all())
		requireIdle(t, l, b, "k")
	})
}

// A value that was stored between the read and the lock is found under the lock.
func TestLoadReadsAgainUnderTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		p.onAcquire = func(context.Context, string) error { b.set("k", "stored meanwhile"); return nil }
		l := NewLoader(p.locker(), p.cache(), p.slowly(time.Second, "fresh"))
		v, err := l.Load(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, "stored meanwhile", v)
		synctest.Wait()
		require.Equal(t, []string{"get", "acquire", "get", "release"}, p.all())
		requireIdle(t, l, b, "k")
	})
}

// A process that does not get the lock waits for the value: it takes five requests, and has the value at the release.
func TestLoadWaitsForValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p, q := b.process(), b.process()
		first := NewLoader(p.locker(), p.cache(), p.slowly(900*time.Millisecond, "fresh"))
		second := NewLoader(q.locker(), q.cache(), q.slowly(0, "must not load"))
		a := goLoad(t.Context(), first, "k")
		synctest.Wait()
		var cs []<-chan loaded
		for range 50 {
			cs = append(cs, goLoad(t.Context(), second, "k"))
		}
		for _, c := range append(cs, a) {
			require.Equal(t, loaded{"fresh", nil, 900 * time.Millisecond}, <-c)
		}
		require.Equal(t, []string{"get", "acquire", "watch", "acquire", "get"}, q.all())
		requireIdle(t, first, b, "k")
		requireIdle(t, second, b, "k")
	})
}

// The value is loaded once in each round, and the number of requests does not depend on that of the callers.
func TestLoadOnceInTheFleet(t *testing.T) {
	const processes, goroutines, rounds = 8, 50, 100
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		var sources atomic.Int32
		var ps []*fakeProcess
		var ls []*Loader[string]
		for range processes {
			p := b.process()
			ps = append(ps, p)
			ls = append(ls, NewLoader(p.locker(), p.cache(), func(_ context.Context, key string) (string, error) {
				time.Sleep(20 * time.Millisecond)
				return fmt.Sprintf("%s %d", key, sources.Add(1)), nil
			}))
		}
		for round := 1; round <= rounds; round++ {
			var wg sync.WaitGroup
			for _, l := range ls {
				for range goroutines {
					wg.Go(func() {
						v, err := l.Load(t.Context(), "hot")
						assert.NoError(t, err)
						assert.Equal(t, fmt.Sprintf("hot %d", round), v)
					})
				}
			}
			wg.Wait()
			synctest.Wait()
			require.EqualValues(t, round, sources.Load(), "more than one load")
			requests := 0
			for _, p := range ps {
				requests += len(p.all())
				p.reset()
			}
			require.LessOrEqual(t, requests, 5*processes+4)
			b.remove("hot")
		}
	})
}

func TestLoadPolls(t *testing.T) {
	for _, tc := range []struct {
		name  string
		watch func(context.Context) (<-chan struct{}, error)
	}{
		{"no watcher", nil},
		{"unsupported", func(context.Context) (<-chan struct{}, error) { return nil, errors.ErrUnsupported }},
		{"watch fails", func(context.Context) (<-chan struct{}, error) {
			return make(chan struct{}), errors.New("broken")
		}},
		{"watch hangs", func(ctx context.Context) (<-chan struct{}, error) { <-ctx.Done(); return nil, ctx.Err() }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBackend()
				p, q := b.process(), b.process()
				first := NewLoader(p.locker(), p.cache(), p.slowly(5*time.Second, "fresh"))
				q.onWatch = tc.watch
				var ql locker.Locker = q.locker()
				if tc.watch == nil {
					ql = pollLocker{q}
				}
				second := NewLoader(ql, q.cache(), q.slowly(0, "must not load"))
				a := goLoad(t.Context(), first, "k")
				synctest.Wait()
				got := <-goLoad(t.Context(), second, "k")
				require.NoError(t, got.err)
				require.Equal(t, "fresh", got.v)
				require.GreaterOrEqual(t, got.took, 5*time.Second)
				require.Less(t, got.took, 5*time.Second+2*lastPoll)
				require.Less(t, q.count("get"), 200, "polls grow rarer")
				require.Equal(t, []string{"get", "acquire", "get", "acquire", "get"}, without(q.all(), "watch")[:5])
				<-a
				requireIdle(t, second, b, "k")
			})
		})
	}
}

// A wake-up without a release costs a read and an attempt.
func TestLoadSpuriousWakeUps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p, q := b.process(), b.process()
		first := NewLoader(p.locker(), p.cache(), p.slowly(900*time.Millisecond, "fresh"))
		q.onWatch = func(ctx context.Context) (<-chan struct{}, error) {
			c := make(chan struct{}, 1)
			go func() {
				time.Sleep(100 * time.Millisecond)
				c <- struct{}{}
				time.Sleep(850 * time.Millisecond) // after the value is there
				c <- struct{}{}
			}()
			return c, nil
		}
		second := NewLoader(q.locker(), q.cache(), q.slowly(0, "must not load"))
		a := goLoad(t.Context(), first, "k")
		synctest.Wait()
		require.Equal(t, "fresh", (<-goLoad(t.Context(), second, "k")).v)
		require.Equal(t, "get acquire watch acquire get acquire get", strings.Join(q.all(), " "))
		<-a
	})
}

// The holder vanishes: the lock ends with its ttl, which wakes no waiter.
func TestLoadHolderVanishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		_, err := locker.TryLock(t.Context(), b.locks, "k", 3*time.Second)
		require.NoError(t, err)
		p := b.process()
		l := NewLoader(p.locker(), p.cache(), p.slowly(0, "fresh"))
		got := <-goLoad(t.Context(), l, "k")
		require.NoError(t, got.err)
		require.Equal(t, "fresh", got.v)
		require.GreaterOrEqual(t, got.took, 3*time.Second)
		require.Less(t, got.took, 3*time.Second+2*safetyPoll)
		require.LessOrEqual(t, p.count("acquire"), 6, "a poll each second or less often")
		requireIdle(t, l, b, "k")
	})
}

func TestLoadSourcePanics(t *testing.T) {
	for _, tc := range []struct {
		name string
		fail func()
	}{
		{"panic", func() { panic("boom") }},
		{"Goexit", runtime.Goexit},
	} {
		t.Run(tc.name, func(t *testing.T) {
			contexts(t, func(t *testing.T, ctx context.Context) {
				b := newBackend()
				p, q := b.process(), b.process()
				first := NewLoader(p.locker(), p.cache(), func(context.Context, string) (string, error) {
					time.Sleep(time.Second)
					tc.fail()
					return "", nil
				})
				second := NewLoader(q.locker(), q.cache(), q.slowly(0, "fresh"))
				ended := make(chan any, 1)
				go func() {
					defer func() { ended <- recover() }()
					first.Load(ctx, "k")
					t.Error("Load returned")
				}()
				synctest.Wait()
				joined := goLoad(t.Context(), first, "k")
				elsewhere := goLoad(t.Context(), second, "k")
				r, j := <-ended, <-joined
				if tc.name == "panic" {
					require.Equal(t, "boom", r)
					require.ErrorAs(t, j.err, new(*PanicError))
				} else {
					require.Nil(t, r)
					require.ErrorAs(t, j.err, new(*exitError))
				}
				require.Equal(t, loaded{"fresh", nil, time.Second}, <-elsewhere, "the lock was released at once")
				requireIdle(t, first, b, "k")
			})
		})
	}
}

func TestLoadSourceCallsItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		var l *Loader[string]
		l = NewLoader(p.locker(), p.cache(), func(ctx context.Context, key string) (string, error) {
			if key == "inner" {
				return "inner value", nil
			}
			if inner, err := l.Load(ctx, "inner"); err != nil || inner != "inner value" {
				t.Errorf("another key within the source: %q, %v", inner, err)
			}
			return l.Load(ctx, key)
		})
		_, err := l.Load(t.Context(), "k")
		require.EqualError(t, err, `singleflight: the call for "k" calls itself`)
		requireIdle(t, l, b, "k")
		requireIdle(t, l, b, "inner")
	})
}

// A waiter that goes to the source itself has no use for wake-ups any more.
func TestLoadEndsWatching(t *testing.T) {
	for _, tc := range []struct {
		name string
		ttl  time.Duration
	}{
		{"lock", time.Second},
		{"MaxWait", time.Hour},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBackend()
				_, err := locker.TryLock(t.Context(), b.locks, "k", tc.ttl)
				require.NoError(t, err)
				p := b.process()
				var watching context.Context
				p.onWatch = func(ctx context.Context) (<-chan struct{}, error) {
					watching = ctx
					return b.locks.Watch(ctx, "k")
				}
				l := NewLoader(p.locker(), p.cache(), func(ctx context.Context, _ string) (string, error) {
					assert.Error(t, watching.Err())
					return "fresh", ctx.Err()
				}, WithMaxWait(10*time.Second))
				v, err := l.Load(t.Context(), "k")
				require.NoError(t, err)
				require.Equal(t, "fresh", v)
			})
		})
	}
}

// A waiter that was served has no use for them either.
func TestLoadServedEndsWatching(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p, q := b.process(), b.process()
		var watching context.Context
		q.onWatch = func(ctx context.Context) (<-chan struct{}, error) {
			watching = ctx
			return b.locks.Watch(ctx, "k")
		}
		loading := goLoad(t.Context(), NewLoader(p.locker(), p.cache(), p.slowly(time.Second, "fresh")), "k")
		synctest.Wait()
		v, err := NewLoader(q.locker(), q.cache(), q.slowly(0, "not called")).Load(context.Background(), "k")
		require.NoError(t, err)
		require.Equal(t, "fresh", v)
		require.Equal(t, loaded{"fresh", nil, time.Second}, <-loading)
		require.Error(t, watching.Err())
	})
}

func TestLoadCallersLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		l := NewLoader(p.locker(), p.cache(), p.slowly(time.Second, "fresh"))

		// The first caller leaves, which does not affect the others.
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		first := goLoad(ctx, l, "k")
		synctest.Wait()
		second := goLoad(t.Context(), l, "k")
		require.Equal(t, loaded{"", context.DeadlineExceeded, 100 * time.Millisecond}, <-first)
		require.Equal(t, loaded{"fresh", nil, time.Second}, <-second)
		require.Equal(t, 1, p.count("source"))

		// All callers leave: the load goes on, and is stored.
		synctest.Wait()
		b.remove("k")
		p.reset()
		ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		require.Equal(t, loaded{"", context.DeadlineExceeded, 100 * time.Millisecond}, <-goLoad(ctx, l, "k"))
		time.Sleep(100 * time.Millisecond)
		ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		require.Equal(t, context.DeadlineExceeded, (<-goLoad(ctx, l, "k")).err)
		require.Equal(t, loaded{"fresh", nil, 700 * time.Millisecond}, <-goLoad(t.Context(), l, "k"), "it is joined")
		require.Equal(t, 1, p.count("source"))
		requireIdle(t, l, b, "k")
		stored, _ := b.get("k")
		require.Equal(t, "fresh", stored)
	})
}

// A waiter whose callers have all left starts nothing more.
func TestLoadWaiterLeaves(t *testing.T) {
	for _, watcher := range []bool{false, true} {
		t.Run(fmt.Sprintf("watcher %t", watcher), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBackend()
				lease, err := locker.TryLock(t.Context(), b.locks, "k", time.Hour)
				require.NoError(t, err)
				p := b.process()
				pl := p.locker()
				if !watcher {
					pl = pollLocker{p}
				}
				l := NewLoader(pl, p.cache(), p.slowly(0, "must not load"))
				ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
				defer cancel()
				got := <-goLoad(ctx, l, "k")
				require.Equal(t, loaded{"", context.DeadlineExceeded, 400 * time.Millisecond}, got)
				synctest.Wait()
				calls := p.all()
				if watcher {
					require.Equal(t, []string{"get", "acquire", "watch", "acquire"}, calls)
				}
				time.Sleep(time.Minute)
				require.Equal(t, calls, p.all())
				require.NoError(t, lease.Unlock(t.Context()))
				requireIdle(t, l, b, "k")
			})
		})
	}
}

// A process that waited too long loads by itself, and leaves alone what the holder may store.
func TestLoadMaxWait(t *testing.T) {
	for _, adder := range []bool{false, true} {
		t.Run(fmt.Sprintf("adder %t", adder), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBackend()
				lease, err := locker.TryLock(t.Context(), b.locks, "k", time.Hour)
				require.NoError(t, err)
				p := b.process()
				cache := p.cache()
				if adder {
					cache = p.addCache()
				}
				l := NewLoader(p.locker(), cache, p.slowly(time.Second, "own"), WithMaxWait(5*time.Second))
				var cs []<-chan loaded
				for range 10 {
					cs = append(cs, goLoad(t.Context(), l, "k"))
				}
				for _, c := range cs {
					require.Equal(t, loaded{"own", nil, 6 * time.Second}, <-c)
				}
				require.Equal(t, 1, p.count("source"))
				require.Zero(t, p.count("set"))
				stored, _ := b.get("k")
				if adder {
					require.Equal(t, "own", stored)
				} else {
					require.Empty(t, stored)
				}
				require.NoError(t, lease.Unlock(t.Context()))
				requireIdle(t, l, b, "k")
			})
		})
	}
}

// After Forget no caller joins a load that began before, and its value is not stored, neither during a new load nor
// after it.
func TestLoadForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		var truth atomic.Value
		truth.Store("old")
		l := NewLoader(p.locker(), p.cache(), func(context.Context, string) (string, error) {
			v := truth.Load().(string)
			time.Sleep(time.Second)
			return v, nil
		})
		l.Forget("k") // nothing to forget
		before := goLoad(t.Context(), l, "k")
		time.Sleep(500 * time.Millisecond)
		truth.Store("new")
		l.Forget("k")
		b.remove("k")
		after := goLoad(t.Context(), l, "k")
		require.Equal(t, loaded{"old", nil, time.Second}, <-before)
		require.Equal(t, loaded{"new", nil, 1500 * time.Millisecond}, <-after)
		synctest.Wait()
		stored, _ := b.get("k")
		require.Equal(t, "new", stored)
		require.Equal(t, 1, p.count("set"))
		requireIdle(t, l, b, "k")
	})
}

func TestLoadMistakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newBackend().process()
		source := p.slowly(0, "v")
		for want, l := range map[string]*Loader[string]{
			"nil Loader": nil,
			"nil Locker": NewLoader(nil, p.cache(), source),
			"nil Cache":  NewLoader(p.locker(), nil, source),
			"nil source": NewLoader[string](p.locker(), p.cache(), nil),
		} {
			v, err := l.Load(t.Context(), "k")
			require.EqualError(t, err, `singleflight: load "k": `+want)
			require.Empty(t, v)
			l.Forget("k")
		}
		_, err := new(Loader[string]).Load(t.Context(), "k")
		require.Error(t, err)

		l := NewLoader(p.locker(), p.cache(), source)
		_, err = l.Load(t.Context(), "")
		require.ErrorIs(t, err, locker.ErrInvalidKey)
		_, err = l.Load(t.Context(), strings.Repeat("k", 1025))
		require.ErrorIs(t, err, locker.ErrInvalidKey)
		require.Less(t, len(err.Error()), 200)
		require.Empty(t, p.all(), "nothing was asked")
		_, err = l.Load(t.Context(), strings.Repeat("k", 1024))
		require.NoError(t, err)

		p.reset()
		l = NewLoader(p.locker(), p.cache(), source, WithLockTTL(time.Microsecond))
		_, err = l.Load(t.Context(), "k2")
		require.ErrorIs(t, err, locker.ErrInvalidTTL)
		require.Zero(t, p.count("source"), "a mistake is not a dead backend")

		l = NewLoader(p.locker(), p.cache(), source, WithLockTTL(0), WithMaxHold(-1), WithMaxWait(0),
			WithBackendTimeout(0), WithOutagePause(-1), WithMaxRefreshes(0))
		require.Equal(t, defaultOptions, l.loaderOptions)

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		p.reset()
		_, err = l.Load(ctx, "k3")
		require.Equal(t, context.Canceled, err)
		require.Empty(t, p.all())
	})
}
