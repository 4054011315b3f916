package locker_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// perKey is memory with an error or a block for some keys, and the releases in order.
type perKey struct {
	*memory.Locker
	mu       sync.Mutex
	fails    map[string]error
	hangs    map[string]bool // an operation that lets go, until its context ends
	released []string
	acquired []string
}

func (l *perKey) of(key string) (error, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fails[key], l.hangs[key]
}

func (l *perKey) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	l.mu.Lock()
	l.acquired = append(l.acquired, key)
	l.mu.Unlock()
	if err, _ := l.of(key); err != nil {
		return time.Time{}, err
	}
	return l.Locker.Wait(ctx, key, token, ttl)
}

func (l *perKey) Release(ctx context.Context, key, token string) (bool, error) {
	if err, hangs := l.of(key); err != nil || hangs {
		if hangs {
			<-ctx.Done()
			err = ctx.Err()
		}
		return false, err
	}
	l.mu.Lock()
	l.released = append(l.released, key)
	l.mu.Unlock()
	return l.Locker.Release(ctx, key, token)
}

// onlyA is a fake whose locks are held by another token, except for that of a.
type onlyA struct{ fake }

func (l *onlyA) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if key != "a" {
		return false, ctx.Err()
	}
	return l.fake.Acquire(ctx, key, token, ttl)
}

// free reports which of keys are free.
func free(t *testing.T, l locker.Locker, keys ...string) []string {
	t.Helper()
	var is []string
	for _, key := range keys {
		lease, err := locker.TryLock(t.Context(), l, key, time.Minute)
		if err != nil {
			require.ErrorIs(t, err, locker.ErrHeld)
			continue
		}
		is = append(is, key)
		lease.Detach() // a Release of a wrapper may be out of order
		_, err = l.Release(t.Context(), key, lease.Token())
		require.NoError(t, err)
	}
	return is
}

