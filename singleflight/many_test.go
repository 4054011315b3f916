package singleflight

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/singleflight/slots"
)

// countingCache counts the requests of Look and Put, and the keys in them.
type countingCache struct {
	*memory.Cache[string]
	looks, looked, puts, stored atomic.Int64
}

func (c *countingCache) Look(ctx context.Context, all ...*slots.Slot[string]) error {
	c.looks.Add(1)
	c.looked.Add(int64(len(all)))
	return c.Cache.Look(ctx, all...)
}

func (c *countingCache) Put(ctx context.Context, all ...*slots.Slot[string]) error {
	c.puts.Add(1)
	c.stored.Add(int64(len(all)))
	return c.Cache.Put(ctx, all...)
}

// batches has the calls of a batch source.
type batches struct {
	mu    sync.Mutex
	calls []string
}

// source returns a source whose value for a key is that in capitals. Keys that begin with "no" have
// none.
func (b *batches) source(d time.Duration, err error) func(context.Context, []string) (map[string]string, error) {
	return func(ctx context.Context, keys []string) (map[string]string, error) {
		b.mu.Lock()
		b.calls = append(b.calls, strings.Join(keys, " "))
		b.mu.Unlock()
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		values := make(map[string]string)
		for _, key := range keys {
			if !strings.HasPrefix(key, "no") {
				values[key] = strings.ToUpper(key)
			}
		}
		return values, err
	}
}

func (b *batches) all() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.calls...)
}

// The keys that are missing are read, loaded and stored together.
func TestLoadMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShared()
		cache := &countingCache{Cache: s.cache}
		var b batches
		var mu sync.Mutex
		events := make(map[LoadEventKind]int)
		l := NewBatchLoader[string](s.locks, cache, b.source(time.Second, nil),
			WithLoadObserver(func(_ context.Context, e LoadEvent) {
				mu.Lock()
				defer mu.Unlock()
				events[e.Kind]++
			}))
		require.NoError(t, s.cache.Set(t.Context(), "b", "cached"))
		began := time.Now()
		values, err := l.LoadMany(t.Context(), []string{"d", "a", "b", "none", "a", "c", "d"})
		require.ErrorIs(t, err, ErrNotLoaded)
		require.EqualError(t, err, `singleflight: load "none": the source returned no value for the key`)
		require.Equal(t, map[string]string{"a": "A", "b": "cached", "c": "C", "d": "D"}, values)
		require.Equal(t, time.Second, time.Since(began))
		require.Equal(t, []string{"d a none c"}, b.all())
		synctest.Wait()
		require.EqualValues(t, 2, cache.looks.Load())
		require.EqualValues(t, 5+4, cache.looked.Load())
		require.EqualValues(t, 1, cache.puts.Load())
		require.EqualValues(t, 4, cache.stored.Load(), "three values and a failure")
		mu.Lock()
		require.Equal(t, map[LoadEventKind]int{LoadHit: 1, Loaded: 3, LoadFailed: 1}, events)
		mu.Unlock()

		values, err = l.LoadMany(t.Context(), []string{"a", "b", "c", "d"})
		require.NoError(t, err)
		require.Equal(t, map[string]string{"a": "A", "b": "cached", "c": "C", "d": "D"}, values)
		require.EqualValues(t, 3, cache.looks.Load())
		v, err := l.Load(t.Context(), "e")
		require.NoError(t, err)
		require.Equal(t, "E", v)
		_, err = l.Load(t.Context(), "no")
		require.Equal(t, ErrNotLoaded, err)
		require.Equal(t, []string{"d a none c", "e", "no"}, b.all())

		values, err = l.LoadMany(t.Context(), nil)
		require.NoError(t, err)
		require.Empty(t, values)
		_, err = l.LoadMany(t.Context(), []string{"a", "", strings.Repeat("k", 1025)})
		require.ErrorIs(t, err, locker.ErrInvalidKey)
		require.NoError(t, l.Close(t.Context()))
		_, err = l.LoadMany(t.Context(), []string{"a"})
		require.ErrorIs(t, err, locker.ErrClosed)
	})
}

