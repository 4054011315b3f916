package singleflight

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/golockers/locker"
)

// A stale value is served at once, and one process of the fleet refreshes it.
func TestStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		b.stale["k"] = "stale"
		const processes = 4
		var ps []*fakeProcess
		var ls []*Loader[string]
		for range processes {
			p := b.process()
			ps = append(ps, p)
			ls = append(ls, NewLoader(p.locker(), p.staleCache(), p.slowly(time.Second, "fresh")))
		}
		var sources, acquires int
		for range 100 { // for nearly a second
			for i, l := range ls {
				// The refresh belongs to no caller: one that leaves does not end it.
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				require.Equal(t, loaded{"stale", nil, 0}, <-goLoad(ctx, l, "k"), i)
				cancel()
			}
			time.Sleep(9 * time.Millisecond)
		}
		time.Sleep(time.Second)
		for _, p := range ps {
			sources += p.count("source")
			acquires += p.count("acquire")
		}
		require.Equal(t, 1, sources)
		require.LessOrEqual(t, acquires, 1+(processes-1)*10, "who is refused leaves it alone for a moment")
		for _, l := range ls {
			require.Equal(t, loaded{"fresh", nil, 0}, <-goLoad(t.Context(), l, "k"))
			requireIdle(t, l, b, "k")
		}
	})
}

// The callers that were served may have left before the refresh has begun.
func TestStaleRefreshGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		l := NewLoader(p.locker(), p.staleCache(), p.slowly(time.Second, "fresh"))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		l.refresh(ctx, "k", 0)
		time.Sleep(2 * time.Second)
		stored, _ := b.get("k")
		require.Equal(t, "fresh", stored)
		requireIdle(t, l, b, "k")
	})
}

func TestStaleNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		l := NewLoader(p.locker(), p.staleCache(), p.slowly(time.Second, "fresh"))
		require.Equal(t, loaded{"fresh", nil, time.Second}, <-goLoad(t.Context(), l, "k"))
		synctest.Wait()
		require.Equal(t, []string{"get", "stale", "acquire", "get", "source", "set", "release"}, p.all())
	})
}

func TestStaleFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		p.onStale = func(context.Context) error { return errAnswered }
		l := NewLoader(p.locker(), p.staleCache(), p.slowly(0, "fresh"))
		require.Equal(t, loaded{"fresh", nil, 0}, <-goLoad(t.Context(), l, "k"))
		synctest.Wait()
		require.Equal(t, []string{"get", "stale", "source", "set"}, p.all())

		q := b.process()
		q.onStale = p.onStale
		b.remove("k")
		l = NewLoader(q.locker(), q.staleCache(), q.slowly(0, "fresh"), WithFailClosed())
		_, err := l.Load(t.Context(), "k")
		require.ErrorIs(t, err, errAnswered)
	})
}

// Another process refreshed it between the read and the lock.
func TestStaleRefreshedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		b.stale["k"] = "stale"
		p := b.process()
		p.onAcquire = func(context.Context, string) error { b.set("k", "fresh"); return nil }
		l := NewLoader(p.locker(), p.staleCache(), p.slowly(0, "must not load"))
		require.Equal(t, "stale", (<-goLoad(t.Context(), l, "k")).v)
		requireIdle(t, l, b, "k")
		require.Equal(t, []string{"get", "stale", "acquire", "get", "release"}, p.all())
	})
}

// A refresh that fails is repeated by the next miss; the lock is free at once.
func TestStaleRefreshFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		b.stale["k"] = "stale"
		p := b.process()
		l := NewLoader(p.locker(), p.staleCache(), func(context.Context, string) (string, error) {
			p.add("source")
			return "", errors.New("the database is down")
		})
		for i := 1; i <= 3; i++ {
			require.Equal(t, loaded{"stale", nil, 0}, <-goLoad(t.Context(), l, "k"))
			requireIdle(t, l, b, "k")
			require.Equal(t, i, p.count("source"))
		}
	})
}

// Without the lock each process refreshes for itself, or with WithFailClosed none does.
func TestStaleLockDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		b.stale["k"] = "stale"
		p := b.process()
		p.onAcquire = func(context.Context, string) error { return errDown }
		l := NewLoader(p.locker(), p.staleCache(), p.slowly(0, "fresh"), WithFailClosed())
		require.Equal(t, loaded{"stale", nil, 0}, <-goLoad(t.Context(), l, "k"))
		synctest.Wait()
		require.Zero(t, p.count("source"))
		l = NewLoader(p.locker(), p.staleCache(), p.slowly(0, "fresh"))
		require.Equal(t, loaded{"stale", nil, 0}, <-goLoad(t.Context(), l, "k"))
		synctest.Wait()
		require.Equal(t, loaded{"fresh", nil, 0}, <-goLoad(t.Context(), l, "k"))
		time.Sleep(time.Minute)
	})
}

