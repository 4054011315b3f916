package memory

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker/conformance"
	"github.com/golockers/locker/singleflight"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	_ singleflight.Cache[int]      = (*Cache[int])(nil)
	_ singleflight.Adder[int]      = (*Cache[int])(nil)
	_ singleflight.StaleCache[int] = (*Cache[int])(nil)
	_ singleflight.Deleter[int]    = (*Cache[int])(nil)
)

func TestCacheConformance(t *testing.T) {
	t.Parallel()
	var caches sync.Map
	conformance.RunCache(t, conformance.CacheConfig[string]{
		New: func(_ testing.TB, _ string, ttl, stale time.Duration) singleflight.Cache[string] {
			c, _ := caches.LoadOrStore([2]time.Duration{ttl, stale},
				NewCache(CacheConfig[string]{TTL: ttl, Stale: stale}))
			return c.(*Cache[string])
		},
	})
}

// wantCached fails the test unless Get and Stale return these values; "" stands for none.
func wantCached(t *testing.T, c *Cache[string], key, fresh, stale string) {
	t.Helper()
	v, ok, err := c.Get(t.Context(), key)
	require.NoError(t, err)
	assert.Equal(t, fresh, v)
	assert.Equal(t, fresh != "", ok)
	v, ok, err = c.Stale(t.Context(), key)
	require.NoError(t, err)
	assert.Equal(t, stale, v)
	assert.Equal(t, stale != "", ok)
}

// A value ends at the nanosecond.
func TestCacheTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCache(CacheConfig[string]{TTL: time.Second, Stale: time.Minute})
		require.NoError(t, c.Set(t.Context(), "k", "v"))
		time.Sleep(time.Second - time.Nanosecond)
		wantCached(t, c, "k", "v", "v")
		time.Sleep(time.Nanosecond)
		wantCached(t, c, "k", "", "v")
		time.Sleep(time.Minute - time.Nanosecond)
		wantCached(t, c, "k", "", "v")
		time.Sleep(time.Nanosecond)
		wantCached(t, c, "k", "", "")
	})
	synctest.Test(t, func(t *testing.T) {
		c := NewCache(CacheConfig[string]{TTL: math.MaxInt64, Stale: math.MaxInt64})
		require.NoError(t, c.Set(t.Context(), "k", "v"))
		time.Sleep(100 * 365 * 24 * time.Hour)
		wantCached(t, c, "k", "v", "v")
	})
}

func TestCacheTTLOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCache(CacheConfig[string]{
			Stale: time.Hour,
			TTLOf: func(v string) time.Duration { return time.Duration(len(v)-3) * time.Second },
		})
		require.NoError(t, c.Set(t.Context(), "k", "four"))
		require.NoError(t, c.Set(t.Context(), "l", "fifth"))
		time.Sleep(time.Second)
		wantCached(t, c, "k", "", "four")
		wantCached(t, c, "l", "fifth", "fifth")

		for _, v := range []string{"", "not"} {
			added, err := c.Add(t.Context(), "k", v)
			require.NoError(t, err)
			assert.False(t, added)
			wantCached(t, c, "k", "", "four")
		}
		require.NoError(t, c.Set(t.Context(), "k", "not"))
		wantCached(t, c, "k", "", "")
	})
}

func TestCacheBadInput(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	ttlOf := func(string) time.Duration { return 1 }
	for _, bad := range []struct {
		c    *Cache[string]
		want string
	}{
		{new(Cache[string]), "config: TTL is 0 and TTLOf is nil"},
		{NewCache(CacheConfig[string]{}), "config: TTL is 0 and TTLOf is nil"},
		{NewCache(CacheConfig[string]{TTL: -time.Second}), "config: TTL is negative: -1s"},
		{NewCache(CacheConfig[string]{TTL: -1, TTLOf: ttlOf}), "config: TTL is negative: -1ns"},
		{NewCache(CacheConfig[string]{TTL: 1, Stale: -time.Second}), "config: Stale is negative: -1s"},
		{NewCache(CacheConfig[string]{TTL: 1, MaxEntries: -1}), "config: MaxEntries is negative: -1"},
		{NewCache(CacheConfig[string]{TTL: 1}), "context canceled"},
	} {
		c, want := bad.c, bad.want
		_, ok, err := c.Get(ended, "k")
		assert.False(t, ok)
		assert.ErrorContains(t, err, `memory: cache get "k": `+want)
		_, ok, err = c.Stale(ended, "k")
		assert.False(t, ok)
		assert.ErrorContains(t, err, `memory: cache stale "k": `+want)
		assert.ErrorContains(t, c.Set(ended, "k", "v"), `memory: cache set "k": `+want)
		ok, err = c.Add(ended, "k", "v")
		assert.False(t, ok)
		assert.ErrorContains(t, err, `memory: cache add "k": `+want)
		assert.ErrorContains(t, c.Delete(ended, "k"), `memory: cache delete "k": `+want)
	}
}

