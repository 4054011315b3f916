package redisv9_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/golockers/locker/internal/redislock/redistest"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// release takes the lock of key and releases it.
func release(tb testing.TB, l *redisv9.Locker, key string) {
	tb.Helper()
	ok, err := l.Acquire(context.Background(), key, "releaser", time.Minute)
	require.NoError(tb, err)
	require.True(tb, ok)
	ok, err = l.Release(context.Background(), key, "releaser")
	require.NoError(tb, err)
	require.True(tb, ok)
}

// All watchers share a connection, which is closed some time after the last has gone; a key without
// watchers is not subscribed to.
func TestWatchOnOneConnection(t *testing.T) {
	addr := testserver.Redis(t).Addr
	client, admin := newClient(t, &redis.Options{Addr: addr}), newClient(t, &redis.Options{Addr: addr})
	l := redisv9.New(client)
	redisv9.SetLinger(l, 3*time.Second)
	ctx, cancel := context.WithCancel(t.Context())
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
	eventually(t, "it has heard so", func() bool { return redisv9.Channels(l) == 0 })
	eventually(t, "the connection is closed", func() bool {
		return subscribers(t, admin) == 0 && redisv9.Feeds(l) == 0
	})

	again, err := l.Watch(t.Context(), "k0")
	require.NoError(t, err)
	release(t, l, "k0")
	isWoken(t, again, "after the connection was closed and opened again")
}

// A watcher that is followed at once by another costs no request.
func TestWatchAgainIsFree(t *testing.T) {
	addr := testserver.Redis(t).Addr
	l, admin := newLocker(t, &redis.Options{Addr: addr}), newClient(t, &redis.Options{Addr: addr})
	watch := func() {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, err := l.Watch(ctx, "k")
		require.NoError(t, err)
	}
	watch()
	before := reads(t, admin)
	for range 1000 {
		watch()
	}
	// At most a few requests, however slow the machine: one to unsubscribe and one to subscribe a
	// second.
	assert.Less(t, reads(t, admin)-before, int64(500))
}

// A Ring's shards are servers that know nothing of each other.
func TestWatchOnRing(t *testing.T) {
	servers := []*testserver.Server{testserver.Redis(t), testserver.Redis(t), testserver.Redis(t)}
	shards := map[string]string{}
	for i, s := range servers {
		shards[fmt.Sprint("shard", i)] = s.Addr
	}
	watching, releasing := redisv9.New(newRing(t, shards)), redisv9.New(newRing(t, shards))
	for i := range 40 {
		key := fmt.Sprint("k", i)
		woken, err := watching.Watch(t.Context(), key)
		require.NoError(t, err)
		release(t, releasing, key)
		isWoken(t, woken, "its lock was released on whichever shard it is")
	}
	assert.Equal(t, 3, redisv9.Feeds(watching))

	servers[0].Stop() // the others' keys do not mind, nor do the keys that move to them
	for i := range 40 {
		key := fmt.Sprint("after", i)
		woken, err := watching.Watch(t.Context(), key)
		require.NoError(t, err)
		eventually(t, "the key's shard is up", func() bool {
			ok, err := releasing.Acquire(t.Context(), key, "releaser", time.Minute)
			return ok && err == nil
		})
		ok, err := releasing.Release(t.Context(), key, "releaser")
		require.NoError(t, err)
		require.True(t, ok)
		isWoken(t, woken, "its lock was released on a shard that is up")
	}
}

// A shard that hangs does not keep a Watch from being live on the others.
func TestWatchOnRingWithHungShard(t *testing.T) {
	t.Parallel()
	hung, up := testserver.Redis(t), testserver.Redis(t)
	ring := redis.NewRing(&redis.RingOptions{
		Addrs: map[string]string{"hung": hung.Addr, "up": up.Addr}, HeartbeatFrequency: time.Hour,
		ReadTimeout: time.Second, MaxRetries: -1,
	})
	t.Cleanup(func() { _ = ring.Close() })
	l := redisv9.New(ring)
	key := ""
	for i := 0; key == ""; i++ { // one of the shard that is up
		k := fmt.Sprint("k", i)
		acquires(t, l, k, "t", time.Minute)
		if newClient(t, &redis.Options{Addr: up.Addr}).Exists(t.Context(), "locker:"+k).Val() == 1 {
			key = k
		}
	}
	hung.Pause()
	defer hung.Continue()
	start := time.Now()
	woken, err := l.Watch(t.Context(), key)
	require.NoError(t, err)
	assert.Less(t, time.Since(start), 15*time.Second)
	releases(t, l, key, "t")
	isWoken(t, woken, "its lock was released")
	isWoken(t, func() <-chan struct{} { hung.Continue(); return woken }(), "the other shard is back")
}

