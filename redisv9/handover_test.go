package redisv9_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/redislock"
	"github.com/golockers/locker/internal/redislock/redistest"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/golockers/locker/semaphore"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Who waits is told whenever a lock becomes free sooner than it could know, and a lock that nobody
// holds is free.

// When a holder shortens its lock, the first in the queue has it when that ends.
func TestHolderShortensItsLock(t *testing.T) {
	t.Parallel()
	for name, newLocker := range map[string]func(l *redisv9.Locker) locker.Waiter{
		"lock":   func(l *redisv9.Locker) locker.Waiter { return l },
		"permit": func(l *redisv9.Locker) locker.Waiter { return semaphore.NewLocker(l, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			admin := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
			holder := newLocker(redisv9.New(admin))
			acquires(t, holder, "k", "holder", time.Hour)
			done := make(chan redistest.Turn, 1)
			go func() {
				deadline, err := newLocker(redisv9.New(admin)).Wait(t.Context(), "k", "waiter", time.Minute)
				done <- redistest.Turn{Deadline: deadline, Err: err}
			}()
			eventually(t, "it waits", func() bool { return queueCount(admin) == 1 })
			hears(t, admin, 1)
			start := time.Now()
			ok, err := holder.Extend(t.Context(), "k", "holder", 300*time.Millisecond)
			require.NoError(t, err)
			require.True(t, ok)
			isServed(t, done, "the lock has ended")
			assert.Less(t, time.Since(start), redislock.LookAgain/2, "told by the holder")
		})
	}
}

// The same holds if it acquires the lock again for less, even if its own Locker waits for another.
func TestHolderAcquiresForLess(t *testing.T) {
	t.Parallel()
	admin := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
	holder, other := newLocker(t, &redis.Options{Addr: admin.Options().Addr}), redisv9.New(admin)
	acquires(t, other, "busy", "holder", time.Hour)
	joins(t, admin, holder, t.Context(), "busy", "waiter", time.Hour)
	acquires(t, holder, "k", "holder", time.Hour)
	done := joins(t, admin, other, t.Context(), "k", "waiter", time.Hour)
	hears(t, admin, 2)
	start := time.Now()
	acquires(t, holder, "k", "holder", 300*time.Millisecond)
	isServed(t, done, "the lock has ended")
	assert.Less(t, time.Since(start), redislock.LookAgain/2, "told by the holder")
}

// Whoever gives up has left the queue when Lock returns, so that a lock that is released then is free.
func TestGivingUpLeavesTheQueue(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	admin := newClient(t, &redis.Options{Addr: addr})
	holder, waiter, third := newLocker(t, &redis.Options{Addr: addr}), newLocker(t, &redis.Options{Addr: addr}),
		newLocker(t, &redis.Options{Addr: addr})
	for range 50 {
		lease, err := locker.TryLock(t.Context(), holder, "k", time.Minute)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := joins(t, admin, waiter, ctx, "k", "waiter", time.Minute)
		cancel()
		require.ErrorIs(t, (<-done).Err, context.Canceled)
		require.NoError(t, lease.Unlock(t.Context()))
		next, err := locker.TryLock(t.Context(), third, "k", time.Minute)
		require.NoError(t, err)
		require.NoError(t, next.Unlock(t.Context()))
	}
	assert.Empty(t, admin.Keys(t.Context(), "*").Val())
}

