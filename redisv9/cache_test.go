package redisv9_test

import (
	"context"
	"testing"
	"time"

	"github.com/golockers/locker/conformance"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/golockers/locker/singleflight"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCacheConformance(t *testing.T) {
	newCache := func(client redis.UniversalClient, ttl, stale time.Duration) singleflight.Cache[string] {
		return redisv9.NewCache(client, redisv9.CacheConfig[string]{TTL: ttl, Stale: stale})
	}
	damage := func(client redis.UniversalClient, key string) error {
		return client.Set(context.Background(), "cache:"+key, "{", time.Hour).Err()
	}
	for name, contexts := range map[string]bool{"defaults": false, "ContextTimeoutEnabled": true} {
		t.Run(name, func(t *testing.T) {
			if contexts {
				testserver.Variant(t, variants)
			}
			t.Parallel()
			addr := testserver.Redis(t).Addr
			conformance.RunCache(t, conformance.CacheConfig[string]{
				Addr: addr,
				New: func(tb testing.TB, addr string, ttl, stale time.Duration) singleflight.Cache[string] {
					return newCache(newClient(tb, &redis.Options{Addr: addr, ContextTimeoutEnabled: contexts}), ttl, stale)
				},
				Damage: func(tb testing.TB, key string) {
					require.NoError(tb, damage(newClient(tb, &redis.Options{Addr: addr}), key))
				},
			})
		})
	}
	t.Run("Cluster", func(t *testing.T) {
		testserver.Variant(t, variants)
		t.Parallel()
		nodes := testserver.RedisCluster(t, 3)
		client := newCluster(t, nodes)
		conformance.RunCache(t, conformance.CacheConfig[string]{
			New: func(_ testing.TB, _ string, ttl, stale time.Duration) singleflight.Cache[string] {
				return newCache(client, ttl, stale)
			},
			Damage: func(tb testing.TB, key string) { require.NoError(tb, damage(client, key)) },
		})
	})
	t.Run("Ring", func(t *testing.T) {
		testserver.Variant(t, variants)
		t.Parallel()
		ring := redis.NewRing(&redis.RingOptions{
			Addrs: map[string]string{"one": testserver.Redis(t).Addr, "two": testserver.Redis(t).Addr},
		})
		t.Cleanup(func() { assert.NoError(t, ring.Close()) })
		conformance.RunCache(t, conformance.CacheConfig[string]{
			New: func(_ testing.TB, _ string, ttl, stale time.Duration) singleflight.Cache[string] {
				return newCache(ring, ttl, stale)
			},
			Damage: func(tb testing.TB, key string) { require.NoError(tb, damage(ring, key)) },
		})
	})
}

// The server has the value as it is, for its ttl and Stale together.
func TestCacheOnServer(t *testing.T) {
	t.Parallel()
	client := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
	type user struct {
		Name string
		Age  int
	}
	ctx := t.Context()
	c := redisv9.NewCache(client, redisv9.CacheConfig[*user]{TTL: time.Minute, Stale: time.Hour})
	require.NoError(t, c.Set(ctx, "user/42", &user{"Ann", 30}))
	assert.Equal(t, `{"Name":"Ann","Age":30}`, client.Get(ctx, "cache:user/42").Val())
	assert.InDelta(t, time.Hour+time.Minute, client.PTTL(ctx, "cache:user/42").Val(), float64(20*time.Second))

	// What other programs store is as good, without an expiry too.
	require.NoError(t, client.Set(ctx, "cache:user/43", "null", 0).Err())
	u, ok, err := c.Get(ctx, "user/43")
	require.NoError(t, err)
	assert.True(t, ok)
	assert.Nil(t, u)
	added, err := c.Add(ctx, "user/43", &user{"Ben", 31})
	require.NoError(t, err)
	assert.False(t, added)

	require.NoError(t, client.RPush(ctx, "cache:user/44", "a list").Err())
	_, ok, err = c.Get(ctx, "user/44")
	assert.False(t, ok)
	require.ErrorContains(t, err, `redisv9: cache get "user/44": WRONGTYPE`)
	require.NoError(t, c.Set(ctx, "user/44", &user{"Cid", 32}))
	u, ok, err = c.Get(ctx, "user/44")
	require.NoError(t, err)
	assert.True(t, ok)
	assert.Equal(t, &user{"Cid", 32}, u)
}

// An Add whose reply was lost, and that go-redis repeated, may have added the value.
func TestCacheAddSentAgain(t *testing.T) {
	t.Parallel()
	for name, stale := range map[string]time.Duration{"SET": 0, "script": time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := &losing{read: make(chan struct{}), resume: make(chan struct{})}
			client := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr, Dialer: n.dial, MaxRetries: 3})
			c := redisv9.NewCache(client, redisv9.CacheConfig[string]{TTL: time.Hour, Stale: stale})
			added, err := c.Add(t.Context(), "other", "v") // the server knows the script
			require.NoError(t, err)
			require.True(t, added)
			n.next.Store(true)
			close(n.resume)
			added, err = c.Add(t.Context(), "k", "v")
			assert.False(t, added)
			assert.ErrorContains(t, err,
				`redisv9: cache add "k": not added by the last of 2 requests, but perhaps by an earlier one`)
			v, ok, err := c.Get(t.Context(), "k")
			require.NoError(t, err)
			assert.True(t, ok)
			assert.Equal(t, "v", v)
		})
	}
}

// Nothing is sent for a caller that has left, not even by go-redis, which repeats requests.
func TestCacheNotSentForCallerThatLeft(t *testing.T) {
	t.Parallel()
	n := &losing{read: make(chan struct{}), resume: make(chan struct{})}
	addr := testserver.Redis(t).Addr
	client := newClient(t, &redis.Options{Addr: addr, Dialer: n.dial, MaxRetries: 3})
	c := redisv9.NewCache(client, redisv9.CacheConfig[string]{TTL: time.Hour})
	require.NoError(t, c.Set(t.Context(), "k", "old"))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // near, so that it is left behind
	defer cancel()
	n.next.Store(true)
	set := make(chan error, 1)
	go func() { set <- c.Set(ctx, "k", "new") }()
	<-n.read
	cancel()
	require.ErrorIs(t, <-set, context.Canceled)
	require.NoError(t, newClient(t, &redis.Options{Addr: addr}).Set(t.Context(), "cache:k", `"newest"`, 0).Err())
	close(n.resume)
	added, err := c.Add(t.Context(), "k", "another")
	require.NoError(t, err)
	assert.False(t, added, "Add waits for the Set that was left behind")
	v, _, err := c.Get(t.Context(), "k")
	require.NoError(t, err)
	assert.Equal(t, "newest", v)
}

func TestCacheBadClients(t *testing.T) {
	t.Parallel()
	for _, client := range []redis.UniversalClient{(*redis.Client)(nil), (*redis.Ring)(nil), (*redis.ClusterClient)(nil)} {
		c := redisv9.NewCache(client, redisv9.CacheConfig[string]{TTL: time.Hour})
		_, _, err := c.Get(t.Context(), "k")
		assert.ErrorContains(t, err, "nil client")
		assert.ErrorContains(t, c.Set(t.Context(), "k", "v"), "nil client")
	}
	unbounded := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr, ReadTimeout: -1, WriteTimeout: -1})
	c := redisv9.NewCache(unbounded, redisv9.CacheConfig[string]{TTL: time.Hour})
	require.NoError(t, c.Set(t.Context(), "k", "v"))
	v, _, err := c.Get(t.Context(), "k")
	require.NoError(t, err)
	assert.Equal(t, "v", v)
}