// If there is no connection for it, Watch returns an error at once, and works again when there is one.
func TestWatchWithoutConnection(t *testing.T) {
	addr := testserver.Redis(t).Addr
	ctx := t.Context()
	admin := newClient(t, &redis.Options{Addr: addr})
	t.Run("full server", func(t *testing.T) {
		l := newLocker(t, &redis.Options{Addr: addr})
		acquires(t, l, "k", "t", time.Minute)
		before := admin.ConfigGet(ctx, "maxclients").Val()["maxclients"]
		require.NoError(t, admin.ConfigSet(ctx, "maxclients", "1").Err())
		start := time.Now()
		_, err := l.Watch(ctx, "k")
		assert.Error(t, err)
		assert.Less(t, time.Since(start), 15*time.Second)
		require.NoError(t, admin.ConfigSet(ctx, "maxclients", before).Err())
		woken, err := l.Watch(ctx, "k")
		require.NoError(t, err)
		releases(t, l, "k", "t")
		isWoken(t, woken, "its lock was released")
	})
	t.Run("full pool", func(t *testing.T) {
		l := newLocker(t, &redis.Options{Addr: addr, PoolSize: 1, MaxActiveConns: 1})
		acquires(t, l, "k", "t", time.Minute)
		start := time.Now()
		_, err := l.Watch(ctx, "k")
		assert.Less(t, time.Since(start), 15*time.Second)
		if err != nil { // newer versions count subscribers apart
			assert.ErrorIs(t, err, errors.ErrUnsupported)
			assert.ErrorContains(t, err, "MaxActiveConns")
			assert.Less(t, time.Since(start), time.Second, "without trying")
			assert.Zero(t, redisv9.Feeds(l))
		}
		releases(t, l, "k", "t")
	})
}

// After a break all watchers are soon live again, even if the server's replies to their requests
// are longer than the 32 MB that it buffers for a subscriber.
func TestManyWatchersOverBreak(t *testing.T) {
	addr := testserver.Redis(t).Addr
	admin, l := newClient(t, &redis.Options{Addr: addr}), newLocker(t, &redis.Options{Addr: addr})
	connections := info(t, admin, "stats", "total_connections_received")
	redistest.WatchersOverBreak(t, admin, l, 10_000)
	connections = info(t, admin, "stats", "total_connections_received") - connections
	assert.LessOrEqual(t, connections, int64(6), "one before the break, and a few after it")
}

// A server that restarts takes the subscriptions with it: watchers are woken, and woken again by
// later releases.
func TestWatchOverRestart(t *testing.T) {
	srv := testserver.Redis(t)
	l := newLocker(t, &redis.Options{Addr: srv.Addr})
	woken, err := l.Watch(t.Context(), "k")
	require.NoError(t, err)
	srv.Restart()
	isWoken(t, woken, "the connection broke")
	admin := newClient(t, &redis.Options{Addr: srv.Addr})
	eventually(t, "it has subscribed again", func() bool { return subscribers(t, admin) == 1 })
	eventually(t, "a release wakes it", func() bool {
		release(t, l, "k")
		select {
		case <-woken:
			return true
		default:
			return false
		}
	})
}

// A connection that is silently dead is noticed by pings.
func TestWatchOnDeadConnection(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	l := newLocker(t, &redis.Options{Addr: srv.Addr, ReadTimeout: time.Second})
	woken, err := l.Watch(t.Context(), "k")
	require.NoError(t, err)
	srv.Pause()
	defer srv.Continue()
	isWoken(t, woken, "the server has not answered a ping")
}

// The hub stops connecting some time after the last watcher has gone.
func TestEndsWithoutServer(t *testing.T) {
	srv := testserver.Redis(t)
	l := newLocker(t, &redis.Options{Addr: srv.Addr})
	redisv9.SetLinger(l, 100*time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	woken, err := l.Watch(ctx, "k")
	require.NoError(t, err)
	srv.Stop()
	isWoken(t, woken, "the connection broke")
	cancel()
	eventually(t, "nothing is left", func() bool { return redisv9.Feeds(l) == 0 && redisv9.Channels(l) == 0 })
}

// A closed client is an error, and ends its subscriptions.
func TestClosedClient(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: testserver.Redis(t).Addr})
	l := redisv9.New(client)
	woken, err := l.Watch(t.Context(), "k")
	require.NoError(t, err)
	require.NoError(t, client.Close())
	isWoken(t, woken, "the connection broke")
	eventually(t, "nothing is left", func() bool { return redisv9.Feeds(l) == 0 })
	for name, operation := range operations(l) {
		assert.ErrorIs(t, operation(t.Context(), "k", "t"), redis.ErrClosed, name)
	}
	assert.Zero(t, redisv9.Feeds(l))
}