// A copy of a request that go-redis sent twice takes the lock when its token has released it. That is
// undone, and not when the token is used again.
func TestCopyTakesTheLockLate(t *testing.T) {
	t.Parallel()
	isSet := func(b []byte) bool {
		return bytes.Contains(b, []byte("\r\nset\r\n")) && bytes.Contains(b, []byte("late-token"))
	}
	isLook := func(b []byte) bool { return isScript(b) && bytes.Contains(b, []byte("late-token")) }
	for name, test := range map[string]struct {
		isBusy  bool
		matches func(b []byte) bool
		take    func(l *redisv9.Locker) error
	}{
		"acquire": {false, isSet, func(l *redisv9.Locker) error {
			_, err := l.Acquire(t.Context(), "k", "late-token", time.Hour)
			return err
		}},
		"wait": {false, isSet, func(l *redisv9.Locker) error {
			_, err := l.Wait(t.Context(), "k", "late-token", time.Hour)
			return err
		}},
		"look": {true, isLook, func(l *redisv9.Locker) error {
			_, err := l.Wait(t.Context(), "k", "late-token", time.Hour)
			return err
		}},
	} {
		for _, again := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", used again: ", again), func(t *testing.T) {
				t.Parallel()
				admin := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
				n := newLate()
				l := newLocker(t, &redis.Options{Addr: admin.Options().Addr, Dialer: n.dial, MaxRetries: 3, ReadTimeout: time.Second})
				other := redisv9.New(admin)
				if test.isBusy {
					acquires(t, other, "busy", "holder", time.Hour)
					joins(t, admin, l, t.Context(), "busy", "waiter", time.Hour)
				}
				_, err := l.Extend(t.Context(), "other", "t", time.Hour) // it is connected
				require.NoError(t, err)
				n.hold(test.matches)
				err = test.take(l)
				require.NoError(t, err)
				releases(t, l, "k", "late-token")
				if again {
					acquires(t, l, "k", "late-token", time.Hour)
					n.deliver(t)
					time.Sleep(2 * time.Second) // several attempts to release it
					ok, err := l.Extend(t.Context(), "k", "late-token", time.Hour)
					require.NoError(t, err)
					assert.True(t, ok, "it was released under its holder")
					return
				}
				n.deliver(t)
				eventually(t, "the lock is free", func() bool {
					ok, err := other.Acquire(t.Context(), "k", "next", time.Minute)
					return ok && err == nil
				})
			})
		}
	}
}

// A copy of a look that was refused arrives when the waiter has taken the lock by a later one, and has
// released it.
func TestCopyOfARefusedLookArrivesLate(t *testing.T) {
	t.Parallel()
	admin := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
	n := newLate()
	l := newLocker(t, &redis.Options{Addr: admin.Options().Addr, Dialer: n.dial, MaxRetries: 3, ReadTimeout: time.Second})
	other := redisv9.New(admin)
	acquires(t, other, "busy", "holder", time.Hour)
	joins(t, admin, l, t.Context(), "busy", "waiter", time.Hour)
	acquires(t, other, "k", "holder", time.Hour)
	n.hold(func(b []byte) bool { return isScript(b) && bytes.Contains(b, []byte("late-token")) })
	done := joins(t, admin, l, t.Context(), "k", "late-token", time.Hour)
	releases(t, other, "k", "holder")
	isServed(t, done, "the lock was released")
	releases(t, l, "k", "late-token")
	n.deliver(t)
	eventually(t, "the lock is free", func() bool {
		ok, err := other.Acquire(t.Context(), "k", "next", time.Minute)
		return ok && err == nil
	})
}

// An offered lock can be inspected and broken: then the next one gets it.
func TestBreakOffer(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	admin, client := newClient(t, &redis.Options{Addr: addr}), newClient(t, &redis.Options{Addr: addr})
	holder, waiter, next := redisv9.New(admin), redisv9.New(client), newLocker(t, &redis.Options{Addr: addr})
	acquires(t, holder, "k", "holder", time.Minute)
	r := new(refusing)
	client.AddHook(r)
	joins(t, admin, waiter, t.Context(), "k", "waiter", time.Minute)
	hears(t, admin, 1)
	done := joins(t, admin, next, t.Context(), "k", "next", time.Minute)
	entry := admin.ZRange(t.Context(), "!line:locker:{locker:k}", 0, 0).Val()
	r.now.Store(true)
	releases(t, holder, "k", "holder")
	assert.Equal(t, "offer:"+entry[0], inspect(t, holder, "k").Token)
	_, err := locker.Break(t.Context(), holder, "k")
	require.NoError(t, err)
	isServed(t, done, "the offer was broken")
}