// Whatever the operations and their key, they remove what has expired, a little each.
func TestCacheSweep(t *testing.T) {
	const n = 3000
	operations := map[string]func(c *Cache[string]) error{
		"get":    func(c *Cache[string]) error { _, _, err := c.Get(t.Context(), "k"); return err },
		"stale":  func(c *Cache[string]) error { _, _, err := c.Stale(t.Context(), "k"); return err },
		"set":    func(c *Cache[string]) error { return c.Set(t.Context(), "k", "v") },
		"add":    func(c *Cache[string]) error { _, err := c.Add(t.Context(), "k", "v"); return err },
		"delete": func(c *Cache[string]) error { return c.Delete(t.Context(), "k") },
	}
	for name, operation := range operations {
		synctest.Test(t, func(t *testing.T) {
			c := NewCache(CacheConfig[string]{
				Stale: time.Second,
				TTLOf: func(v string) time.Duration { return time.Duration(len(v)) * time.Second },
			})
			for i := range n {
				v := "v"
				if i%10 == 0 {
					v = "a value that lasts"
				}
				require.NoError(t, c.Set(t.Context(), fmt.Sprint(i), v))
			}
			time.Sleep(time.Second)
			require.Len(t, c.slots, n, "removed while stale")
			time.Sleep(time.Second)
			for range n {
				before := len(c.slots)
				require.NoError(t, operation(c))
				require.GreaterOrEqual(t, len(c.slots), before-sweepSlots-1, "too much work at once")
			}
			require.NoError(t, c.Delete(t.Context(), "k"))
			assert.Len(t, c.slots, n/10, name)
			assert.Len(t, c.index, n/10, name)
			for i := 0; i < n; i += 10 {
				wantCached(t, c, fmt.Sprint(i), "a value that lasts", "a value that lasts")
				require.NoError(t, c.Delete(t.Context(), fmt.Sprint(i)))
			}
			assert.Zero(t, c.peak, "a peak of keys keeps its memory")
		})
	}
}

// A Cache with ever new keys stays small without a limit.
func TestCacheStaysSmall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const alive = 1000
		c := NewCache(CacheConfig[string]{TTL: alive * time.Millisecond})
		for i := range 20 * alive {
			require.NoError(t, c.Set(t.Context(), fmt.Sprint(i), "v"))
			time.Sleep(time.Millisecond)
			require.LessOrEqual(t, len(c.slots), 2*alive+1)
		}
	})
}

func TestCacheMaxEntries(t *testing.T) {
	const most = 100
	c := NewCache(CacheConfig[string]{TTL: time.Hour, MaxEntries: most})
	hot := func(i int) string { return fmt.Sprint("hot ", i%10) }
	misses := 0
	for i := range 50 * most {
		v, ok, err := c.Get(t.Context(), hot(i))
		require.NoError(t, err)
		if !ok {
			misses++
			require.NoError(t, c.Set(t.Context(), hot(i), hot(i)))
		} else {
			require.Equal(t, hot(i), v)
		}
		key := fmt.Sprint(i)
		require.NoError(t, c.Set(t.Context(), key, key))
		v, ok, err = c.Get(t.Context(), key)
		require.NoError(t, err)
		require.True(t, ok, "dropped at once")
		require.Equal(t, key, v)
		require.LessOrEqual(t, len(c.slots), most)
		require.Len(t, c.index, len(c.slots))
	}
	assert.Less(t, misses, 50*most/10, "what is read all the time is dropped")

	one := NewCache(CacheConfig[string]{TTL: time.Hour, MaxEntries: 1})
	for _, key := range []string{"a", "b", "b", "c"} {
		require.NoError(t, one.Set(t.Context(), key, key))
		wantCached(t, one, key, key, key)
		require.Len(t, one.slots, 1)
	}
}

// Values are kept as they are.
func TestCacheSharesValues(t *testing.T) {
	c := NewCache(CacheConfig[*int]{TTL: time.Hour})
	v := new(int)
	require.NoError(t, c.Set(t.Context(), "k", v))
	got, ok, err := c.Get(t.Context(), "k")
	require.NoError(t, err)
	require.True(t, ok)
	assert.Same(t, v, got)
}