// A refresh that never returns does not prevent the next one.
func TestStaleRefreshNeverReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		b.stale["k"] = "stale"
		p := b.process()
		stop := make(chan struct{})
		l := NewLoader(p.locker(), p.staleCache(), func(context.Context, string) (string, error) {
			p.add("source")
			if p.count("source") == 1 {
				<-stop
			}
			return "fresh", nil
		}, WithLockTTL(3*time.Second), WithMaxHold(10*time.Second))
		require.Equal(t, "stale", (<-goLoad(t.Context(), l, "k")).v)
		time.Sleep(14 * time.Second)
		require.Equal(t, "stale", (<-goLoad(t.Context(), l, "k")).v)
		synctest.Wait()
		require.Equal(t, "fresh", (<-goLoad(t.Context(), l, "k")).v)
		require.Equal(t, 2, p.count("source"))
		close(stop)
		requireIdle(t, l, b, "k")
	})
}

// A value that a refresh read before Forget is not stored.
func TestStaleForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		b.stale["k"] = "stale"
		p := b.process()
		l := NewLoader(p.locker(), p.staleCache(), p.slowly(time.Second, "read before"))
		require.Equal(t, "stale", (<-goLoad(t.Context(), l, "k")).v)
		time.Sleep(100 * time.Millisecond)
		l.Forget("k")
		time.Sleep(time.Second)
		_, cached := b.get("k")
		require.False(t, cached)
		requireIdle(t, l, b, "k")
	})
}

// The value stops being served as stale while it is refreshed: callers wait for the refresh.
func TestStaleEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		b.stale["k"] = "stale"
		p := b.process()
		l := NewLoader(p.locker(), p.staleCache(), p.slowly(time.Second, "fresh"))
		require.Equal(t, "stale", (<-goLoad(t.Context(), l, "k")).v)
		time.Sleep(500 * time.Millisecond)
		b.mu.Lock()
		delete(b.stale, "k")
		b.mu.Unlock()
		require.Equal(t, loaded{"fresh", nil, 500 * time.Millisecond}, <-goLoad(t.Context(), l, "k"))
		require.Equal(t, 1, p.count("source"))
		requireIdle(t, l, b, "k")
		_, err := locker.TryLock(t.Context(), b.locks, "k", time.Second)
		require.NoError(t, err)
	})
}

// A process refreshes a limited number of keys at once, and serves the others stale.
func TestStaleRefreshesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys = 20_000
		b := newBackend()
		for i := range keys {
			b.stale[strconv.Itoa(i)] = "stale"
		}
		p := b.process()
		var running, most atomic.Int32
		l := NewLoader(p.locker(), p.staleCache(), func(context.Context, string) (string, error) {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			time.Sleep(time.Second)
			return "fresh", nil
		})
		for i := range keys {
			v, err := l.Load(t.Context(), strconv.Itoa(i))
			require.NoError(t, err)
			require.Equal(t, "stale", v)
		}
		synctest.Wait()
		require.EqualValues(t, 64, running.Load())
		time.Sleep(2 * time.Second)
		for i := range keys {
			_, err := l.Load(t.Context(), strconv.Itoa(i))
			require.NoError(t, err)
		}
		time.Sleep(time.Minute)
		require.EqualValues(t, 64, most.Load())
		b.mu.Lock()
		require.Len(t, b.values, 128)
		b.mu.Unlock()
		requireIdle(t, l, b, "0")
	})
}

// The context of a refresh ends after MaxHold.
func TestStaleRefreshContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		b.stale["k"] = "stale"
		p := b.process()
		start := time.Now()
		var ended time.Duration
		l := NewLoader(p.locker(), p.staleCache(), func(ctx context.Context, _ string) (string, error) {
			<-ctx.Done()
			ended = time.Since(start)
			return "", ctx.Err()
		}, WithMaxHold(10*time.Second))
		require.Equal(t, "stale", (<-goLoad(t.Context(), l, "k")).v)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 10*time.Second, ended)
		requireIdle(t, l, b, "k")
	})
}

// A source that loads its own key, in a refresh, would take the stale value for a new one: that is an
// error, with the lock and without. It may load the key of whoever caused the refresh.
func TestStaleRefreshLoadsItself(t *testing.T) {
	for _, locked := range []bool{true, false} {
		for _, name := range []string{"k", "outer"} {
			t.Run(fmt.Sprint(name, ", with the lock ", locked), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newBackend()
					b.stale["k"] = "stale"
					p := b.process()
					p.onAcquire = func(_ context.Context, key string) error {
						if key == "k" && !locked {
							return errAnswered
						}
						return nil
					}
					refreshed := make(chan LoadEvent, 1)
					var l *Loader[string]
					l = NewLoader[string](p.locker(), p.staleCache(), func(ctx context.Context, key string) (string, error) {
						if key == "k" {
							return l.Load(ctx, name)
						}
						v, err := l.Load(ctx, "k")
						time.Sleep(time.Second)
						return v + " in outer", err
					}, WithLoadObserver(func(_ context.Context, e LoadEvent) {
						if e.Kind >= Refreshed {
							refreshed <- e
						}
					}))
					require.Equal(t, loaded{"stale in outer", nil, time.Second}, <-goLoad(t.Context(), l, "outer"))
					e := <-refreshed
					synctest.Wait()
					v, fresh := b.get("k")
					if name == "k" {
						require.EqualError(t, e.Err, `singleflight: the call for "k" calls itself`)
						require.False(t, fresh)
					} else {
						require.NoError(t, e.Err)
						require.Equal(t, "stale in outer", v)
					}
					require.NoError(t, l.Close(t.Context()))
				})
			})
		}
	}
}
