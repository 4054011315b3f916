//go:build linux

package failover

import (
	"context"
	"testing"
	"time"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/memcache"
	"github.com/golockers/locker/postgres"
	"github.com/golockers/locker/redigo"
	"github.com/golockers/locker/redisv9"
	redigoclient "github.com/gomodule/redigo/redis"
	"github.com/redis/go-redis/v9"
)

var restartScenarios = []scenario{
	{name: "memcache: server restarted", start: restart(openMemcache, memcached), loses: true, slow: true},
	{name: "redigo: server restarted without data", start: restart(openRedigo, withoutData), loses: true, slow: true},
	{name: "redisv9: server restarted without data", start: restart(openRedisv9, withoutData), loses: true, slow: true},
	{
		name: "redisv9: server restarted, appendfsync always", keeps: true, slow: true,
		start: restart(openRedisv9, withData),
	},
	{name: "postgres: server restarted", start: restart(openPostgres, durable), keeps: true, slow: true},
}

func memcached(t *testing.T) *testserver.Server   { return testserver.Memcached(t) }
func withoutData(t *testing.T) *testserver.Server { return testserver.Redis(t) }
func withData(t *testing.T) *testserver.Server {
	return testserver.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
}

func durable(t *testing.T) *testserver.Server {
	server := testserver.Postgres(t, "-c", "fsync=on")
	makeTable(t, server.Addr)
	return server
}

func openMemcache(_ testing.TB, addr string) locker.Locker {
	client := gomemcache.New(addr)
	client.Timeout = timeout
	return memcache.New(client)
}

func openRedigo(tb testing.TB, addr string) locker.Locker {
	pool := &redigoclient.Pool{MaxIdle: 16, DialContext: func(ctx context.Context) (redigoclient.Conn, error) {
		return redigoclient.DialContext(ctx, "tcp", addr, redigoclient.DialConnectTimeout(timeout),
			redigoclient.DialReadTimeout(timeout), redigoclient.DialWriteTimeout(timeout))
	}}
	tb.Cleanup(func() { _ = pool.Close() })
	return redigo.New(pool)
}

func openRedisv9(tb testing.TB, addr string) locker.Locker {
	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true, MaxRetries: -1,
		DialTimeout: timeout, ReadTimeout: timeout, WriteTimeout: timeout})
	tb.Cleanup(func() { _ = client.Close() })
	return redisv9.New(client)
}

func openPostgres(tb testing.TB, addr string) locker.Locker { return postgres.New(openPool(tb, addr)) }

// restart kills a server that is the only one, and starts it again.
func restart(open func(tb testing.TB, addr string) locker.Locker, serve func(t *testing.T) *testserver.Server) start {
	return func(t *testing.T) *system {
		server := serve(t)
		return &system{
			open: func(tb testing.TB) locker.Locker { return open(tb, server.Addr) },
			fail: func(*load) {
				server.Stop()
				time.Sleep(lag)
				server.Restart()
			},
		}
	}
}
