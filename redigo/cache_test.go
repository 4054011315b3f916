package redigo

import (
	"testing"
	"time"

	"github.com/golockers/locker/conformance"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/singleflight"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCacheConformance(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	conformance.RunCache(t, conformance.CacheConfig[string]{
		Addr: addr,
		New: func(tb testing.TB, addr string, ttl, stale time.Duration) singleflight.Cache[string] {
			return NewCache(newPool(tb, addr), CacheConfig[string]{TTL: ttl, Stale: stale})
		},
		Damage: func(tb testing.TB, key string) { newRaw(tb, addr).do("SETEX", "cache:"+key, 3600, "{") },
	})
}

// The server has the value as it is, for its ttl and Stale together, and is asked in commands of
// Redis 2.6.
func TestCacheOnServer(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	raw := newRaw(t, srv.Addr)
	w, pool := newWire(t, srv.Addr)
	ctx := t.Context()
	c := NewCache(pool, CacheConfig[[]string]{TTL: time.Minute, Stale: time.Hour})
	require.NoError(t, c.Set(ctx, "k", []string{"a", "b"}))
	assert.Equal(t, []string{"MULTI PSETEX DEL EXEC"}, w.requests())
	assert.Equal(t, `["a","b"]`, raw.string("GET", "cache:k"))
	assert.InDelta(t, 3660, raw.do("TTL", "cache:k"), 20)
	v, ok, err := c.Get(ctx, "k")
	require.NoError(t, err)
	require.True(t, ok)
	assert.Equal(t, []string{"a", "b"}, v)
	assert.Equal(t, []string{"PTTL GET"}, w.requests())
	added, err := c.Add(ctx, "k", nil)
	require.NoError(t, err)
	assert.False(t, added)
	assert.Equal(t, []string{"WATCH EXISTS PTTL", "UNWATCH"}, w.requests())

	// What other programs store is as good, without an expiry too.
	raw.do("SET", "cache:l", "null")
	v, ok, err = c.Get(ctx, "l")
	require.NoError(t, err)
	assert.True(t, ok)
	assert.Nil(t, v)
	added, err = c.Add(ctx, "l", nil)
	require.NoError(t, err)
	assert.False(t, added)

	raw.do("RPUSH", "cache:m", "a list")
	_, ok, err = c.Get(ctx, "m")
	assert.False(t, ok)
	assert.ErrorContains(t, err, `redigo: cache get "m": GET: WRONGTYPE`)
	require.NoError(t, c.Set(ctx, "m", nil))
	_, ok, err = c.Get(ctx, "m")
	require.NoError(t, err)
	assert.True(t, ok)
	assert.EqualValues(t, 1, w.dials.Load(), "connections went back to the pool as they were")
}

// Add starts again when another process changes the key under it.
func TestCacheAddRepeats(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	raw := newRaw(t, srv.Addr)
	w, pool := newWire(t, srv.Addr)
	c := NewCache(pool, CacheConfig[string]{TTL: time.Minute, Stale: time.Hour})
	changes := 0
	w.onSending(func(request string) {
		if request == "MULTI PSETEX DEL EXEC" && changes > 0 {
			changes--
			raw.do("PSETEX", "cache:k", 3600_000-changes, `"stale"`)
		}
	})
	changes = maxRepeats
	added, err := c.Add(t.Context(), "k", "added")
	require.NoError(t, err)
	assert.True(t, added)
	assert.Zero(t, changes)

	raw.do("DEL", "cache:k")
	changes = maxRepeats + 1
	added, err = c.Add(t.Context(), "k", "added")
	assert.False(t, added)
	assert.ErrorIs(t, err, errChanged)
	assert.Equal(t, `"stale"`, raw.string("GET", "cache:k"))
	require.NoError(t, c.Delete(t.Context(), "k"))
	assert.EqualValues(t, 1, w.dials.Load(), "connections went back to the pool as they were")
}
