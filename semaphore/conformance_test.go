package semaphore_test

import (
	"testing"
	"time"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/golockers/locker/conformance"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/memcache"
	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/redigo"
	"github.com/golockers/locker/redisv9"
	"github.com/golockers/locker/semaphore"
	redigoclient "github.com/gomodule/redigo/redis"
	"github.com/redis/go-redis/v9"
)

func onRedis(tb testing.TB, addr string) locker.Locker {
	tb.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr})
	tb.Cleanup(func() { _ = client.Close() })
	return redisv9.New(client)
}

// lockQueues hides from a semaphore that redisv9 keeps one queue for all permits, so that it uses
// the queue of an additional lock. Package semaphore does not know what a Locker that embeds
// another one has changed.
type lockQueues struct{ *redisv9.Locker }

func onLockQueues(tb testing.TB, addr string) locker.Locker {
	tb.Helper()
	return lockQueues{onRedis(tb, addr).(*redisv9.Locker)}
}

// Why the suites run once for most changes.
const (
	variants = "the suite runs on redisv9, and that of a semaphore in each way of queueing"
	backends = "the suite runs on redisv9 in both ways of queueing, and on memcache, which is polled"
)

// A Locker with one permit is a Locker like any other.
func TestConformance(t *testing.T) {
	t.Parallel()
	t.Run("memory", func(t *testing.T) {
		testserver.Variant(t, variants)
		t.Parallel()
		m := memory.New()
		conformance.Run(t, conformance.Config{
			New: func(testing.TB, string) locker.Locker { return semaphore.NewLocker(m, 1) },
		})
	})
	for name, open := range map[string]func(tb testing.TB, addr string) locker.Locker{
		"redisv9": onRedis, "redisv9, queues of locks": onLockQueues,
	} {
		t.Run(name, func(t *testing.T) {
			if name != "redisv9" {
				testserver.Variant(t, variants)
			}
			t.Parallel()
			c := conformance.Config{
				Addr: testserver.Redis(t).Addr,
				New:  func(tb testing.TB, addr string) locker.Locker { return semaphore.NewLocker(open(tb, addr), 1) },
			}
			conformance.Run(t, c)
		})
	}
}

// The rules of a semaphore hold on every backend of this module. The backends in other modules have
// the same test.
func TestSemaphore(t *testing.T) {
	t.Parallel()
	t.Run("memory", func(t *testing.T) {
		testserver.Variant(t, backends)
		t.Parallel()
		m := memory.New()
		conformance.RunSemaphore(t, conformance.SemaphoreConfig{
			New: func(testing.TB, string) locker.Locker { return m },
		})
	})
	t.Run("redisv9", func(t *testing.T) {
		t.Parallel()
		conformance.RunSemaphore(t, conformance.SemaphoreConfig{
			Addr: testserver.Redis(t).Addr,
			New:  onRedis,
		})
	})
	t.Run("redisv9, queues of locks", func(t *testing.T) {
		t.Parallel()
		conformance.RunSemaphore(t, conformance.SemaphoreConfig{
			Addr: testserver.Redis(t).Addr,
			New:  onLockQueues,
		})
	})
	t.Run("redigo", func(t *testing.T) {
		testserver.Variant(t, backends)
		t.Parallel()
		conformance.RunSemaphore(t, conformance.SemaphoreConfig{
			Addr: testserver.Redis(t).Addr,
			New: func(tb testing.TB, addr string) locker.Locker {
				pool := &redigoclient.Pool{MaxIdle: 64, Dial: func() (redigoclient.Conn, error) {
					return redigoclient.Dial("tcp", addr)
				}}
				tb.Cleanup(func() { _ = pool.Close() })
				return redigo.New(pool)
			},
			Granularity: 50 * time.Millisecond,
		})
	})
	t.Run("memcache", func(t *testing.T) {
		t.Parallel()
		conformance.RunSemaphore(t, conformance.SemaphoreConfig{
			Addr: testserver.Memcached(t).Addr,
			New: func(tb testing.TB, addr string) locker.Locker {
				client := gomemcache.New(addr)
				client.Timeout = 3 * time.Second
				tb.Cleanup(func() { _ = client.Close() })
				return memcache.New(client)
			},
			Granularity: 3 * time.Second,
		})
	})
	t.Run("cohort", func(t *testing.T) {
		testserver.Variant(t, backends)
		t.Parallel()
		m := memory.New()
		conformance.RunSemaphore(t, conformance.SemaphoreConfig{
			New: func(testing.TB, string) locker.Locker { return cohort.New(m) },
			Skip: map[string]string{
				"permits/owner":     "a token is good only on the Locker that granted it",
				"permits-wait/fifo": "processes take turns, whichever waiter came first",
			},
		})
	})
}
