package singleflight

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/golockers/locker"
)

// A source that takes longer than the lock's ttl: the lock is kept alive, and there is still one load.
func TestLoadLongerThanTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p, q := b.process(), b.process()
		first := NewLoader(p.locker(), p.cache(), p.slowly(25*time.Second, "fresh"), WithLockTTL(10*time.Second))
		second := NewLoader(q.locker(), q.cache(), q.slowly(0, "must not load"), WithLockTTL(10*time.Second))
		a := goLoad(t.Context(), first, "k")
		synctest.Wait()
		require.Equal(t, loaded{"fresh", nil, 25 * time.Second}, <-goLoad(t.Context(), second, "k"))
		require.Equal(t, "fresh", (<-a).v)
		requireIdle(t, first, b, "k")
	})
}

// When a source never returns, others in the fleet go on once it may no longer hold the lock, and so do later callers
// in its own process, even while a caller still waits for it.
func TestLoadNeverReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p, q := b.process(), b.process()
		var calls atomic.Int32
		release := make(chan struct{})
		opts := []LoaderOption{WithLockTTL(3 * time.Second), WithMaxHold(10 * time.Second), WithMaxWait(time.Hour)}
		first := NewLoader(p.locker(), p.addCache(), func(context.Context, string) (string, error) {
			if calls.Add(1) == 1 {
				<-release
				return "late", nil
			}
			return "fresh", nil
		}, opts...)
		second := NewLoader(q.locker(), q.addCache(), q.slowly(time.Second, "fresh"), opts...)
		stuck := goLoad(context.Background(), first, "k")
		synctest.Wait()

		elsewhere := <-goLoad(t.Context(), second, "k")
		require.NoError(t, elsewhere.err)
		require.Equal(t, "fresh", elsewhere.v)
		require.Greater(t, elsewhere.took, 10*time.Second)
		const load = time.Second
		require.LessOrEqual(t, elsewhere.took, 13*time.Second+safetyPoll*3/2+load, "MaxHold, the ttl, and the longest poll")

		require.Equal(t, loaded{"fresh", nil, 0}, <-goLoad(t.Context(), first, "k"))
		b.remove("k")
		require.Equal(t, loaded{"fresh", nil, 0}, <-goLoad(t.Context(), first, "k"), "a second call of the source")
		close(release)
		require.Equal(t, "late", (<-stuck).v)
		synctest.Wait()
		stored, _ := b.get("k")
		require.Equal(t, "fresh", stored)
		requireIdle(t, first, b, "k")
	})
}

// The lock is lost while the source is at work: the value goes to the callers, and is stored only where
// there is none; a successor keeps its lock.
func TestLoadLosesTheLock(t *testing.T) {
	for _, how := range []struct {
		name   string
		extend func(context.Context) (bool, error)
	}{
		{"refused", func(context.Context) (bool, error) { return false, nil }},
		{"backend down", func(context.Context) (bool, error) { return false, errors.New("down") }},
		{"backend hangs", hang},
	} {
		for _, successor := range []bool{false, true} {
			for _, adder := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, successor %t, adder %t", how.name, successor, adder), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						b := newBackend()
						p := b.process()
						p.onExtend = how.extend
						if how.name == "backend hangs" {
							p.onRelease = hang // which the callers do not wait for
						}
						cache := p.cache()
						if adder {
							cache = p.addCache()
						}
						l := NewLoader(p.locker(), cache, p.slowly(5*time.Second, "old"), WithLockTTL(time.Second))
						c := goLoad(t.Context(), l, "k")
						time.Sleep(2 * time.Second)
						var lease *locker.Lease
						if successor {
							var err error
							lease, err = locker.TryLock(t.Context(), b.locks, "k", time.Minute)
							require.NoError(t, err)
							b.set("k", "the successor's")
						}
						require.Equal(t, loaded{"old", nil, 5 * time.Second}, <-c)
						synctest.Wait()
						require.Zero(t, p.count("set"))
						stored, _ := b.get("k")
						switch {
						case successor:
							require.Equal(t, "the successor's", stored)
							require.NoError(t, lease.Unlock(t.Context()), "it still holds its lock")
						case adder:
							require.Equal(t, "old", stored)
						default:
							require.Empty(t, stored)
						}
						time.Sleep(time.Minute) // until a release that hangs has ended
						requireIdle(t, l, b, "k")
					})
				})
			}
		}
	}
}

