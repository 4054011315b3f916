package redisv9_test

import (
	"context"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// moving is a Cluster of two nodes, and a slot, that of {tag}, which moves from one to the other.
type moving struct {
	nodes    []string
	from, to *redis.Client
	slot     int64
}

func newMoving(tb testing.TB) *moving {
	tb.Helper()
	m := &moving{nodes: testserver.RedisCluster(tb, 2)}
	m.from, m.to = newClient(tb, &redis.Options{Addr: m.nodes[0]}), newClient(tb, &redis.Options{Addr: m.nodes[1]})
	if m.from.Get(tb.Context(), "{tag}").Err() != redis.Nil {
		m.from, m.to = m.to, m.from
	}
	m.slot = m.from.ClusterKeySlot(tb.Context(), "{tag}").Val()
	return m
}

func (m *moving) setSlot(tb testing.TB, node *redis.Client, state string, other *redis.Client) {
	tb.Helper()
	id := other.Do(tb.Context(), "cluster", "myid").Val()
	require.NoError(tb, node.Do(tb.Context(), "cluster", "setslot", m.slot, state, id).Err())
}

// begin begins to move the slot; its keys stay.
func (m *moving) begin(tb testing.TB) {
	tb.Helper()
	m.setSlot(tb, m.to, "importing", m.from)
	m.setSlot(tb, m.from, "migrating", m.to)
}

// end ends it. The slot has no keys.
func (m *moving) end(tb testing.TB) {
	tb.Helper()
	m.setSlot(tb, m.to, "node", m.to)
	m.setSlot(tb, m.from, "node", m.to)
}

func (m *moving) client(tb testing.TB, maxRetries int) *redis.ClusterClient {
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: m.nodes, MaxRetries: maxRetries, ContextTimeoutEnabled: true,
	})
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

// A request that was redirected did nothing: a Release that was sent again for that reason alone is
// refused if its token holds nothing, before, during and after the migration of a slot.
func TestReleaseRedirected(t *testing.T) {
	t.Parallel()
	for name, maxRetries := range map[string]int{"MaxRetries -1": -1, "default": 0, "MaxRetries 3": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMoving(t)
			l := redisv9.New(m.client(t, maxRetries))
			lease, err := locker.Lock(t.Context(), l, "k{tag}", time.Minute)
			require.NoError(t, err)
			_, err = locker.Break(t.Context(), redisv9.New(m.client(t, 0)), "k{tag}")
			require.NoError(t, err)
			releasesNothing(t, l, "k{tag}")
			m.begin(t)
			releasesNothing(t, l, "k{tag}")
			m.end(t)
			eventually(t, "another takes the lock", func() bool {
				ok, err := redisv9.New(newCluster(t, m.nodes)).Acquire(t.Context(), "k{tag}", "other", time.Minute)
				return ok && err == nil
			})
			assert.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld)
			releasesNothing(t, l, "k{tag}")
		})
	}
}

// Acquire, Extend and Release work while a slot migrates, whether the lock has been moved or not.
func TestMigratingSlot(t *testing.T) {
	t.Parallel()
	for name, maxRetries := range map[string]int{"MaxRetries -1": -1, "default": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			m := newMoving(t)
			l := redisv9.New(m.client(t, maxRetries))
			acquires(t, l, "old{tag}", "t", time.Minute)
			acquires(t, l, "queued{tag}", "t", time.Minute)
			waiting, cancel := context.WithCancel(ctx)
			defer cancel()
			done := make(chan turn, 1)
			go func() {
				deadline, err := redisv9.New(m.client(t, 0)).Wait(waiting, "queued{tag}", "next", time.Minute)
				done <- turn{deadline, err}
			}()
			eventually(t, "it waits", func() bool { return queueLength(m.from, "queued{tag}") == 1 })
			m.begin(t)
			acquires(t, l, "new{tag}", "t", time.Minute)
			for _, key := range []string{"old{tag}", "queued{tag}", "new{tag}"} {
				ok, err := l.Extend(ctx, key, "t", time.Hour)
				require.NoError(t, err, key)
				require.True(t, ok, key)
				acquires(t, l, key, "t", time.Minute)
				ok, err = l.Extend(ctx, key, "another", time.Hour)
				require.NoError(t, err, key)
				require.False(t, ok, key)
			}
			for _, key := range []string{"old{tag}", "queued{tag}", "new{tag}"} {
				releases(t, l, key, "t")
			}
			isServed(t, done, "the lock was released")
		})
	}
}

// An Add that was redirected knows whether it has added the value.
func TestCacheAddRedirected(t *testing.T) {
	t.Parallel()
	for name, stale := range map[string]time.Duration{"SET": 0, "script": time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMoving(t)
			config := redisv9.CacheConfig[int]{TTL: time.Minute, Stale: stale}
			c := redisv9.NewCache(m.client(t, 0), config)
			_, _, err := c.Get(t.Context(), "k{tag}") // it knows the slots
			require.NoError(t, err)
			m.begin(t)
			m.end(t)
			eventually(t, "another sets the value", func() bool {
				return redisv9.NewCache(newCluster(t, m.nodes), config).Set(t.Context(), "k{tag}", 1) == nil
			})
			added, err := c.Add(t.Context(), "k{tag}", 2)
			require.NoError(t, err)
			assert.False(t, added)
			added, err = c.Add(t.Context(), "other{tag}", 2)
			require.NoError(t, err)
			assert.True(t, added)
		})
	}
}
