package redisv9_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// A failover keeps what the replica has: the lock and its waiters.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	t.Run("defaults", func(t *testing.T) {
		t.Parallel()
		failOver(t, func(c *redis.Client) *redisv9.Locker { return redisv9.New(c) })
	})
	t.Run("pipelines only", func(t *testing.T) {
		t.Parallel()
		failOver(t, func(c *redis.Client) *redisv9.Locker {
			l := redisv9.New(c, redisv9.WithBatching(1))
			redisv9.AlwaysBatch(l)
			return l
		})
	})
}

func failOver(t *testing.T, newLocker func(*redis.Client) *redisv9.Locker) {
	t.Helper()
	ctx := t.Context()
	master := testserver.Redis(t)
	host, port, err := net.SplitHostPort(master.Addr)
	require.NoError(t, err)
	replica := testserver.Redis(t, "--replicaof", host+" "+port)
	sentinelAddr := startSentinel(t, host, port)
	sentinel := redis.NewSentinelClient(&redis.Options{Addr: sentinelAddr})
	t.Cleanup(func() { _ = sentinel.Close() })

	client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{sentinelAddr}})
	t.Cleanup(func() { _ = client.Close() })
	l := newLocker(client)
	acquires(t, l, "k", "holder", time.Minute)
	waiting := joins(t, client, l, ctx, "k", "waiter", time.Minute)
	onReplica := newClient(t, &redis.Options{Addr: replica.Addr})
	eventually(t, "the replica has it all", func() bool {
		return onReplica.Get(ctx, "locker:k").Val() == "holder" && queueLength(onReplica, "k") == 1
	})
	eventually(t, "the sentinel finds the replica fit", func() bool { return sentinel.Failover(ctx, "m").Err() == nil })
	eventually(t, "the replica is the master", func() bool {
		role, err := onReplica.Do(ctx, "role").Slice()
		return err == nil && len(role) > 0 && role[0] == "master"
	})

	// Until the client notices the failover, it gets errors.
	eventually(t, "the lock is still held", func() bool {
		ok, err := l.Extend(ctx, "k", "holder", time.Minute)
		require.True(t, ok || err != nil, "never said to be lost")
		return ok
	})
	require.Equal(t, "holder", onReplica.Get(ctx, "locker:k").Val())
	releases(t, l, "k", "holder")
	isServed(t, waiting, "the lock was released on the new master")
}

// startSentinel starts a sentinel for the master "m" and returns its address.
func startSentinel(t *testing.T, host, port string) string {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, own, err := net.SplitHostPort(free.Addr().String())
	require.NoError(t, err)
	require.NoError(t, free.Close())
	config := filepath.Join(t.TempDir(), "sentinel.conf")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `
port %s
bind 127.0.0.1
sentinel monitor m %s %s 1
sentinel down-after-milliseconds m 60000
sentinel failover-timeout m 10000
`, own, host, port), 0o600))
	server := exec.CommandContext(t.Context(), "redis-server", config, "--sentinel")
	require.NoError(t, server.Start())
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	addr := net.JoinHostPort("127.0.0.1", own)
	client := newClient(t, &redis.Options{Addr: addr})
	eventually(t, "the sentinel answers", func() bool { return client.Ping(t.Context()).Err() == nil })
	return addr
}
