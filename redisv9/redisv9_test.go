package redisv9_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
)

// variants is why the suite runs once for most changes.
const variants = "the suite runs with the client's defaults, and other tests cover what differs"

// TestConformance runs the suite on every kind of client and server: with faults in between if
// there is a single address.
func TestConformance(t *testing.T) {
	t.Run("defaults", func(t *testing.T) {
		t.Parallel()
		admin := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
		conformance.Run(t, conformance.Config{
			Addr:     admin.Options().Addr,
			LoseData: func(ctx context.Context) error { return admin.FlushAll(ctx).Err() },
			New: func(tb testing.TB, addr string) locker.Locker {
				return newLocker(tb, &redis.Options{Addr: addr})
			},
		})
	})
	t.Run("ContextTimeoutEnabled", func(t *testing.T) {
		testserver.Variant(t, variants)
		t.Parallel()
		conformance.Run(t, conformance.Config{
			Addr: testserver.Redis(t).Addr,
			New: func(tb testing.TB, addr string) locker.Locker {
				return newLocker(tb, &redis.Options{Addr: addr, ContextTimeoutEnabled: true})
			},
		})
	})
	for _, slots := range []int{1, 4} {
		t.Run(fmt.Sprintf("batching, slots %d", slots), func(t *testing.T) {
			testserver.Variant(t, variants)
			t.Parallel()
			conformance.Run(t, conformance.Config{
				Addr: testserver.Redis(t).Addr,
				New: func(tb testing.TB, addr string) locker.Locker {
					return redisv9.New(newClient(tb, &redis.Options{Addr: addr}), redisv9.WithBatching(slots))
				},
			})
		})
	}
	t.Run("pipelines only", func(t *testing.T) {
		testserver.Variant(t, variants)
		t.Parallel()
		admin := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
		conformance.Run(t, conformance.Config{
			Addr:     admin.Options().Addr,
			LoseData: func(ctx context.Context) error { return admin.FlushAll(ctx).Err() },
			New: func(tb testing.TB, addr string) locker.Locker {
				client := newClient(tb, &redis.Options{Addr: addr, ContextTimeoutEnabled: true})
				l := redisv9.New(client, redisv9.WithBatching(1))
				redisv9.AlwaysBatch(l)
				return l
			},
		})
	})
	t.Run("older than Redis 7", func(t *testing.T) {
		testserver.Variant(t, variants)
		t.Parallel()
		conformance.Run(t, conformance.Config{
			Addr: testserver.Redis(t).Addr,
			New: func(tb testing.TB, addr string) locker.Locker {
				client := newClient(tb, &redis.Options{Addr: addr})
				client.AddHook(beforeRedis7{})
				return redisv9.New(client)
			},
		})
	})
	t.Run("Cluster client", func(t *testing.T) {
		testserver.Variant(t, variants)
		t.Parallel()
		conformance.Run(t, conformance.Config{
			Addr: testserver.Redis(t).Addr,
			New: func(tb testing.TB, addr string) locker.Locker {
				client := redis.NewClusterClient(&redis.ClusterOptions{
					ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
						return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: addr}}}}, nil
					},
				})
				tb.Cleanup(func() { _ = client.Close() })
				return redisv9.New(client)
			},
		})
	})
	t.Run("Ring client", func(t *testing.T) {
		testserver.Variant(t, variants)
		t.Parallel()
		conformance.Run(t, conformance.Config{
			Addr: testserver.Redis(t).Addr,
			New: func(tb testing.TB, addr string) locker.Locker {
				client := redis.NewRing(&redis.RingOptions{
					Addrs:              map[string]string{"only": addr},
					HeartbeatFrequency: time.Hour, // a request of its own would be taken for one of the Locker's
				})
				tb.Cleanup(func() { _ = client.Close() })
				return redisv9.New(client)
			},
		})
	})
	t.Run("Cluster", func(t *testing.T) {
		testserver.Variant(t, variants)
		t.Parallel()
		nodes := testserver.RedisCluster(t, 3)
		admin := newCluster(t, nodes)
		conformance.Run(t, conformance.Config{
			New: func(tb testing.TB, _ string) locker.Locker { return redisv9.New(newCluster(tb, nodes)) },
			LoseData: func(ctx context.Context) error {
				return admin.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error { return c.FlushAll(ctx).Err() })
			},
		})
	})
	t.Run("Ring", func(t *testing.T) {
		testserver.Variant(t, variants)
		t.Parallel()
		shards := map[string]string{}
		for i := range 3 {
			shards[fmt.Sprint("shard", i)] = testserver.Redis(t).Addr
		}
		conformance.Run(t, conformance.Config{New: func(tb testing.TB, _ string) locker.Locker {
			return redisv9.New(newRing(tb, shards))
		}})
	})
}

// beforeRedis7 makes a server refuse what servers before Redis 7 do.
type beforeRedis7 struct{}

type redisError string

func (e redisError) Error() string { return string(e) }
func (redisError) RedisError()     {}

func (beforeRedis7) DialHook(next redis.DialHook) redis.DialHook { return next }

func (beforeRedis7) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "set" && slices.Contains(cmd.Args(), any("nx")) && slices.Contains(cmd.Args(), any("get")) {
			err := redisError("ERR syntax error")
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

func (beforeRedis7) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// newClient returns a client that is closed when the test ends.
func newClient(tb testing.TB, o *redis.Options) *redis.Client {
	client := redis.NewClient(o)
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

func newCluster(tb testing.TB, nodes []string) *redis.ClusterClient {
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: nodes})
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

func newRing(tb testing.TB, shards map[string]string) *redis.Ring {
	client := redis.NewRing(&redis.RingOptions{Addrs: shards})
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

func newLocker(tb testing.TB, o *redis.Options) *redisv9.Locker { return redisv9.New(newClient(tb, o)) }