// The error of a batch is that of the keys without a value.
func TestLoadManyFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShared()
		var b batches
		down := errors.New("down")
		l := NewBatchLoader[string](s.locks, s.cache, b.source(0, down))
		values, err := l.LoadMany(t.Context(), []string{"a", "no1", "b", "no2"})
		require.Equal(t, map[string]string{"a": "A", "b": "B"}, values)
		require.EqualError(t, err, "singleflight: load \"no1\": down\nsingleflight: load \"no2\": down")

		for name, fails := range map[string]func(){"panic": func() { panic(down) }, "goexit": runtime.Goexit} {
			l = NewBatchLoader[string](s.locks, s.cache, func(context.Context, []string) (map[string]string, error) {
				fails()
				return nil, nil
			})
			values, err = l.LoadMany(t.Context(), []string{"x" + name, "y" + name})
			require.Empty(t, values)
			require.ErrorContains(t, err, `"x`+name)
			require.ErrorContains(t, err, `"y`+name)
			if name == "panic" {
				require.ErrorIs(t, err, down)
				require.ErrorAs(t, err, new(*PanicError))
			}
			synctest.Wait()
			require.NoError(t, l.Close(t.Context()))
		}
		_, err = NewBatchLoader[string](s.locks, s.cache, nil).LoadMany(t.Context(), []string{"k"})
		require.EqualError(t, err, `singleflight: load "k": nil source`)
		_, err = (*Loader[string])(nil).LoadMany(t.Context(), []string{"k"})
		require.EqualError(t, err, `singleflight: load "k": nil Loader`)
	})
}

// Each error of LoadMany names its key once, whatever the source's error says.
func TestLoadManyErrorsNameTheirKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShared()
		var l *Loader[string]
		l = NewLoader[string](s.locks, s.cache, func(ctx context.Context, key string) (string, error) {
			switch key {
			case "itself":
				return l.Load(ctx, key)
			case "outer":
				return l.Load(ctx, "itself")
			case "nil":
				return "", (*PanicError)(nil)
			}
			return "", errors.New("singleflight: down")
		})
		_, err := l.LoadMany(t.Context(), []string{"k", "outer", "nil"})
		require.EqualError(t, err, `singleflight: load "k": singleflight: down
singleflight: load "outer": singleflight: the call for "itself" calls itself
singleflight: load "nil": <nil>`)
		_, err = l.LoadMany(t.Context(), []string{"itself"})
		require.EqualError(t, err, `singleflight: the call for "itself" calls itself`)
		require.NoError(t, l.Close(t.Context()))
	})
}

// Without what makes it fast, LoadMany loads all the same: with a source for one key, with a plain
// cache, and without locks.
func TestLoadManyPlain(t *testing.T) {
	keys := []string{"a", "b", "c", "d"}
	want := map[string]string{"a": "A", "b": "B", "c": "C", "d": "D"}
	upper := func(_ context.Context, key string) (string, error) { return strings.ToUpper(key), nil }
	t.Run("single source", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newShared()
			values, err := NewLoader[string](s.locks, s.cache, upper).LoadMany(t.Context(), keys)
			require.NoError(t, err)
			require.Equal(t, want, values)
		})
	})
	t.Run("plain cache", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newBackend().process()
			var b batches
			for range 2 {
				values, err := NewBatchLoader(p.locker(), p.cache(), b.source(0, nil)).LoadMany(t.Context(), keys)
				require.NoError(t, err)
				require.Equal(t, want, values)
			}
			require.Equal(t, []string{"a b c d"}, b.all())
			require.Equal(t, 4, p.count("set"))
		})
	})
	t.Run("no locks", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newShared()
			p := newBackend().process()
			p.onAcquire = func(context.Context, string) error { return errors.New("down") }
			var b batches
			l := NewBatchLoader[string](p.locker(), s.cache, b.source(0, nil))
			values, err := l.LoadMany(t.Context(), keys)
			require.NoError(t, err)
			require.Equal(t, want, values)
			require.Equal(t, []string{"a b c d"}, b.all())
			time.Sleep(10 * time.Second)
			_, ok, err := s.cache.Get(t.Context(), "a")
			require.NoError(t, err)
			require.True(t, ok)
		})
	})
	t.Run("no cache", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newBackend().process()
			p.onGet = func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }
			var b batches
			l := NewBatchLoader(p.locker(), p.cache(), b.source(0, nil))
			began := time.Now()
			values, err := l.LoadMany(t.Context(), keys)
			require.NoError(t, err)
			require.Equal(t, want, values)
			require.Equal(t, defaultOptions.backendTimeout, time.Since(began))
			require.Equal(t, []string{"a b c d"}, b.all())
			require.NoError(t, l.Close(t.Context()))
		})
	})
}

