package redisv9_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/golockers/locker/internal/redislock/redistest"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
		done := make(chan redistest.Turn, 1)
		go func() {
			deadline, err := l.Wait(t.Context(), key, "b", time.Minute)
			done <- redistest.Turn{Deadline: deadline, Err: err}
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

// Another shard answers for one that is down, so that waiters seem to have left their queue. When the
// shard is back, what is offered to them is passed on.
func TestLeaversOfAShardThatWasDown(t *testing.T) {
	t.Parallel()
	ctx, hung, up := t.Context(), testserver.Redis(t), testserver.Redis(t)
	ring := redis.NewRing(&redis.RingOptions{
		Addrs: map[string]string{"a": hung.Addr, "b": up.Addr}, HeartbeatFrequency: 200 * time.Millisecond,
		ContextTimeoutEnabled: true, MaxRetries: -1, ReadTimeout: time.Second, WriteTimeout: time.Second,
		DialTimeout: time.Second, PoolTimeout: time.Second,
	})
	t.Cleanup(func() { _ = ring.Close() })
	onUp, onHung := newClient(t, &redis.Options{Addr: up.Addr}), newClient(t, &redis.Options{Addr: hung.Addr})
	l, direct := redisv9.New(ring), redisv9.New(onHung)
	var key, other string // on the shard that hangs, and on the one that does not
	for i := 0; key == "" || other == ""; i++ {
		k := fmt.Sprint("k", i)
		acquires(t, l, k, "holder", time.Hour)
		if onUp.Exists(ctx, "locker:"+k).Val() == 1 {
			other = k
		} else {
			key = k
		}
	}
	joins(t, onUp, l, ctx, other, "stays", time.Hour)
	leaving, cancel := context.WithCancel(ctx)
	gone := joins(t, onHung, l, leaving, key, "gone", time.Hour)
	hung.Pause()
	eventually(t, "the shard counts as down", func() bool { return ring.Len() == 1 })
	cancel()
	require.Error(t, (<-gone).Err)
	hung.Continue()
	eventually(t, "the shard is back", func() bool { return ring.Len() == 2 })
	releases(t, direct, key, "holder")
	eventually(t, "those that have gone release the lock", func() bool {
		acquired, err := direct.Acquire(ctx, key, "next", time.Minute)
		return err == nil && acquired
	})
}

// Each client of a Ring decides by itself that a shard is down, and then uses other shards for its
// keys: a lock on a shard that hangs has two holders, and a value that was deleted comes back.
// Without heartbeats no key moves, and requests to that shard are errors.
func TestRingShardHangs(t *testing.T) {
	t.Parallel()
	for name, heartbeat := range map[string]time.Duration{"default": 0, "no heartbeats": 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			hung, up := testserver.Redis(t), testserver.Redis(t)
			newRing := func() *redis.Ring {
				ring := redis.NewRing(&redis.RingOptions{
					Addrs: map[string]string{"a": hung.Addr, "b": up.Addr}, HeartbeatFrequency: heartbeat,
					ContextTimeoutEnabled: true, MaxRetries: -1, ReadTimeout: time.Second,
				})
				t.Cleanup(func() { _ = ring.Close() })
				return ring
			}
			onHung := newClient(t, &redis.Options{Addr: hung.Addr})
			first, ring := redisv9.New(newRing()), newRing()
			second := redisv9.New(ring)
			cache := redisv9.NewCache(ring, redisv9.CacheConfig[int]{TTL: time.Hour, Prefix: "locker:cache:"})
			locked, cached := "", ""
			for i := 0; locked == "" || cached == ""; i++ {
				key := fmt.Sprint("k", i)
				acquires(t, first, key, "t", time.Hour)
				require.NoError(t, cache.Set(ctx, key, 1))
				if onHung.Exists(ctx, "locker:"+key).Val() == 1 {
					locked = key
				}
				if onHung.Exists(ctx, "locker:cache:"+key).Val() == 1 {
					cached = key
				}
			}
			hung.Pause()
			defer hung.Continue()
			if heartbeat == 0 {
				eventually(t, "the client uses the other shard", func() bool {
					acquired, err := second.Acquire(ctx, locked, "u", time.Hour)
					return acquired && err == nil
				})
				require.NoError(t, cache.Delete(ctx, cached))
				hung.Continue()
				eventually(t, "the client uses both shards", func() bool { return ring.Len() == 2 })
				_, ok, err := cache.Get(ctx, cached)
				require.NoError(t, err)
				assert.True(t, ok, "the value is there again")
				return
			}
			for start := time.Now(); time.Since(start) < 3*time.Second; { // the default takes two
				_, err := second.Acquire(ctx, locked, "u", time.Hour)
				require.Error(t, err)
				require.Error(t, cache.Delete(ctx, cached))
			}
			hung.Continue()
			acquired, err := second.Acquire(ctx, locked, "v", time.Hour)
			require.NoError(t, err)
			assert.False(t, acquired)
		})
	}
}