func TestNilClient(t *testing.T) {
	for name, client := range map[string]redis.UniversalClient{
		"nil": nil, "Client": (*redis.Client)(nil), "Ring": (*redis.Ring)(nil), "ClusterClient": (*redis.ClusterClient)(nil),
	} {
		for operation, f := range operations(redisv9.New(client)) {
			assert.EqualError(t, f(t.Context(), "k", "t"), "redisv9: nil client", "%s: %s", name, operation)
		}
	}
}

// limited creates a user of admin's server that may do everything, but subscribe only to the given
// channels.
func limited(tb testing.TB, admin *redis.Client, channels ...any) *redis.Options {
	tb.Helper()
	rights := []any{"acl", "setuser", "limited", "on", ">secret", "allkeys", "allcommands", "resetchannels"}
	require.NoError(tb, admin.Do(context.Background(), append(rights, channels...)...).Err())
	return &redis.Options{Addr: admin.Options().Addr, Username: "limited", Password: "secret"}
}

// A user that may not subscribe can lock all the same, by polling.
func TestNotAllowedToSubscribe(t *testing.T) {
	addr := testserver.Redis(t).Addr
	ctx := t.Context()
	admin := newClient(t, &redis.Options{Addr: addr})
	l := newLocker(t, limited(t, admin))
	key, t1, t2 := names(t)
	ok, err := l.Acquire(ctx, key, t1, time.Minute)
	require.NoError(t, err)
	require.True(t, ok)
	_, err = l.Watch(ctx, key)
	assert.ErrorIs(t, err, errors.ErrUnsupported)
	done := joins(t, admin, l, ctx, key, t2, time.Minute)
	releases(t, l, key, t1)
	isServed(t, done, "it looks")
	releases(t, l, key, t2)
	assert.Empty(t, admin.Keys(ctx, "*").Val())
}

// A channel that the user may not subscribe to does not affect other channels: not the present
// ones, not later ones, and not those that are subscribed to again after a break. Nor does the hub
// keep connecting because of it.
func TestOneChannelNotAllowed(t *testing.T) {
	addr := testserver.Redis(t).Addr
	ctx := t.Context()
	admin := newClient(t, &redis.Options{Addr: addr})
	l := newLocker(t, limited(t, admin, "&locker:mine*"))
	before, err := l.Watch(ctx, "mine1")
	require.NoError(t, err)
	connections := info(t, admin, "stats", "total_connections_received")
	refused := func() {
		for range 3 {
			acquires(t, l, "mine1", "t1", time.Minute)
			done := joins(t, admin, l, ctx, "mine1", "t2", time.Minute) // which takes a channel of the Locker's own
			releases(t, l, "mine1", "t1")
			isServed(t, done, "it looks")
			releases(t, l, "mine1", "t2")
			_, err := l.Watch(ctx, "theirs")
			assert.ErrorIs(t, err, errors.ErrUnsupported)
			isWoken(t, before, "its lock was released")
		}
	}
	refused()
	after, err := l.Watch(ctx, "mine2")
	require.NoError(t, err)
	release(t, l, "mine2")
	isWoken(t, after, "its lock was released")
	assert.False(t, isUndoing(l))
	// Concurrent calls may have needed a few connections of the client's pool.
	assert.Less(t, info(t, admin, "stats", "total_connections_received")-connections, int64(5))

	require.NoError(t, admin.ClientKillByFilter(ctx, "type", "pubsub").Err())
	isWoken(t, before, "the connection broke")
	eventually(t, "all allowed channels are subscribed to again", func() bool {
		return len(admin.PubSubChannels(ctx, "locker:mine*").Val()) == 2
	})
	refused()
	release(t, l, "mine2")
	isWoken(t, after, "its lock was released")

	// A channel that is allowed later works for later watchers.
	require.NoError(t, admin.Do(ctx, "acl", "setuser", "limited", "allchannels").Err())
	_, err = l.Watch(ctx, "theirs")
	assert.NoError(t, err)
	acquires(t, l, "mine1", "t1", time.Minute)
	done := joins(t, admin, l, ctx, "mine1", "t2", time.Minute)
	releases(t, l, "mine1", "t1")
	isServed(t, done, "the lock was released")
}