// Processes whose lists overlap, in any order, load each key once and do not wait for each other in a
// circle.
func TestLoadManyOverlaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShared()
		var keys []string
		for i := range 40 {
			keys = append(keys, fmt.Sprint("k", i))
		}
		var mu sync.Mutex
		loaded := make(map[string]int)
		var processes []*Loader[string]
		for range 4 {
			processes = append(processes, NewBatchLoader[string](s.locks, s.cache,
				func(_ context.Context, keys []string) (map[string]string, error) {
					time.Sleep(time.Duration(1+rand.N(100)) * time.Millisecond)
					values := make(map[string]string)
					mu.Lock()
					defer mu.Unlock()
					for _, key := range keys {
						values[key] = key
						loaded[key]++
					}
					return values, nil
				}))
		}
		began := time.Now()
		var callers sync.WaitGroup
		for i := range 24 {
			callers.Go(func() {
				time.Sleep(rand.N(50 * time.Millisecond))
				var mine []string
				for _, at := range rand.Perm(len(keys))[:30] {
					mine = append(mine, keys[at])
				}
				if i%6 == 0 {
					v, err := processes[i%4].Load(t.Context(), mine[0])
					assert.NoError(t, err)
					assert.Equal(t, mine[0], v)
					return
				}
				values, err := processes[i%4].LoadMany(t.Context(), mine)
				assert.NoError(t, err)
				assert.Len(t, values, len(mine))
				for _, key := range mine {
					assert.Equal(t, key, values[key])
				}
			})
		}
		callers.Wait()
		require.Less(t, time.Since(began), time.Second)
		for _, l := range processes {
			require.NoError(t, l.Close(t.Context()))
		}
		for key, n := range loaded {
			require.Equal(t, 1, n, key)
		}
	})
}

// A caller that leaves gets its context's error at once. The load goes on, and is stored.
func TestLoadManyCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShared()
		var b batches
		l := NewBatchLoader[string](s.locks, s.cache, b.source(time.Minute/2, nil))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		values, err := l.LoadMany(ctx, []string{"a", "b"})
		require.Empty(t, values)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(began))
		v, err := l.Load(t.Context(), "b")
		require.NoError(t, err)
		require.Equal(t, "B", v)
		require.Equal(t, []string{"a b"}, b.all())
		_, err = l.LoadMany(ctx, []string{"c"})
		require.ErrorIs(t, err, context.DeadlineExceeded)

		// Close ends the source that nobody waits for.
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = l.LoadMany(ctx, []string{"d", "e"})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		began = time.Now()
		require.NoError(t, l.Close(t.Context()))
		require.Zero(t, time.Since(began))
	})
}

// More keys than are loaded together are loaded in several steps.
func TestLoadManyOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShared()
		var b batches
		l := NewBatchLoader[string](s.locks, s.cache, b.source(0, nil))
		var keys []string
		for i := range maxMany + 1 {
			keys = append(keys, fmt.Sprint("k", i))
		}
		values, err := l.LoadMany(t.Context(), keys)
		require.NoError(t, err)
		require.Len(t, values, len(keys))
		require.Equal(t, []string{strings.Join(keys[:maxMany], " "), keys[maxMany]}, b.all())
	})
}

// slowLook is a cache whose Look takes a moment.
type slowLook struct{ *memory.Cache[string] }

