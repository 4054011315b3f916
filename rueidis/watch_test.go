package rueidis_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/redislock/redistest"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/rueidis"
	rueidisclient "github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// release takes the lock of key and releases it.
func release(tb testing.TB, l locker.Locker, key string) {
	tb.Helper()
	acquires(tb, l, key, "releaser", time.Minute)
	releases(tb, l, key, "releaser")
}

// All watchers share a connection, which is closed some time after the last has gone; a key without
// watchers is not subscribed to.
func TestWatchOnOneConnection(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	admin, l := newAdmin(t, addr), at(t, addr)
	rueidis.SetLinger(l, 3*time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	woken := map[string]<-chan struct{}{}
	for i := range 100 {
		key := fmt.Sprint("k", i)
		var err error
		woken[key], err = l.Watch(ctx, key)
		require.NoError(t, err)
	}
	assert.Equal(t, 1, subscribers(t, admin))
	for key, woken := range woken {
		release(t, l, key)
		isWoken(t, woken, "its lock was released")
	}
	cancel()
	eventually(t, "no key is subscribed to", func() bool { return len(admin.PubSubChannels(t.Context(), "*").Val()) == 0 })
	eventually(t, "the connection is closed", func() bool { return subscribers(t, admin) == 0 && !rueidis.IsConnected(l) })

	again, err := l.Watch(t.Context(), "k0")
	require.NoError(t, err)
	release(t, l, "k0")
	isWoken(t, again, "after the connection was closed and opened again")
}

// After a break all watchers are soon live again, with few connections.
func TestManyWatchersOverBreak(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	admin := newAdmin(t, addr)
	redistest.WatchersOverBreak(t, admin, at(t, addr), 1000)
	assert.Equal(t, 1, subscribers(t, admin))
}

// A server that restarts takes the subscriptions with it: watchers are woken, and woken again by
// later releases.
func TestWatchOverRestart(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	l := at(t, srv.Addr)
	woken, err := l.Watch(t.Context(), "k")
	require.NoError(t, err)
	srv.Restart()
	isWoken(t, woken, "the connection broke")
	admin := newAdmin(t, srv.Addr)
	eventually(t, "it has subscribed again", func() bool { return subscribers(t, admin) == 1 })
	for len(woken) > 0 {
		<-woken
	}
	eventually(t, "the lock can be taken", func() bool {
		ok, err := l.Acquire(t.Context(), "k", "t", time.Minute)
		return ok && err == nil
	})
	releases(t, l, "k", "t")
	isWoken(t, woken, "its lock was released")
}

// A connection that is silently dead is noticed by pings.
func TestWatchOnDeadConnection(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	l := at(t, srv.Addr)
	woken, err := l.Watch(t.Context(), "k")
	require.NoError(t, err)
	srv.Pause()
	defer srv.Continue()
	isWoken(t, woken, "the server has not answered a ping")
}

// A channel that the user may not subscribe to does not affect other channels.
func TestOneChannelNotAllowed(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	ctx, admin := t.Context(), newAdmin(t, addr)
	require.NoError(t, admin.Do(ctx, "acl", "setuser", "limited", "on", ">secret", "allkeys", "allcommands", "resetchannels",
		"&locker:mine*").Err())
	for name, o := range map[string]rueidisclient.ClientOption{"RESP3": {}, "RESP2": {AlwaysRESP2: true, DisableCache: true}} {
		o.InitAddress, o.Username, o.Password = []string{addr}, "limited", "secret"
		l := newLocker(t, o)
		woken, err := l.Watch(ctx, "mine")
		require.NoError(t, err)
		for range 3 {
			_, err := l.Watch(ctx, "theirs")
			assert.ErrorContains(t, err, "NOPERM", name)
			assert.ErrorContains(t, err, "unsupported", name)
			release(t, l, "mine")
			isWoken(t, woken, "its lock was released")
		}
	}
	assert.LessOrEqual(t, subscribers(t, admin), 2)
}

// The connection for messages is one of the client's blocking ones. A dial that has to wait for one
// ends with its context, and the connection is given back when it is not needed any more.
func TestBlockingPoolSize(t *testing.T) {
	t.Parallel()
	client := newClient(t, rueidisclient.ClientOption{InitAddress: []string{testserver.Redis(t).Addr}, BlockingPoolSize: 1})
	l := rueidis.New(client)
	inUse, giveBack := client.Dedicate()
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := l.Watch(short, "k")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, inUse.Do(t.Context(), inUse.B().Ping().Build()).Error())
	giveBack()
	for range 2 {
		watching, stop := context.WithCancel(t.Context())
		var woken <-chan struct{}
		eventually(t, "it can subscribe", func() bool {
			woken, err = l.Watch(watching, "k")
			return err == nil
		})
		acquires(t, l, "k", "t", time.Minute)
		releases(t, l, "k", "t")
		isWoken(t, woken, "the lock was released")
		stop()
		start := time.Now()
		require.NoError(t, client.Dedicated(func(c rueidisclient.DedicatedClient) error {
			return c.Do(t.Context(), c.B().Ping().Build()).Error()
		}))
		assert.Less(t, time.Since(start), 15*time.Second) // it was half a minute and more
	}
}