func TestLockAll(t *testing.T) {
	bubble(t, "in order, and released in reverse", func(t *testing.T) {
		l := &perKey{Locker: memory.New()}
		keys := []string{"c", "a", "b"}
		leases, err := locker.LockAll(t.Context(), l, keys, time.Minute)
		require.NoError(t, err)
		assert.Equal(t, []string{"c", "a", "b"}, keys, "the caller's slice")
		assert.Equal(t, []string{"a", "b", "c"}, l.acquired)
		for i, lease := range leases {
			assert.Equal(t, l.acquired[i], lease.Key())
		}
		assert.NoError(t, leases.Unlock(t.Context()))
		assert.Equal(t, []string{"c", "b", "a"}, l.released)
		err = leases.Unlock(t.Context())
		assert.ErrorIs(t, err, locker.ErrNotHeld)
		assert.Contains(t, err.Error(), `locker: unlock "b": `)
	})
	bubble(t, "kept alive while it waits, and no longer", func(t *testing.T) {
		l := memory.New()
		last, err := locker.Lock(t.Context(), l, "z", 2*time.Minute)
		require.NoError(t, err)
		time.AfterFunc(time.Minute, func() { assert.NoError(t, last.Unlock(context.Background())) })
		leases, err := locker.LockAll(t.Context(), l, []string{"a", "z"}, time.Second)
		require.NoError(t, err)
		for _, lease := range leases {
			assert.NoError(t, lease.Err())
			assert.GreaterOrEqual(t, time.Until(lease.Deadline()), 2*time.Second/3)
		}
		time.Sleep(time.Second)
		for _, lease := range leases {
			assert.ErrorIs(t, lease.Err(), locker.ErrNotHeld)
		}
		assert.ErrorIs(t, leases.Unlock(t.Context()), locker.ErrNotHeld)
	})
	bubble(t, "WithKeepAlive, WithMaxHold and WithMinHold count from the end", func(t *testing.T) {
		l := memory.New()
		last, err := locker.Lock(t.Context(), l, "z", time.Minute)
		require.NoError(t, err)
		last.Detach()
		start := time.Now()
		leases, err := locker.LockAll(t.Context(), l, []string{"a", "z"}, time.Second,
			locker.WithKeepAlive(), locker.WithMaxHold(30*time.Second), locker.WithMinHold(40*time.Second))
		require.NoError(t, err)
		assert.Equal(t, time.Minute, time.Since(start))
		time.Sleep(29 * time.Second)
		for _, lease := range leases {
			assert.NoError(t, lease.Err())
		}
		require.NoError(t, leases.Unlock(t.Context()))
		time.Sleep(11*time.Second - time.Nanosecond)
		assert.Empty(t, free(t, l, "a", "z"))
		time.Sleep(time.Nanosecond)
		assert.Equal(t, []string{"a", "z"}, free(t, l, "a", "z"))
	})
	bubble(t, "all or none", func(t *testing.T) {
		l := &perKey{Locker: memory.New(), fails: map[string]error{"c": errBackend}}
		_, err := locker.LockAll(t.Context(), l, []string{"a", "b", "c"}, time.Minute, locker.WithMinHold(time.Hour))
		assert.EqualError(t, err, `locker: lock all "c": backend down`)
		assert.Equal(t, []string{"a", "b"}, free(t, l.Locker, "a", "b"))
	})
	bubble(t, "ctx ends", func(t *testing.T) {
		l := memory.New()
		last, err := locker.Lock(t.Context(), l, "b", time.Hour)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = locker.LockAll(ctx, l, []string{"a", "b", "c"}, time.Second)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.ErrorIs(t, err, locker.ErrHeld)
		assert.NotErrorIs(t, err, locker.ErrNotHeld)
		assert.Equal(t, []string{"a", "c"}, free(t, l, "a", "b", "c"))
		assert.NoError(t, last.Unlock(t.Context()))
	})
	bubble(t, "a lock is lost while it waits for the rest", func(t *testing.T) {
		for _, retry := range []bool{false, true} {
			l := memory.New()
			last, err := locker.Lock(t.Context(), l, "b", time.Hour)
			require.NoError(t, err)
			first := &remembers{Locker: l, key: "a"}
			time.AfterFunc(time.Minute, func() { // the lock of a is freed, and its holder does not know
				ok, err := l.Release(context.Background(), "a", first.last())
				assert.True(t, ok)
				assert.NoError(t, err)
			})
			time.AfterFunc(2*time.Minute, func() { assert.NoError(t, last.Unlock(context.Background())) })
			var opts []locker.Option
			if retry {
				opts = append(opts, locker.WithRetry())
			}
			start := time.Now()
			leases, err := locker.LockAll(t.Context(), first, []string{"a", "b"}, 3*time.Second, opts...)
			if retry {
				require.NoError(t, err)
				assert.Equal(t, 2*time.Minute, time.Since(start))
				assert.NoError(t, leases.Unlock(t.Context()))
				continue
			}
			assert.EqualError(t, err, `locker: lock all "b": while waiting for the lock: `+
				`locker: lease "a": the lock is not held: the backend refused its token`)
			assert.NotErrorIs(t, err, locker.ErrNotHeld)
			assert.Less(t, time.Since(start), time.Minute+2*time.Second)
			assert.Equal(t, []string{"a"}, free(t, l, "a", "b"))
			time.Sleep(2 * time.Minute)
		}
	})
	bubble(t, "a pause before it starts again", func(t *testing.T) {
		l := &onlyA{}
		l.extendBy(func(context.Context, string, time.Duration) (bool, error) { return false, nil })
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := locker.LockAll(ctx, l, []string{"a", "b"}, 3*time.Millisecond, locker.WithRetry())
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		tries, _, _ := l.counts()
		assert.Greater(t, tries, 5)
		assert.Less(t, tries, 30)
	})
	bubble(t, "what cannot be cleaned up ends with its ttl", func(t *testing.T) {
		l := &onlyA{}
		l.onRelease = func(context.Context, string) (bool, error) { return false, errBackend }
		l.onAcquire = func(context.Context, string, time.Duration) (bool, error) { return false, errBackend }
		for range 256 {
			_, err := locker.TryLock(t.Context(), l, "a", time.Minute)
			assert.ErrorIs(t, err, errBackend)
		}
		l.onAcquire = nil
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := locker.LockAll(ctx, l, []string{"a", "b"}, time.Second)
		assert.ErrorIs(t, err, locker.ErrHeld)
		assert.False(t, l.isFree("a"))
		time.Sleep(time.Second)
		assert.True(t, l.isFree("a"))
	})
	bubble(t, "a release that fails is repeated", func(t *testing.T) {
		l := &fake{}
		l.onRelease = func(ctx context.Context, token string) (bool, error) {
			if _, _, n := l.counts(); n == 1 {
				return false, errBackend
			}
			return l.doRelease(ctx, "a", token)
		}
		_, err := l.doAcquire(t.Context(), "b", "other", time.Hour)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = locker.LockAll(ctx, l, []string{"a", "b"}, 10*time.Minute)
		assert.ErrorIs(t, err, locker.ErrHeld)
		time.Sleep(time.Second)
		assert.True(t, l.isFree("a"))
	})
	bubble(t, "releases that hang do not delay it, nor each other", func(t *testing.T) {
		l := &perKey{Locker: memory.New(), hangs: map[string]bool{"a": true, "c": true}}
		last := tryLock(t, l.Locker, time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		_, err := locker.LockAll(ctx, l, []string{"a", "b", "c", "k"}, time.Minute)
		assert.ErrorIs(t, err, locker.ErrHeld)
		assert.Equal(t, 1500*time.Millisecond, time.Since(start))
		time.Sleep(time.Hour / 2)
		assert.Equal(t, []string{"a", "b", "c"}, free(t, l.Locker, "a", "b", "c"), "one is still kept alive")
		assert.NoError(t, last.Unlock(t.Context()))
	})
	bubble(t, "the Observer and the Locker find the caller's lease", func(t *testing.T) {
		var seen []string
		j := &journal{use: func(ctx context.Context, e locker.Event) {
			seen = append(seen, fmt.Sprint(e.Kind, " ", e.Key, " in ", locker.FromContext(ctx).Key()))
		}}
		l := memory.New()
		assert.NoError(t, locker.Do(t.Context(), l, "outer", time.Minute, func(ctx context.Context) error {
			leases, err := locker.LockAll(ctx, locker.Observed(l, j), []string{"x", "y"}, time.Minute)
			assert.NoError(t, err)
			return leases.Unlock(ctx)
		}))
		assert.Equal(t, []string{"acquired x in outer", "acquired y in outer", "unlocked y in outer",
			"unlocked x in outer"}, seen)
	})
	bubble(t, "a panic of the Locker leaves nothing", func(t *testing.T) {
		l := memory.New()
		assert.Panics(t, func() {
			_, _ = locker.LockAll(t.Context(), panics{l, "c"}, []string{"a", "b", "c"}, time.Minute)
		})
		assert.Equal(t, []string{"a", "b"}, free(t, l, "a", "b"))
	})
	bubble(t, "no deadlock between callers whose keys overlap", func(t *testing.T) {
		l := memory.New()
		keys := []string{"a", "b", "c", "d"}
		var holders [4]atomic.Int32
		var wg sync.WaitGroup
		for i := range 24 {
			wg.Go(func() {
				mine := slices.Concat(keys[i%4:], keys[:i%4])[:1+i%4]
				assert.NoError(t, locker.DoAll(context.Background(), l, mine, time.Minute, func(context.Context) error {
					for _, key := range mine {
						assert.EqualValues(t, 1, holders[key[0]-'a'].Add(1))
					}
					time.Sleep(time.Second)
					for _, key := range mine {
						holders[key[0]-'a'].Add(-1)
					}
					return nil
				}))
			})
		}
		wg.Wait()
	})
	t.Run("a key that is named twice", func(t *testing.T) {
		l := &fake{}
		keys := []string{"b", "a", "b", "b"}
		leases, err := locker.LockAll(t.Context(), l, keys, time.Minute)
		require.NoError(t, err)
		require.Len(t, leases, 2)
		assert.Equal(t, []string{"a", "b"}, []string{leases[0].Key(), leases[1].Key()})
		assert.Equal(t, []string{"b", "a", "b", "b"}, keys, "the caller's list is changed")
		require.NoError(t, leases.Unlock(t.Context()))
		require.NoError(t, locker.DoAll(t.Context(), l, keys, time.Minute, func(ctx context.Context) error {
			assert.True(t, !l.isFree("a") && !l.isFree("b"))
			return nil
		}))
		acquired, _, released := l.counts()
		assert.Equal(t, []int{4, 4}, []int{acquired, released})
		assert.True(t, l.isFree("a") && l.isFree("b"))
	})
	t.Run("bad input", func(t *testing.T) {
		l := &fake{}
		ctx := t.Context()
		for _, c := range []struct {
			keys []string
			want string
			is   error
		}{
			{nil, `locker: %s: no keys`, nil},
			{[]string{"b", ""}, `locker: %s "": invalid key: empty`, locker.ErrInvalidKey},
		} {
			_, err := locker.LockAll(ctx, l, c.keys, time.Minute)
			assert.EqualError(t, err, fmt.Sprintf(c.want, "lock all"))
			if c.is != nil {
				assert.ErrorIs(t, err, c.is)
			}
			err = locker.DoAll(ctx, l, c.keys, time.Minute, unreachable(t))
			assert.EqualError(t, err, fmt.Sprintf(c.want, "do all"))
		}
		_, err := locker.LockAll(ctx, nil, []string{"a"}, time.Minute)
		assert.EqualError(t, err, `locker: lock all "a": nil Locker`)
		err = locker.DoAll(ctx, l, []string{"a", "b"}, time.Minute, nil)
		assert.EqualError(t, err, `locker: do all ["a" "b"]: nil function`)
		_, err = locker.LockAll(ctx, l, []string{"a", "b"}, 0)
		assert.ErrorIs(t, err, locker.ErrInvalidTTL)
		acquired, _, _ := l.counts()
		assert.Zero(t, acquired)
	})
}

// remembers the token that has taken the lock of key last.
type remembers struct {
	*memory.Locker
	key   string
	token atomic.Value
}

func (l *remembers) last() string { return l.token.Load().(string) }

func (l *remembers) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	deadline, err := l.Locker.Wait(ctx, key, token, ttl)
	if err == nil && key == l.key {
		l.token.Store(token)
	}
	return deadline, err
}

