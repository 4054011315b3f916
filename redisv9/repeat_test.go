package redisv9_test

import (
	"context"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
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
