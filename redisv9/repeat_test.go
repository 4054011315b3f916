package redisv9_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A copy of an Extend that go-redis sent again may arrive when the lock has been extended by more.
func TestExtendSentAgain(t *testing.T) {
	n := &losing{read: make(chan struct{}), resume: make(chan struct{})}
	l := newLocker(t, &redis.Options{Addr: testserver.Redis(t).Addr, Dialer: n.dial, MaxRetries: 3})
	lease, err := locker.Lock(t.Context(), l, "k", time.Minute)
	require.NoError(t, err)
	_, err = l.Extend(t.Context(), "other", "t", time.Second) // the server knows the script
	require.NoError(t, err)
	n.next.Store(true)
	close(n.resume)
	const short = 20 * time.Second
	require.Error(t, lease.Extend(t.Context(), short))
	require.NoError(t, lease.Extend(t.Context(), time.Hour))
	assert.Less(t, time.Until(lease.Deadline()), short)
}

// A copy of a request for a place may arrive when its token holds the lock and has extended it.
func TestLookShortensNothing(t *testing.T) {
	admin := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
	l := newLocker(t, admin.Options())
	acquired, err := l.Acquire(t.Context(), "k", "t", time.Minute)
	require.NoError(t, err)
	require.True(t, acquired)
	start := time.Now()
	deadline, err := l.Wait(t.Context(), "k", "t", time.Second)
	require.NoError(t, err)
	assert.LessOrEqual(t, deadline.Sub(start), time.Since(start)+time.Second)
	assert.Greater(t, admin.PTTL(t.Context(), "locker:k").Val(), 30*time.Second)
	_, err = l.Wait(t.Context(), "k", "t", time.Hour)
	require.NoError(t, err)
	assert.Greater(t, admin.PTTL(t.Context(), "locker:k").Val(), time.Minute)
}

// Acquire by the token that holds the lock replaces the remaining time, even while the Locker's
// waiters stand in a queue.
func TestAcquireAgainBesideAQueue(t *testing.T) {
	admin := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
	l := newLocker(t, admin.Options())
	for _, key := range []string{"k", "busy"} {
		acquired, err := l.Acquire(t.Context(), key, "t", time.Minute)
		require.NoError(t, err)
		require.True(t, acquired)
	}
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := l.Wait(ctx, "busy", "waiter", time.Minute)
		left <- err
	}()
	eventually(t, "it waits", func() bool { return queueLength(admin, "busy") == 1 })
	acquired, err := l.Acquire(t.Context(), "k", "t", time.Second)
	require.NoError(t, err)
	require.True(t, acquired)
	assert.LessOrEqual(t, admin.PTTL(t.Context(), "locker:k").Val(), time.Second)
	cancel()
	require.ErrorIs(t, <-left, locker.ErrHeld)
}

// A copy of a request that go-redis sent again never leaves a lease whose deadline is after the
// lock's expiry, on any kind of client and with any setting of MaxRetries that sends it again.
func TestCopyOfExtendArrivesLate(t *testing.T) {
	t.Parallel()
	const timeout = time.Second // a server that is up answers sooner
	for name, newClient := range map[string]func(n *late) redis.UniversalClient{
		"Client": func(n *late) redis.UniversalClient {
			return redis.NewClient(&redis.Options{Addr: testserver.Redis(t).Addr, Dialer: n.dial, ReadTimeout: timeout})
		},
		"Ring": func(n *late) redis.UniversalClient {
			return redis.NewRing(&redis.RingOptions{
				Addrs: map[string]string{"a": testserver.Redis(t).Addr}, Dialer: n.dial, ReadTimeout: timeout,
			})
		},
		"Cluster": func(n *late) redis.UniversalClient {
			return redis.NewClusterClient(&redis.ClusterOptions{
				Addrs: testserver.RedisCluster(t, 1), Dialer: n.dial, ReadTimeout: timeout,
			})
		},
		"Cluster, MaxRetries -1": func(n *late) redis.UniversalClient {
			return redis.NewClusterClient(&redis.ClusterOptions{
				Addrs: testserver.RedisCluster(t, 1), Dialer: n.dial, ReadTimeout: timeout, MaxRetries: -1,
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newLate()
			client := newClient(n)
			t.Cleanup(func() { _ = client.Close() })
			l := redisv9.New(client)
			lease, err := locker.TryLock(t.Context(), l, "k", time.Minute)
			require.NoError(t, err)
			_, err = l.Extend(t.Context(), "other", "t", time.Second) // the server knows the script
			require.NoError(t, err)
			n.hold(isScript)
			const short = 20 * time.Second
			require.Error(t, lease.Extend(t.Context(), short))
			require.NoError(t, lease.Extend(t.Context(), time.Hour))
			n.deliver(t)
			left := client.PTTL(t.Context(), "locker:k").Val()
			require.Less(t, left, short+time.Second)
			assert.LessOrEqual(t, time.Until(lease.Deadline()), left+time.Millisecond) // PTTL rounds down
		})
	}
}

// Acquire does not report true if an earlier request may yet arrive and shorten the lock: beside a
// queue, before Redis 7, and by a token that holds the lock already.
func TestCopyOfAcquireArrivesLate(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(l *redisv9.Locker, client *redis.Client){
		"beside a queue": func(l *redisv9.Locker, client *redis.Client) {
			acquires(t, l, "busy", "x", time.Hour)
			go func() { _, _ = l.Wait(t.Context(), "busy", "y", time.Hour) }()
			eventually(t, "it waits", func() bool { return queueLength(client, "busy") == 1 })
		},
		"before Redis 7": func(l *redisv9.Locker, client *redis.Client) {
			client.AddHook(beforeRedis7{})
			acquires(t, l, "other", "t", time.Hour)
		},
		"it holds the lock": func(l *redisv9.Locker, _ *redis.Client) { acquires(t, l, "k", "t", time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newLate()
			client := newClient(t, &redis.Options{
				Addr: testserver.Redis(t).Addr, Dialer: n.dial, MaxRetries: 3, ReadTimeout: time.Second,
			})
			l := redisv9.New(client)
			prepare(l, client)
			_, err := l.Extend(t.Context(), "other", "t", time.Hour) // the server knows the script
			require.NoError(t, err)
			n.hold(func(b []byte) bool { return isScript(b) && bytes.Contains(b, []byte("locker:k\r\n")) })
			acquired, err := l.Acquire(t.Context(), "k", "t", time.Minute)
			assert.False(t, acquired)
			assert.ErrorContains(t, err, "done, but the request was sent again")
			ok, err := l.Extend(t.Context(), "k", "t", time.Hour)
			require.NoError(t, err)
			require.True(t, ok)
			n.deliver(t)
			assert.LessOrEqual(t, client.PTTL(t.Context(), "locker:k").Val(), time.Minute, "it has arrived")
		})
	}
}

// An Acquire whose first request was executed without an answer finds that its token holds the
// lock, and succeeds.
func TestAcquireSentAgain(t *testing.T) {
	n := &losing{read: make(chan struct{}), resume: make(chan struct{})}
	l := newLocker(t, &redis.Options{Addr: testserver.Redis(t).Addr, Dialer: n.dial, MaxRetries: 3})
	acquires(t, l, "other", "t", time.Minute)
	n.next.Store(true)
	close(n.resume)
	acquires(t, l, "k", "t", time.Minute)
}