func hang(ctx context.Context) (bool, error) { <-ctx.Done(); return false, ctx.Err() }

// The source takes longer than the lock may be held, and no other process takes the lock.
func TestLoadLongerThanMaxHold(t *testing.T) {
	for _, adder := range []bool{false, true} {
		t.Run(fmt.Sprintf("adder %t", adder), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBackend()
				p := b.process()
				cache := p.cache()
				if adder {
					cache = p.addCache()
				}
				l := NewLoader(p.locker(), cache, p.slowly(20*time.Second, "late"),
					WithLockTTL(time.Second), WithMaxHold(10*time.Second))
				require.Equal(t, loaded{"late", nil, 20 * time.Second}, <-goLoad(t.Context(), l, "k"))
				synctest.Wait()
				require.Zero(t, p.count("set"))
				if adder {
					require.Equal(t, 1, p.count("add"))
				}
				requireIdle(t, l, b, "k")
			})
		})
	}
}

// However storing and releasing end, the callers have the value as soon as the source returns it. The store and the
// release end in time, and then the lock is free.
func TestLoadCannotStoreOrRelease(t *testing.T) {
	stuck := make(chan struct{})
	for _, tc := range []struct {
		name    string
		set     func(context.Context) error
		release func(context.Context) (bool, error)
		within  time.Duration // until the release has been sent
	}{
		{"set fails", func(context.Context) error { return errors.New("full") }, nil, 0},
		{"set hangs", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, nil, defaultOptions.backendTimeout},
		{"set ignores its context", func(context.Context) error { <-stuck; return nil }, nil, defaultOptions.backendTimeout},
		{"release fails", nil, func(context.Context) (bool, error) { return false, errors.New("down") }, 0},
		{"release refused", nil, func(context.Context) (bool, error) { return false, nil }, 0},
		{"release hangs", nil, hang, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stuck = make(chan struct{})
				b := newBackend()
				p := b.process()
				p.onSet, p.onRelease = tc.set, tc.release
				l := NewLoader(p.locker(), p.cache(), p.slowly(time.Second, "fresh"))
				cs := []<-chan loaded{goLoad(t.Context(), l, "k"), goLoad(context.Background(), l, "k")}
				for _, c := range cs {
					require.Equal(t, loaded{"fresh", nil, time.Second}, <-c)
				}
				time.Sleep(tc.within)
				synctest.Wait()
				require.NotZero(t, p.count("release"))
				close(stuck)
				if tc.release == nil {
					synctest.Wait()
					requireFree(t, b, "k")
				}
				time.Sleep(time.Minute) // the release that hangs gives up
				requireIdle(t, l, b, "k")
			})
		})
	}
}

// Of Sets that never return, one is left behind for each key and MaxHold, and not one for each load.
func TestLoadStuckSetIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		stuck := make(chan struct{})
		p.onSet = func(context.Context) error { <-stuck; return nil }
		l := NewLoader(p.locker(), p.cache(), p.slowly(10*time.Millisecond, "fresh"))
		for range 500 { // 55 seconds
			v, err := l.Load(t.Context(), "k")
			require.NoError(t, err)
			require.Equal(t, "fresh", v)
			time.Sleep(100 * time.Millisecond)
		}
		require.Equal(t, 1, p.count("set"))
		close(stuck)
		requireIdle(t, l, b, "k")
	})
}

// A caller that comes while the value is being stored gets it without a request, but for no longer than a backend
// timeout.
func TestLoadWhileStoring(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		p.onSet = func(context.Context) error { time.Sleep(5 * time.Second); return nil }
		var loads atomic.Int32
		l := NewLoader(p.locker(), p.cache(), func(context.Context, string) (string, error) {
			return fmt.Sprint(loads.Add(1)), nil
		})
		require.Equal(t, loaded{"1", nil, 0}, <-goLoad(t.Context(), l, "k"))
		synctest.Wait()
		require.Equal(t, []string{"get", "acquire", "get", "set"}, p.all())
		time.Sleep(defaultOptions.backendTimeout - time.Millisecond)
		require.Equal(t, loaded{"1", nil, 0}, <-goLoad(t.Context(), l, "k"))
		require.Equal(t, []string{"get", "acquire", "get", "set"}, without(p.all(), "extend"))
		time.Sleep(2 * time.Millisecond)
		require.Equal(t, loaded{"2", nil, 0}, <-goLoad(t.Context(), l, "k"))
		time.Sleep(time.Minute)
		requireIdle(t, l, b, "k")
	})
}

