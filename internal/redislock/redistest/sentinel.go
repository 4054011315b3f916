package redistest

import (
	"net"
	"testing"
	"time"

	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/semaphore"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// FailOver checks that a failover by a sentinel of the master "m" keeps what the replica has: the
// lock and its waiters, and those of a semaphore. It returns the Locker under test: token "waiter" holds the lock of "k".
func FailOver(t *testing.T, newLocker func(sentinel string) Locker) Locker {
	t.Helper()
	ctx := t.Context()
	master := testserver.Redis(t)
	host, port, err := net.SplitHostPort(master.Addr)
	require.NoError(t, err)
	replica := testserver.Redis(t, "--replicaof", host+" "+port)
	addr := testserver.RedisSentinel(t, master.Addr, time.Minute).Addr
	sentinel := redis.NewSentinelClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { _ = sentinel.Close() })

	l := newLocker(addr)
	Acquires(t, l, "k", "holder", time.Minute)
	waiting := Joins(t, NewClient(t, master.Addr), l, ctx, "k", "waiter", time.Minute)
	onReplica := NewClient(t, replica.Addr)
	permits := semaphore.NewLocker(l, 2)
	Acquires(t, permits, "s", "holder 1", time.Minute)
	Acquires(t, permits, "s", "holder 2", time.Minute)
	permit := make(chan Turn, 1)
	go func() {
		deadline, err := permits.Wait(ctx, "s", "waiter", time.Minute)
		permit <- Turn{deadline, err}
	}()
	Eventually(t, "the replica has it all", func() bool {
		return onReplica.Get(ctx, "locker:k").Val() == "holder" && QueueLength(onReplica, "k") == 1 &&
			onReplica.ZCard(ctx, "!line:locker:@permits{locker:s}").Val() == 1
	})
	Eventually(t, "the sentinel finds the replica fit", func() bool { return sentinel.Failover(ctx, "m").Err() == nil })
	Eventually(t, "the replica is the master", func() bool {
		role, err := onReplica.Do(ctx, "role").Slice()
		return err == nil && len(role) > 0 && role[0] == "master"
	})

	// Until the client notices the failover, it gets errors.
	Eventually(t, "the lock is still held", func() bool {
		ok, err := l.Extend(ctx, "k", "holder", time.Minute)
		require.True(t, ok || err != nil, "never reported to be lost")
		return ok
	})
	require.Equal(t, "holder", onReplica.Get(ctx, "locker:k").Val())
	Releases(t, l, "k", "holder")
	IsServed(t, waiting, "the lock was released on the new master")
	Releases(t, permits, "s", "holder 2")
	IsServed(t, permit, "a permit was released on the new master")
	Releases(t, permits, "s", "waiter")
	Releases(t, permits, "s", "holder 1")
	return l
}
