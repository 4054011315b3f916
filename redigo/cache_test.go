package redigo

import (
	"testing"
	"time"

	"github.com/golockers/locker/conformance"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/singleflight"
)

func TestCacheConformance(t *testing.T) {
	addr := testserver.Redis(t).Addr
	conformance.RunCache(t, conformance.CacheConfig[string]{
		Addr: addr,
		New: func(tb testing.TB, addr string, ttl, stale time.Duration) singleflight.Cache[string] {
			return NewCache(newPool(tb, addr), CacheConfig[string]{TTL: ttl, Stale: stale})
		},
		Damage: func(tb testing.TB, key string) { newRaw(tb, addr).do("SETEX", "cache:"+key, 1800, "{") },
	})
}
