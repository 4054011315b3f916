package rueidis_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/rueidis"
	rueidisclient "github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A waiter whose process is gone is passed over.
func TestDeadWaiterIsPassedOver(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	admin, a, c := newAdmin(t, addr), at(t, addr), at(t, addr)
	dying, err := rueidisclient.NewClient(rueidisclient.ClientOption{InitAddress: []string{addr}})
	require.NoError(t, err)
	acquires(t, a, "k", "a", time.Minute)
	dead := joins(t, admin, rueidis.New(dying), t.Context(), "k", "b", time.Minute)
	alive := joins(t, admin, c, t.Context(), "k", "c", time.Minute)
	dying.Close()
	require.ErrorIs(t, (<-dead).Err, rueidisclient.ErrClosing)
	require.EqualValues(t, 2, queueLength(admin, "k"), "it could not leave")
	eventually(t, "its connection is gone", func() bool { return subscribers(t, admin) == 1 })
	releases(t, a, "k", "a")
	isServed(t, alive, "the one before it is gone")
	assert.Zero(t, queueLength(admin, "k"))
}

// Messages that are published while a connection is down are lost, so waiters ask again.
func TestWaitOverCutConnection(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	admin, l := newAdmin(t, addr), at(t, addr)
	for i := range 10 {
		token := fmt.Sprint("t", i)
		acquires(t, l, "k", "holder", time.Minute)
		waiting := joins(t, admin, l, t.Context(), "k", token, time.Minute)
		require.NoError(t, admin.ClientKillByFilter(t.Context(), "type", "pubsub").Err())
		time.Sleep(time.Duration(i) * time.Millisecond) // before, while or after it connects again
		releases(t, l, "k", "holder")
		isServed(t, waiting, "the connection broke and came back")
		releases(t, l, "k", token)
	}
}

// A thousand waiters of a process are served, and their looks after a break leave room for others.
func TestCrowdOverCutConnection(t *testing.T) {
	t.Parallel()
	const waiters = 1000
	addr := testserver.Redis(t).Addr
	admin, holder, l := newAdmin(t, addr), at(t, addr), at(t, addr)
	acquires(t, holder, "k", "holder", time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, waiters)
	for i := range waiters {
		go func() {
			token := fmt.Sprint(i)
			_, err := l.Wait(ctx, "k", token, time.Minute)
			if err == nil {
				_, err = l.Release(ctx, "k", token)
			}
			served <- err
		}()
	}
	eventually(t, "all wait", func() bool { return rueidis.Waiting(l) == waiters && queueLength(admin, "k") == 1 })
	require.NoError(t, admin.ClientKillByFilter(ctx, "type", "pubsub").Err())
	releases(t, holder, "k", "holder")
	for range waiters {
		require.NoError(t, <-served)
	}
	cancel()
	assert.Empty(t, admin.Keys(t.Context(), "*").Val())
}

// A user that may not subscribe can lock all the same, by polling.
func TestNotAllowedToSubscribe(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	admin, ctx := newAdmin(t, addr), t.Context()
	require.NoError(t, admin.Do(ctx, "acl", "setuser", "limited", "on", ">secret", "+@all", "~locker:*", "~!line:locker:*",
		"~!fence:locker:*", "resetchannels").Err())
	l := newLocker(t, rueidisclient.ClientOption{InitAddress: []string{addr}, Username: "limited", Password: "secret"})
	acquires(t, l, "k", "t1", time.Minute)
	_, err := l.Watch(ctx, "k")
	assert.ErrorIs(t, err, errors.ErrUnsupported)
	done := joins(t, admin, l, ctx, "k", "t2", time.Minute)
	releases(t, l, "k", "t1")
	isServed(t, done, "it looks")
	releases(t, l, "k", "t2")
	assert.Empty(t, admin.Keys(ctx, "*").Val())

	// With the rights that the documentation of redisv9 lists, it hears.
	require.NoError(t, admin.Do(ctx, "acl", "setuser", "limited", "resetchannels", "&locker:*", "&!wait:locker:*").Err())
	woken, err := l.Watch(ctx, "k")
	require.NoError(t, err)
	acquires(t, l, "k", "t1", time.Minute)
	done = joins(t, admin, l, ctx, "k", "t2", time.Minute)
	eventually(t, "it is subscribed", func() bool { return len(admin.PubSubChannels(ctx, "!wait:*").Val()) > 0 })
	releases(t, l, "k", "t1")
	isWoken(t, woken, "the lock was released")
	isServed(t, done, "the lock was released")
	mint(t, l, "k", "t2")
}

// On a Cluster a name with a } but no tag has no queue.
func TestNoQueue(t *testing.T) {
	t.Parallel()
	l := newLocker(t, rueidisclient.ClientOption{InitAddress: testserver.RedisCluster(t, 3)})
	assert.ErrorIs(t, operations(l)["wait"](t.Context(), "a}b", "t"), errors.ErrUnsupported)
	acquires(t, l, "a}b", "t", time.Minute)
	releases(t, l, "a}b", "t")
}