// Set begins while the lock is held, or not at all, and is cut off when that may end.
func TestLoadSetEndsWithTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		start := time.Now()
		var cut time.Duration
		p.onSet = func(ctx context.Context) error {
			<-ctx.Done()
			cut = time.Since(start)
			return ctx.Err()
		}
		p.onExtend = func(context.Context) (bool, error) { return false, errors.New("down") }
		l := NewLoader(p.locker(), p.cache(), p.slowly(900*time.Millisecond, "fresh"), WithLockTTL(time.Second))
		got := <-goLoad(t.Context(), l, "k")
		require.NoError(t, got.err)
		require.Equal(t, "fresh", got.v)
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, time.Second, cut)
		require.True(t, l.cacheBreaker.allows("k"), "that says nothing of the cache")
		requireIdle(t, l, b, "k")
	})
}

// Loaders with different prefixes share a Locker, and do not hold each other up though their keys are the same.
func TestLoadKeyPrefix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := newBackend()
		var cs []<-chan loaded
		var users *Loader[string]
		for _, prefix := range []string{"orders/", "users/"} {
			b := newBackend()
			b.locks = locks.locks
			p := b.process()
			users = NewLoader(p.locker(), p.deleteCache(), p.slowly(time.Second, prefix), WithKeyPrefix(prefix))
			cs = append(cs, goLoad(t.Context(), users, "42"))
		}
		time.Sleep(500 * time.Millisecond)
		for _, key := range []string{"orders/42", "users/42"} {
			_, err := locker.TryLock(t.Context(), locks.locks, key, time.Second)
			require.ErrorIs(t, err, locker.ErrHeld)
		}
		requireFree(t, locks, "42")
		require.Equal(t, loaded{"orders/", nil, time.Second}, <-cs[0])
		require.Equal(t, loaded{"users/", nil, time.Second}, <-cs[1])
		require.NoError(t, users.Update(t.Context(), "42", func(context.Context) error {
			_, err := locker.TryLock(t.Context(), locks.locks, "users/42", time.Second)
			require.ErrorIs(t, err, locker.ErrHeld)
			return nil
		}))

		long := strings.Repeat("k", maxKey-len("users/"))
		require.NoError(t, (<-goLoad(t.Context(), users, long)).err)
		require.ErrorIs(t, (<-goLoad(t.Context(), users, long+"k")).err, locker.ErrInvalidKey)
		require.ErrorIs(t, (<-goLoad(t.Context(), users, "")).err, locker.ErrInvalidKey)
	})
}

// A process that waits for another one's value watches the lock under its prefixed name.
func TestLoadKeyPrefixWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p, q := b.process(), b.process()
		holder := NewLoader(p.locker(), p.cache(), p.slowly(700*time.Millisecond, "fresh"), WithKeyPrefix("users/"))
		waiter := NewLoader(q.locker(), q.cache(), q.slowly(0, "must not load"), WithKeyPrefix("users/"))
		first := goLoad(t.Context(), holder, "42")
		synctest.Wait()
		require.Equal(t, loaded{"fresh", nil, 700 * time.Millisecond}, <-goLoad(t.Context(), waiter, "42"))
		require.Equal(t, 1, q.count("watch"))
		<-first
	})
}

// A load that its callers have left is completed and stored, and releases its lock.
func TestLoadLeftByAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		l := NewLoader(p.locker(), p.cache(), p.slowly(time.Second, "fresh"))
		var cs []<-chan loaded
		for i := range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i+1)*time.Millisecond)
			defer cancel()
			cs = append(cs, goLoad(ctx, l, "k"))
		}
		for _, c := range cs {
			require.Equal(t, context.DeadlineExceeded, (<-c).err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, []string{"get", "acquire", "get", "source", "set", "release"}, p.all())
		stored, _ := b.get("k")
		require.Equal(t, "fresh", stored)
		requireIdle(t, l, b, "k")
	})
}
