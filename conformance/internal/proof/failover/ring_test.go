//go:build linux

package failover

import (
	"fmt"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
)

var ringScenarios = []scenario{
	{name: "redisv9, Ring: shard hangs", start: hangShard(0), slow: true},
	{name: "redisv9, Ring without heartbeats: shard hangs", start: hangShard(24 * time.Hour), keeps: true, slow: true},
}

// hangShard stops one of two shards until clients with the default heartbeats use the other one.
func hangShard(heartbeat time.Duration) start {
	return func(t *testing.T) *system {
		shards := []*testserver.Server{testserver.Redis(t), testserver.Redis(t)}
		addrs := make(map[string]string)
		for i, shard := range shards {
			addrs[fmt.Sprint("shard", i)] = shard.Addr
		}
		return &system{
			open: func(tb testing.TB) locker.Locker {
				client := redis.NewRing(&redis.RingOptions{
					Addrs: addrs, HeartbeatFrequency: heartbeat, ContextTimeoutEnabled: true, MaxRetries: -1,
					DialTimeout: timeout, ReadTimeout: timeout, WriteTimeout: timeout,
				})
				tb.Cleanup(func() { _ = client.Close() })
				return redisv9.New(client)
			},
			fail: func(*load) {
				shards[0].Pause()
				time.Sleep(2 * keeperTTL)
				shards[0].Continue()
			},
		}
	}
}