func (c slowLook) Look(ctx context.Context, all ...*slots.Slot[string]) error {
	select {
	case <-time.After(20 * time.Millisecond):
		return c.Cache.Look(ctx, all...)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// slowKey is a Locker that takes long for one key.
type slowKey struct {
	locker.Locker
	key string
	d   time.Duration
}

func (l slowKey) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if key == l.key {
		time.Sleep(l.d)
	}
	return l.Locker.Acquire(ctx, key, token, ttl)
}

// A lock request that takes nearly as long as a request may leaves the cache its whole time.
func TestLoadManyWithSlowLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShared()
		held, err := locker.Lock(t.Context(), s.locks, "slow", time.Minute)
		require.NoError(t, err)
		var b batches
		l := NewBatchLoader(slowKey{s.locks, "slow", 1990 * time.Millisecond}, slowLook{s.cache}, b.source(0, nil))
		time.AfterFunc(2500*time.Millisecond, func() { assert.NoError(t, held.Unlock(t.Context())) })
		_, err = l.LoadMany(t.Context(), []string{"a", "b", "slow"})
		require.NoError(t, err)
		synctest.Wait()
		for _, key := range []string{"a", "b", "slow"} {
			_, ok, err := s.cache.Get(t.Context(), key)
			require.NoError(t, err)
			require.True(t, ok, "%s is not in the cache", key)
		}
		require.NoError(t, l.Close(t.Context()))
	})
}

// With a source for one key, a key whose source is slow holds up neither the store nor the lock of
// another, and the cache is not taken for one that does not answer.
func TestLoadManyOfOneSlowKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShared()
		l := NewLoader[string](s.locks, s.cache, func(_ context.Context, key string) (string, error) {
			if key == "slow" {
				time.Sleep(time.Minute / 2)
			}
			return strings.ToUpper(key), nil
		})
		loads := make(chan error)
		go func() {
			_, err := l.LoadMany(t.Context(), []string{"fast", "slow"})
			loads <- err
		}()
		synctest.Wait()
		v, ok, err := s.cache.Get(t.Context(), "fast")
		require.NoError(t, err)
		require.True(t, ok, "not stored")
		require.Equal(t, "FAST", v)
		held, err := locker.TryLock(t.Context(), s.locks, "fast", time.Second)
		require.NoError(t, err)
		require.NoError(t, held.Unlock(t.Context()))
		time.Sleep(2 * defaultOptions.backendTimeout)
		require.True(t, l.cacheBreaker.allows("fast"))
		require.NoError(t, <-loads)
		require.NoError(t, l.Close(t.Context()))
	})
}

// A source for one key may load another key of the list that has not come as far.
func TestLoadManySourceLoadsAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newBackend().process()
		p.onGet = func(_ context.Context, key string) error {
			if key == "damaged" {
				return errAnswered
			}
			return nil
		}
		var l *Loader[string]
		l = NewLoader(p.locker(), p.cache(), func(ctx context.Context, key string) (string, error) {
			if key == "damaged" {
				return l.Load(ctx, "good")
			}
			return key, nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		values, err := l.LoadMany(ctx, []string{"damaged", "good"})
		require.NoError(t, err)
		require.Equal(t, map[string]string{"damaged": "good", "good": "good"}, values)
		require.NoError(t, l.Close(t.Context()))
	})
}

// A batch source that loads one of its own keys gets an error, whichever it is, and whether or not the
// locks are held.
func TestLoadManySourceLoadsItself(t *testing.T) {
	for _, locked := range []bool{true, false} {
		for _, name := range []string{"a", "b", "c"} {
			t.Run(fmt.Sprint(name, ", with the locks ", locked), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := newBackend().process()
					if !locked {
						p.onAcquire = func(context.Context, string) error { return errAnswered }
					}
					var l *Loader[string]
					l = NewBatchLoader(p.locker(), p.cache(), func(ctx context.Context, keys []string) (map[string]string, error) {
						if len(keys) > 1 {
							_, err := l.Load(ctx, name)
							assert.EqualError(t, err, fmt.Sprintf("singleflight: the call for %q calls itself", name))
							_, err = l.LoadMany(ctx, []string{"another"})
							assert.NoError(t, err)
						}
						values := make(map[string]string)
						for _, key := range keys {
							values[key] = key
						}
						return values, nil
					})
					ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
					defer cancel()
					began := time.Now()
					_, err := l.LoadMany(ctx, []string{"a", "b", "c"})
					require.NoError(t, err)
					require.Zero(t, time.Since(began))
					require.NoError(t, l.Close(t.Context()))
				})
			})
		}
	}
}
