package doctest

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/memcache"
	"github.com/golockers/locker/redigo"
	"github.com/golockers/locker/redisv9"
	redigoredis "github.com/gomodule/redigo/redis"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// BenchmarkPool measures what the settings of connection pools are worth to eight callers on each
// processor, each of which locks and unlocks a lock of its own with a deadline of a second.
func BenchmarkPool(b *testing.B) {
	redisAddr, memcachedAddr := testserver.Redis(b).Addr, testserver.Memcached(b).Addr
	goredis := func(o redis.Options) locker.Locker {
		o.Addr, o.MaxRetries = redisAddr, -1
		client := redis.NewClient(&o)
		b.Cleanup(func() { _ = client.Close() })
		return redisv9.New(client)
	}
	pool := func(idle int) locker.Locker {
		p := &redigoredis.Pool{MaxIdle: idle, DialContext: func(ctx context.Context) (redigoredis.Conn, error) {
			return redigoredis.DialContext(ctx, "tcp", redisAddr)
		}}
		b.Cleanup(func() { _ = p.Close() })
		return redigo.New(p)
	}
	memcached := func(idle int) locker.Locker {
		client := gomemcache.New(memcachedAddr)
		client.MaxIdleConns = idle
		b.Cleanup(func() { _ = client.Close() })
		return memcache.New(client)
	}
	for _, setting := range []struct {
		name   string
		locker locker.Locker
	}{
		{"go-redis/ContextTimeoutEnabled=true", goredis(redis.Options{ContextTimeoutEnabled: true})},
		{"go-redis/ContextTimeoutEnabled=false", goredis(redis.Options{})},
		{"go-redis/PoolSize=4", goredis(redis.Options{ContextTimeoutEnabled: true, PoolSize: 4})},
		{"redigo/MaxIdle=64", pool(64)},
		{"redigo/MaxIdle=8", pool(8)},
		{"redigo/MaxIdle=0", pool(0)},
		{"gomemcache/MaxIdleConns=64", memcached(64)},
		{"gomemcache/MaxIdleConns=2", memcached(2)},
	} {
		b.Run(setting.name, func(b *testing.B) {
			var callers atomic.Int64
			b.SetParallelism(8)
			b.RunParallel(func(pb *testing.PB) {
				key := strconv.FormatInt(callers.Add(1), 10)
				for pb.Next() {
					ctx, cancel := context.WithTimeout(context.Background(), time.Second)
					lease, err := locker.TryLock(ctx, setting.locker, key, 10*time.Second)
					if err == nil {
						err = lease.Unlock(ctx)
					}
					cancel()
					require.NoError(b, err)
				}
			})
		})
	}
}
