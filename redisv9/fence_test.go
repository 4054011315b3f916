package redisv9_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// topologies are the clients whose Lockers mint numbers in different ways.
func topologies(tb testing.TB) map[string]redis.UniversalClient {
	return map[string]redis.UniversalClient{
		"Client": newClient(tb, &redis.Options{Addr: testserver.Redis(tb).Addr}),
		"Ring": newRing(tb, map[string]string{
			"a": testserver.Redis(tb).Addr, "b": testserver.Redis(tb).Addr}),
		"Cluster": newCluster(tb, testserver.RedisCluster(tb, 3)),
	}
}

// Numbers go on above all earlier ones when the counter is lost, goes back, or is lost with all data.
func TestFenceOutlivesTheCounter(t *testing.T) {
	t.Parallel()
	const counter = "!fence:locker:"
	for name, client := range topologies(t) {
		ctx, l := t.Context(), redisv9.New(client)
		acquires(t, l, "k", "t", time.Hour)
		before := time.Now().UnixMicro() // the server's clock is this machine's
		last := mint(t, l, "k", "t")
		assert.GreaterOrEqual(t, last, uint64(before), name)
		assert.LessOrEqual(t, last, uint64(time.Now().UnixMicro()), name)
		for what, lose := range map[string]func() error{
			"the counter is lost": func() error { return client.Del(ctx, counter).Err() },
			"it goes back":        func() error { return client.Set(ctx, counter, last-5, 0).Err() },
			"nothing is lost":     func() error { return nil },
			"all data is lost": func() error {
				defer acquires(t, l, "k", "t", time.Hour)
				switch c := client.(type) {
				case *redis.Ring:
					return c.ForEachShard(ctx, func(ctx context.Context, shard *redis.Client) error {
						return shard.FlushAll(ctx).Err()
					})
				case *redis.ClusterClient:
					return c.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
						return node.FlushAll(ctx).Err()
					})
				}
				return client.FlushAll(ctx).Err()
			},
		} {
			for range 10 {
				require.NoError(t, lose())
				next := mint(t, l, "k", "t")
				require.Greater(t, next, last, "%s: %s", name, what)
				last = next
			}
		}

		require.NoError(t, client.Del(ctx, counter).Err())
		_, ok, err := l.Fence(ctx, "k", "another")
		require.NoError(t, err, name)
		assert.False(t, ok, name)
		require.Greater(t, mint(t, l, "k", "t"), last, name)

		// A counter ahead of the clock goes on by itself, exactly, up to the largest number.
		for _, n := range []uint64{1<<53 - 1, 1 << 53, 1<<53 + 1, 1<<63 - 2} {
			require.NoError(t, client.Set(ctx, counter, n, 0).Err())
			assert.Equal(t, n+1, mint(t, l, "k", "t"), name)
		}
		_, ok, err = l.Fence(ctx, "k", "t")
		assert.ErrorContains(t, err, "overflow", name)
		assert.False(t, ok, name)
		assert.Equal(t, strconv.FormatUint(1<<63-1, 10), client.Get(ctx, counter).Val(), name)
	}
}

// Concurrent callers that find the counter lost get different numbers, all greater than the earlier
// ones.
func TestRaceForLostCounter(t *testing.T) {
	t.Parallel()
	const goroutines, rounds = 100, 3
	for name, client := range topologies(t) {
		l := redisv9.New(client)
		acquires(t, l, "k", "t", time.Hour)
		last := mint(t, l, "k", "t")
		for range rounds {
			require.NoError(t, client.Del(t.Context(), "!fence:locker:").Err())
			var mu sync.Mutex
			var numbers []uint64
			var all sync.WaitGroup
			for range goroutines {
				all.Go(func() {
					number, ok, err := l.Fence(t.Context(), "k", "t")
					assert.NoError(t, err)
					assert.True(t, ok)
					mu.Lock()
					defer mu.Unlock()
					numbers = append(numbers, number)
				})
			}
			all.Wait()
			slices.Sort(numbers)
			require.Len(t, slices.Compact(numbers), goroutines, "%s: a number twice", name)
			require.Greater(t, numbers[0], last, name)
			last = numbers[goroutines-1]
		}
	}
}

// A replica that lags does not answer a Fence, on a Ring either, whose counter may be on another
// shard.
func TestFenceOnLaggingReplica(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	counter, master := testserver.Redis(t), testserver.Redis(t)
	host, port, err := net.SplitHostPort(master.Addr)
	require.NoError(t, err)
	lagging := testserver.Redis(t, "--replicaof", host+" "+port)
	onMaster := newClient(t, &redis.Options{Addr: master.Addr})
	replica := newClient(t, &redis.Options{Addr: lagging.Addr})
	fresh := newRing(t, map[string]string{"a": counter.Addr, "b": master.Addr})
	const key = "k"
	prefix := ""
	for i := 0; prefix == ""; i++ { // one whose counter is on the first shard, and the lock on the second
		p := fmt.Sprintf("p%d:", i)
		l := redisv9.New(fresh, redisv9.WithPrefix(p))
		acquires(t, l, key, "x", time.Minute)
		mint(t, l, key, "x")
		if onMaster.Exists(ctx, p+key).Val() == 1 && onMaster.Exists(ctx, "!fence:"+p).Val() == 0 {
			prefix = p
		}
	}
	eventually(t, "the replica has the lock", func() bool { return replica.Get(ctx, prefix+key).Val() == "x" })
	require.NoError(t, replica.SlaveOf(ctx, "127.0.0.1", "1").Err()) // it lags from here on
	l := redisv9.New(fresh, redisv9.WithPrefix(prefix))
	releases(t, l, key, "x")
	acquires(t, l, key, "y", time.Minute)
	mint(t, l, key, "y")
	stale := redisv9.New(newRing(t, map[string]string{"a": counter.Addr, "b": lagging.Addr}), redisv9.WithPrefix(prefix))
	_, ok, err := stale.Fence(ctx, key, "x")
	assert.ErrorContains(t, err, "READONLY")
	assert.False(t, ok)
}