// panics does so when it is asked for key.
type panics struct {
	*memory.Locker
	key string
}

func (l panics) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	if key == l.key {
		panic("boom")
	}
	return l.Locker.Wait(ctx, key, token, ttl)
}

func TestDoAll(t *testing.T) {
	bubble(t, "holds and keeps all alive", func(t *testing.T) {
		l := memory.New()
		mine := errors.New("mine")
		err := locker.DoAll(t.Context(), l, []string{"b", "a"}, time.Second, func(ctx context.Context) error {
			time.Sleep(time.Minute)
			assert.Empty(t, free(t, l, "a", "b"))
			assert.NoError(t, ctx.Err())
			return mine
		})
		assert.True(t, err == mine, "identity of a plain error")
		assert.Equal(t, []string{"a", "b"}, free(t, l, "a", "b"))
	})
	bubble(t, "cancelled when one is lost", func(t *testing.T) {
		l := memory.New()
		err := locker.DoAll(t.Context(), l, []string{"b", "a"}, time.Second, func(ctx context.Context) error {
			ok, err := l.Release(ctx, "a", locker.FromContext(ctx).Token())
			assert.True(t, ok)
			<-ctx.Done()
			assert.Equal(t, locker.ErrNotHeld, context.Cause(ctx))
			return err
		})
		assert.EqualError(t, err, `locker: unlock "a": the lock is not held: the backend refused its token`)
		assert.ErrorIs(t, err, locker.ErrNotHeld)
		assert.Equal(t, []string{"a", "b"}, free(t, l, "a", "b"))
	})
}

