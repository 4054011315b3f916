package redisv9_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
)

// On a Ring all waiters of a Locker share one channel, on all shards.
func TestWaitOnRing(t *testing.T) {
	shards := map[string]string{}
	var admins []*redis.Client
	for i := range 3 {
		addr := testserver.Redis(t).Addr
		shards[fmt.Sprint("shard", i)] = addr
		admins = append(admins, newClient(t, &redis.Options{Addr: addr}))
	}
	l := redisv9.New(newRing(t, shards))
	for i := range 20 {
		key := fmt.Sprint("k", i)
		acquires(t, l, key, "a", time.Minute)
		done := make(chan turn, 1)
		go func() {
			deadline, err := l.Wait(t.Context(), key, "b", time.Minute)
			done <- turn{deadline, err}
		}()
		eventually(t, "it is in the queue", func() bool {
			for _, admin := range admins {
				if queueLength(admin, key) > 0 {
					return true
				}
			}
			return false
		})
		releases(t, l, key, "a")
		isServed(t, done, "the lock was released")
	}
	for _, admin := range admins {
		assert.Len(t, admin.PubSubChannels(t.Context(), "!wait:*").Val(), 1)
	}
}
