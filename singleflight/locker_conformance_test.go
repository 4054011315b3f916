package singleflight_test

import (
	"testing"
	"time"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/memcache"
	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/redigo"
	"github.com/golockers/locker/redisv9"
	"github.com/golockers/locker/singleflight"
	redigoclient "github.com/gomodule/redigo/redis"
	"github.com/redis/go-redis/v9"
)

// The whole suite holds for a Locker over every backend. Each of its Lockers stands for a process.
func TestLockerConformance(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		m := memory.New()
		conformance.Run(t, conformance.Config{
			New: func(testing.TB, string) locker.Locker { return singleflight.NewLocker(m) },
		})
	})
	t.Run("redisv9", func(t *testing.T) {
		conformance.Run(t, conformance.Config{
			Addr: testserver.Redis(t).Addr,
			New: func(tb testing.TB, addr string) locker.Locker {
				client := redis.NewClient(&redis.Options{Addr: addr})
				tb.Cleanup(func() { _ = client.Close() })
				return singleflight.NewLocker(redisv9.New(client))
			},
		})
	})
	t.Run("redigo", func(t *testing.T) {
		conformance.Run(t, conformance.Config{
			Addr: testserver.Redis(t).Addr,
			New: func(tb testing.TB, addr string) locker.Locker {
				pool := &redigoclient.Pool{Dial: func() (redigoclient.Conn, error) {
					return redigoclient.Dial("tcp", addr)
				}}
				tb.Cleanup(func() { _ = pool.Close() })
				return singleflight.NewLocker(redigo.New(pool))
			},
		})
	})
	t.Run("memcache", func(t *testing.T) {
		conformance.Run(t, conformance.Config{
			Addr: testserver.Memcached(t).Addr,
			New: func(tb testing.TB, addr string) locker.Locker {
				client := gomemcache.New(addr)
				client.Timeout = 3 * time.Second // half a second is little on a busy machine
				tb.Cleanup(func() { _ = client.Close() })
				return singleflight.NewLocker(memcache.New(client))
			},
			Granularity: 3 * time.Second,
		})
	})
}