func TestLeasesUnlock(t *testing.T) {
	bubble(t, "a Release that does not return", func(t *testing.T) {
		f := &fake{}
		leases, err := locker.LockAll(t.Context(), f, []string{"a", "b"}, time.Minute)
		require.NoError(t, err)
		f.onRelease = func(_ context.Context, token string) (bool, error) {
			if token == leases[0].Token() {
				runtime.Goexit()
			}
			return false, errBackend
		}
		err = leases.Unlock(t.Context())
		assert.ErrorIs(t, err, errBackend)
		assert.ErrorContains(t, err, `locker: unlock "a": the Locker panicked or called runtime.Goexit`)
	})
	bubble(t, "a cleanup whose Release does not return", func(t *testing.T) {
		f := &fake{}
		f.onAcquire = func(ctx context.Context, token string, ttl time.Duration) (bool, error) {
			n, _, _ := f.counts()
			if n > 2 {
				return false, errBackend
			}
			return f.doAcquire(ctx, string("ab"[n-1]), token, ttl)
		}
		f.onRelease = func(ctx context.Context, token string) (bool, error) {
			switch _, _, n := f.counts(); {
			case token != f.acquire[0]:
				return false, errBackend
			case n < 5:
				runtime.Goexit()
			}
			return f.doRelease(ctx, "a", token)
		}
		_, err := locker.LockAll(t.Context(), f, []string{"a", "b", "c"}, time.Minute)
		assert.ErrorIs(t, err, errBackend)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		assert.True(t, f.isFree("a"))
		assert.False(t, f.isFree("b"))
	})
	bubble(t, "tries all, and takes no longer than two", func(t *testing.T) {
		l := &perKey{Locker: memory.New()}
		keys := []string{"a", "b", "c", "d", "e", "f"}
		leases, err := locker.LockAll(t.Context(), l, keys, time.Minute)
		require.NoError(t, err)
		l.mu.Lock()
		l.hangs = map[string]bool{"b": true, "c": true, "d": true, "e": true}
		l.mu.Unlock()
		start := time.Now()
		err = leases.Unlock(t.Context())
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.NotErrorIs(t, err, locker.ErrNotHeld)
		assert.Equal(t, 10*time.Second, time.Since(start))
		assert.Equal(t, []string{"a", "f"}, free(t, l.Locker, keys...))
		synctest.Wait()
	})
	t.Run("none hide no lease of the context", func(t *testing.T) {
		assert.NoError(t, locker.Do(t.Context(), &fake{}, "k", time.Minute, func(ctx context.Context) error {
			inner, cancel := locker.Leases{}.Context(ctx)
			defer cancel()
			assert.Same(t, locker.FromContext(ctx), locker.FromContext(inner))
			return nil
		}))
	})
	t.Run("none", func(t *testing.T) {
		assert.NoError(t, locker.Leases(nil).Unlock(t.Context()))
		assert.ErrorIs(t, locker.Leases{nil}.Unlock(t.Context()), locker.ErrNotHeld)
	})
}

