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
	"github.com/stretchr/testify/require"
)

func TestCacheConformance(t *testing.T) {
	for name, contextTimeout := range map[string]bool{"defaults": false, "ContextTimeoutEnabled": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := testserver.Redis(t).Addr
			conformance.RunCache(t, conformance.CacheConfig[string]{
				Addr: addr,
				New: func(tb testing.TB, addr string, ttl, stale time.Duration) singleflight.Cache[string] {
					client := newClient(tb, &redis.Options{Addr: addr, ContextTimeoutEnabled: contextTimeout})
					return redisv9.NewCache(client, redisv9.CacheConfig[string]{TTL: ttl, Stale: stale})
				},
				Damage: func(tb testing.TB, key string) {
					client := newClient(tb, &redis.Options{Addr: addr})
					require.NoError(tb, client.Set(context.Background(), "cache:"+key, "{", time.Minute*30).Err())
				},
			})
		})
	}
}
