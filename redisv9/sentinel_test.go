package redisv9_test

import (
	"testing"

	"github.com/golockers/locker/internal/redislock/redistest"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
)

// A failover keeps what the replica has: the lock and its waiters.
func TestSentinelFailover(t *testing.T) {
	testserver.Variant(t, "the test of a failover behind a proxy always runs")
	t.Parallel()
	newClient := func(t *testing.T, sentinel string) *redis.Client {
		client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{sentinel}})
		t.Cleanup(func() { _ = client.Close() })
		return client
	}
	t.Run("defaults", func(t *testing.T) {
		t.Parallel()
		redistest.FailOver(t, func(sentinel string) redistest.Locker { return redisv9.New(newClient(t, sentinel)) })
	})
	t.Run("pipelines only", func(t *testing.T) {
		t.Parallel()
		redistest.FailOver(t, func(sentinel string) redistest.Locker {
			l := redisv9.New(newClient(t, sentinel), redisv9.WithBatching(1))
			redisv9.AlwaysBatch(l)
			return l
		})
	})
}
