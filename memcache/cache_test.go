package memcache

import (
	"testing"
	"time"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker/conformance"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/singleflight"
	"github.com/stretchr/testify/require"
)

func TestCacheConformance(t *testing.T) {
	addr := testserver.Memcached(t).Addr
	conformance.RunCache(t, conformance.CacheConfig[string]{
		Addr: addr,
		New: func(tb testing.TB, addr string, ttl, stale time.Duration) singleflight.Cache[string] {
			return NewCache(newClient(tb, addr), CacheConfig[string]{TTL: ttl, Stale: stale})
		},
		Damage: func(tb testing.TB, key string) {
			err := newClient(tb, addr).Set(&gomemcache.Item{Key: itemKey("cache:", key), Value: []byte("garbage"), Expiration: 1800})
			require.NoError(tb, err)
		},
	})
}
