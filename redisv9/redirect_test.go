package redisv9_test

import (
	"testing"
	"time"

	"github.com/golockers/locker/internal/redislock/redistest"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A request that was redirected did nothing: a Release that was sent again for that reason alone is
// refused if its token holds nothing, before, during and after the migration of a slot.
func TestReleaseRedirected(t *testing.T) {
	t.Parallel()
	for name, maxRetries := range map[string]int{"MaxRetries -1": -1, "default": 0, "MaxRetries 3": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.ReleaseRedirected(t, func(nodes []string) redistest.Locker {
				return redisv9.New(newRetrying(t, nodes, maxRetries))
			})
		})
	}
}

// Acquire, Extend and Release work while a slot migrates, whether the lock has been moved or not.
func TestMigratingSlot(t *testing.T) {
	t.Parallel()
	for name, maxRetries := range map[string]int{"MaxRetries -1": -1, "default": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.MigratingSlot(t, func(nodes []string) redistest.Locker {
				return redisv9.New(newRetrying(t, nodes, maxRetries))
			})
		})
	}
}

func newRetrying(tb testing.TB, nodes []string, maxRetries int) *redis.ClusterClient {
	tb.Helper()
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: nodes, MaxRetries: maxRetries, ContextTimeoutEnabled: true,
	})
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

// An Add that was redirected knows whether it has added the value.
func TestCacheAddRedirected(t *testing.T) {
	t.Parallel()
	for name, stale := range map[string]time.Duration{"SET": 0, "script": time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := redistest.NewMoving(t)
			config := redisv9.CacheConfig[int]{TTL: time.Minute, Stale: stale}
			c := redisv9.NewCache(newRetrying(t, m.Nodes, 0), config)
			_, _, err := c.Get(t.Context(), "k{tag}") // it knows the slots
			require.NoError(t, err)
			m.Begin(t)
			m.End(t)
			eventually(t, "another sets the value", func() bool {
				return redisv9.NewCache(newCluster(t, m.Nodes), config).Set(t.Context(), "k{tag}", 1) == nil
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