// What LockAll took before an error is released, also if the backend fails for a moment, and the error does
// not wait for a backend that hangs.
func TestLockAllGivesBack(t *testing.T) {
	for name, trouble := range map[string]func(l *perKey, on bool){
		"fails": func(l *perKey, on bool) {
			l.fails = map[string]error{}
			if on {
				l.fails["a"] = errors.New("connection reset")
			}
		},
		"hangs": func(l *perKey, on bool) { l.hangs = map[string]bool{"a": on} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &perKey{Locker: memory.New()}
				_, err := locker.Lock(t.Context(), l.Locker, "b", time.Hour)
				require.NoError(t, err)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				time.AfterFunc(500*time.Millisecond, func() {
					l.mu.Lock()
					defer l.mu.Unlock()
					trouble(l, true)
				})
				time.AfterFunc(2*time.Second, func() {
					l.mu.Lock()
					defer l.mu.Unlock()
					trouble(l, false)
				})
				start := time.Now()
				_, err = locker.LockAll(ctx, l, []string{"a", "b"}, 10*time.Minute)
				assert.ErrorIs(t, err, locker.ErrHeld)
				assert.LessOrEqual(t, time.Since(start), 1500*time.Millisecond)
				time.Sleep(12 * time.Second) // a cleanup and an Unlock that hangs
				if name == "fails" {
					info, err := l.Inspect(t.Context(), "a")
					require.NoError(t, err)
					assert.Empty(t, info.Token)
				}
				synctest.Wait()
			})
		})
	}
}
