// Package rediscluster moves slots between the nodes of a Redis Cluster, for tests.
package rediscluster

import (
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/golockers/locker/internal/testserver"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Admin returns a client of one server.
func Admin(tb testing.TB, s *testserver.Server) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: s.Addr, DialTimeout: time.Second, ReadTimeout: 5 * time.Second})
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

// Tag returns a hash tag of a slot of the first of three nodes.
func Tag(tb testing.TB, first *testserver.Server) string {
	client := Admin(tb, first)
	for i := 0; ; i++ {
		tag := strconv.Itoa(i)
		slot, err := client.ClusterKeySlot(tb.Context(), tag).Result()
		require.NoError(tb, err)
		if slot < 16384/3-1 {
			return tag
		}
	}
}

// Move moves the slot of a tag from one node to another, with everything in it.
func Move(tb testing.TB, nodes []*testserver.Server, tag string, from, to int) {
	tb.Helper()
	ctx, source, target := tb.Context(), Admin(tb, nodes[from]), Admin(tb, nodes[to])
	slot := source.ClusterKeySlot(ctx, tag).Val()
	setSlot := func(node *redis.Client, state string, other *redis.Client) {
		id := other.Do(ctx, "cluster", "myid").Val()
		require.NoError(tb, node.Do(ctx, "cluster", "setslot", slot, state, id).Err())
	}
	setSlot(target, "importing", source)
	setSlot(source, "migrating", target)
	host, port, err := net.SplitHostPort(nodes[to].Addr)
	require.NoError(tb, err)
	for {
		names, err := source.ClusterGetKeysInSlot(ctx, int(slot), 20).Result()
		require.NoError(tb, err)
		if len(names) == 0 {
			break
		}
		args := []any{"migrate", host, port, "", 0, 5000, "keys"}
		for _, name := range names {
			args = append(args, name)
		}
		require.NoError(tb, source.Do(ctx, args...).Err(), fmt.Sprint(args...))
	}
	setSlot(target, "node", target)
	setSlot(source, "node", target)
	for i := range nodes {
		if i != from && i != to {
			setSlot(Admin(tb, nodes[i]), "node", target)
		}
	}
}
