package cohort_test

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
	redigoclient "github.com/gomodule/redigo/redis"
	"github.com/redis/go-redis/v9"
)

// skip names the checks that hold on no Locker of this package.
var skip = map[string]string{
	"release/from-another-client":   "a token is good only on the Locker that granted it",
	"sametoken/any-client":          "a token is good only on the Locker that granted it",
	"inspect/from-another-client":   "to other processes the holder's token is that of its cohort",
	"watch/handoff":                 "a handoff inside the process wakes no watcher: the lock does not become free",
	"fault/extend-after-lost-reply": "after an Extend without an answer a longer one is an error until the release",
}

// skipPolled names the checks that do not hold over a backend that has to be polled either.
var skipPolled = with(skip, "an Acquire without an answer is undone for five seconds; after that the lock ends with its ttl",
	"fault/hang-waiter")

// variants is why the suite runs once for most changes.
const variants = "the suite runs over redisv9, and bubbles cover each kind of backend"

// The whole suite holds for a Locker over every backend. Each of its Lockers stands for a process.
func TestConformance(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		testserver.Variant(t, variants)
		t.Parallel()
		m := memory.New()
		conformance.Run(t, conformance.Config{
			Skip: skip,
			New:  func(testing.TB, string) locker.Locker { return cohort.New(m) },
		})
	})
	t.Run("redisv9", func(t *testing.T) {
		t.Parallel()
		conformance.Run(t, conformance.Config{
			Skip: skip,
			Addr: testserver.Redis(t).Addr,
			New: func(tb testing.TB, addr string) locker.Locker {
				client := redis.NewClient(&redis.Options{Addr: addr})
				tb.Cleanup(func() { _ = client.Close() })
				return cohort.New(redisv9.New(client))
			},
		})
	})
	t.Run("redigo", func(t *testing.T) {
		testserver.Variant(t, variants)
		t.Parallel()
		conformance.Run(t, conformance.Config{
			Skip: skipPolled,
			Addr: testserver.Redis(t).Addr,
			New: func(tb testing.TB, addr string) locker.Locker {
				pool := &redigoclient.Pool{MaxIdle: 64, Dial: func() (redigoclient.Conn, error) {
					return redigoclient.Dial("tcp", addr)
				}}
				tb.Cleanup(func() { _ = pool.Close() })
				return cohort.New(redigo.New(pool))
			},
		})
	})
	t.Run("memcache", func(t *testing.T) {
		testserver.Variant(t, variants)
		t.Parallel()
		conformance.Run(t, conformance.Config{
			Skip: skipPolled,
			Addr: testserver.Memcached(t).Addr,
			New: func(tb testing.TB, addr string) locker.Locker {
				client := gomemcache.New(addr)
				client.Timeout = 3 * time.Second // half a second is little on a busy machine
				tb.Cleanup(func() { _ = client.Close() })
				return cohort.New(memcache.New(client))
			},
			Granularity: 3 * time.Second,
		})
	})
}
