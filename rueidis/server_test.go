package rueidis_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"syscall"
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

// operations returns all operations of a Locker by name.
func operations(l redistest.Locker) map[string]func(ctx context.Context, key, token string) error {
	all := redistest.Operations(l)
	all["inspect"] = func(ctx context.Context, key, _ string) error {
		_, err := l.Inspect(ctx, key)
		return err
	}
	all["list"] = func(ctx context.Context, key, _ string) error {
		for _, err := range l.List(ctx, key) {
			if err != nil {
				return err
			}
		}
		return nil
	}
	return all
}

// The server shows the key, the token and the expiry, and nothing remains but the counter of
// fencing numbers.
func TestWhatIsOnTheServer(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	admin, client := newAdmin(t, addr), newClient(t, rueidisclient.ClientOption{InitAddress: []string{addr}})
	ctx := t.Context()
	for _, c := range []struct{ prefix, counter, key, lock, queue string }{
		{"", "!fence:locker:", "k", "locker:k", "!line:locker:{locker:k}"},
		{"locker:", "!fence:locker:", "a{b}c", "locker:a{b}c", "!line:locker:{b}locker:a{b}c"},
		{"locker:", "!fence:locker:", "a}b", "locker:a}b", "!line:locker:{}locker:a}b"},
		{"{app}", "!fence:%7Bapp%7D", "k", "{app}k", "!line:%7Bapp%7D{app}{app}k"},
		{"!", "#fence:%21", "k", "!k", "#line:%21{!k}"},
	} {
		require.NoError(t, admin.FlushAll(ctx).Err())
		l := rueidis.New(client, rueidis.WithPrefix(c.prefix))
		acquires(t, l, c.key, "t", 90*time.Second)
		assert.Equal(t, "t", admin.Get(ctx, c.lock).Val())
		assert.InDelta(t, 90, admin.PTTL(ctx, c.lock).Val().Seconds(), 30)
		assert.Equal(t, []string{c.lock}, admin.Keys(ctx, "*").Val())

		waitCtx, cancel := context.WithCancel(ctx)
		waited := make(chan error, 1)
		go func() {
			_, err := l.Wait(waitCtx, c.key, "t2", time.Minute)
			waited <- err
		}()
		eventually(t, "the waiter is in the queue", func() bool { return admin.ZCard(ctx, c.queue).Val() == 1 })
		assert.ElementsMatch(t, []string{c.lock, c.queue}, admin.Keys(ctx, "*").Val())
		cancel()
		err := <-waited
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, locker.ErrHeld)
		eventually(t, "the queue is empty", func() bool { return admin.Exists(ctx, c.queue).Val() == 0 })

		mint(t, l, c.key, "t")
		releases(t, l, c.key, "t")
		assert.Equal(t, []string{c.counter}, admin.Keys(ctx, "*").Val())
	}
}

func TestTTL(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	admin, l, ctx := newAdmin(t, addr), at(t, addr), t.Context()
	for range 2 { // by SET, and by PEXPIRE, as it is held
		acquires(t, l, "k", "t", math.MaxInt64)
		ms, err := admin.Do(ctx, "pttl", "locker:k").Int64()
		require.NoError(t, err)
		assert.InDelta(t, 292, float64(ms)/1000/60/60/24/365, 1, "years")
	}
	for _, ttl := range []time.Duration{0, -1, math.MinInt64} {
		_, err := l.Acquire(ctx, "k", "t", ttl)
		require.ErrorIs(t, err, locker.ErrInvalidTTL)
		_, err = l.Extend(ctx, "k", "t", ttl)
		require.ErrorIs(t, err, locker.ErrInvalidTTL)
		_, err = l.Wait(ctx, "k", "t", ttl)
		require.ErrorIs(t, err, locker.ErrInvalidTTL)
	}
	ok, err := l.Extend(ctx, "k", "t", time.Nanosecond)
	require.NoError(t, err)
	require.True(t, ok, "rounded up")
	eventually(t, "the millisecond has passed", func() bool { return admin.Exists(ctx, "locker:k").Val() == 0 })
}

// A server may forget its scripts at any time.
func TestScriptFlush(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	admin, l, ctx := newAdmin(t, addr), at(t, addr), t.Context()
	for range 2 {
		for name, operation := range operations(l) {
			acquires(t, l, "k", "t", time.Minute)
			require.NoError(t, admin.ScriptFlush(ctx).Err())
			require.NoError(t, operation(ctx, "k", "t"), name)
		}
		acquires(t, l, "k", "t", time.Minute)
		require.NoError(t, admin.ScriptFlush(ctx).Err())
		releases(t, l, "k", "t")
	}
}

// A value of another type is foreign and left alone. Any string is a lock that another holds, even
// if it has no expiry, unless it looks like one of package redigo.
func TestForeignValue(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	admin, l, ctx := newAdmin(t, addr), at(t, addr), t.Context()
	require.NoError(t, admin.HSet(ctx, "locker:k", "field", "value").Err())
	for _, name := range []string{"acquire", "extend", "release", "fence", "wait", "inspect", "list"} {
		assert.ErrorContains(t, operations(l)[name](ctx, "k", "t"), "WRONGTYPE ", name)
	}
	assert.Equal(t, map[string]string{"field": "value"}, admin.HGetAll(ctx, "locker:k").Val())

	require.NoError(t, admin.Set(ctx, "locker:k", "1763785000123:token", 0).Err())
	for _, name := range []string{"acquire", "extend", "release", "fence", "wait", "inspect", "list"} {
		assert.ErrorContains(t, operations(l)[name](ctx, "k", "t"), "in the format of package redigo", name)
	}

	require.NoError(t, admin.Set(ctx, "locker:k", "by hand", 0).Err())
	for name, f := range map[string]func() (bool, error){
		"acquire": func() (bool, error) { return l.Acquire(ctx, "k", "t", time.Minute) },
		"extend":  func() (bool, error) { return l.Extend(ctx, "k", "t", time.Minute) },
		"release": func() (bool, error) { return l.Release(ctx, "k", "t") },
	} {
		ok, err := f()
		assert.NoError(t, err, name)
		assert.False(t, ok, name)
	}
	assert.Equal(t, "by hand", admin.Get(ctx, "locker:k").Val())
	assert.EqualValues(t, -1, admin.PTTL(ctx, "locker:k").Val())
}

// A replica may lag, so every operation on one is an error: when the client is connected to it, and
// when its options send commands there.
func TestReplica(t *testing.T) {
	t.Parallel()
	master := testserver.Redis(t)
	host, port, err := net.SplitHostPort(master.Addr)
	require.NoError(t, err)
	replica := testserver.Redis(t, "--replicaof", host+" "+port)
	ctx, onReplica, onMaster := t.Context(), newAdmin(t, replica.Addr), newAdmin(t, master.Addr)
	eventually(t, "the replica has all", func() bool {
		acquires(t, at(t, master.Addr), "k", "t1", time.Minute)
		return onReplica.Get(ctx, "locker:k").Val() == "t1"
	})
	withReplica := func(send func(rueidisclient.Completed) bool) rueidisclient.Client {
		return newClient(t, rueidisclient.ClientOption{
			InitAddress: []string{master.Addr}, SendToReplicas: send,
			Standalone: rueidisclient.StandaloneOption{ReplicaAddress: []string{replica.Addr}},
		})
	}
	for what, client := range map[string]rueidisclient.Client{
		"connected to it":   newClient(t, rueidisclient.ClientOption{InitAddress: []string{replica.Addr}}),
		"all commands sent": withReplica(func(rueidisclient.Completed) bool { return true }),
	} {
		for name, operation := range operations(rueidis.New(client)) {
			if name == "watch" || name == "inspect" || name == "list" {
				continue // a replica passes messages on, and tells what it knows
			}
			for _, token := range []string{"t1", "t2"} {
				assert.ErrorContains(t, operation(ctx, "k", token), "READONLY", "%s, %s by %s", what, name, token)
				assert.ErrorContains(t, operation(ctx, "free", token), "READONLY", "%s, %s", what, name)
			}
		}
	}

	// The usual function sends only what is marked as read-only. The replica lags from here on.
	require.NoError(t, onReplica.SlaveOf(ctx, "127.0.0.1", "1").Err())
	l := rueidis.New(withReplica(func(c rueidisclient.Completed) bool { return c.IsReadOnly() }))
	releases(t, l, "k", "t1")
	acquires(t, l, "k", "t2", time.Minute)
	assert.Equal(t, "t2", inspect(t, l, "k").Token)
	_, ok, err := l.Fence(ctx, "k", "t1")
	require.NoError(t, err)
	assert.False(t, ok)
	held, errs := list(t, l, "")
	assert.Equal(t, map[string]string{"k": "t2"}, held)
	assert.Empty(t, errs)
	done := joins(t, onMaster, l, ctx, "k", "t3", time.Minute)
	releases(t, l, "k", "t2")
	isServed(t, done, "the lock was released")
}

func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t, "--maxmemory-policy", "noeviction").Addr
	admin, l, ctx := newAdmin(t, addr), at(t, addr), t.Context()
	acquires(t, l, "k", "t", time.Minute)
	require.NoError(t, admin.ConfigSet(ctx, "maxmemory", "1").Err())
	for _, name := range []string{"acquire", "wait"} {
		assert.ErrorContains(t, operations(l)[name](ctx, "another", "t"), "OOM", name)
	}
	ok, err := l.Extend(ctx, "k", "t", time.Minute)
	require.NoError(t, err)
	require.True(t, ok)
	releases(t, l, "k", "t")
}

func TestNoServer(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	l := at(t, srv.Addr)
	srv.Stop()
	for name, operation := range operations(l) {
		eventually(t, name+" finds no connection that has ended, and dials", func() bool {
			err := operation(t.Context(), "k", "t")
			require.Error(t, err, name)
			return errors.Is(err, syscall.ECONNREFUSED)
		})
	}
	_, err := locker.Lock(t.Context(), l, "invoice/42", time.Minute)
	assert.EqualError(t, err, `locker: lock "invoice/42": dial tcp `+srv.Addr+": connect: connection refused")
}

// A suspended server delays no caller for longer than its context allows, whether the client is
// connected or not, and whatever the context ends with.
func TestHungServer(t *testing.T) {
	t.Parallel()
	const patience = 300 * time.Millisecond
	for name, o := range map[string]rueidisclient.ClientOption{
		"defaults":              {},
		"AlwaysPipelining":      {AlwaysPipelining: true},
		"DisableAutoPipelining": {DisableAutoPipelining: true},
		"a full ring":           {RingScaleEachConn: 1, AlwaysPipelining: true, PipelineMultiplex: -1},
		"no pings":              {Dialer: net.Dialer{KeepAlive: -1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := testserver.Redis(t)
			o.InitAddress = []string{srv.Addr}
			l := newLocker(t, o)
			acquires(t, l, "k", "t", time.Minute)
			srv.Pause()
			defer srv.Continue()
			for _, isConnected := range []bool{true, false} {
				for operation, f := range operations(l) {
					bounded, cancel := context.WithTimeout(t.Context(), patience)
					if !isConnected {
						bounded, cancel = context.WithCancel(t.Context())
						time.AfterFunc(patience, cancel)
					}
					start := time.Now()
					err := f(bounded, "k", "t")
					took := time.Since(start)
					want := bounded.Err()
					cancel()
					assert.ErrorIs(t, err, want, operation)
					assert.Less(t, took, 5*time.Second, "%s: less than any timeout of the client", operation)
				}
			}
		})
	}
}

// Without a context that can end, rueidis's pings do.
func TestHungServerWithoutContext(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	l := newLocker(t, rueidisclient.ClientOption{
		InitAddress: []string{srv.Addr}, Dialer: net.Dialer{Timeout: time.Second}, ConnWriteTimeout: 2 * time.Second,
		DisableAutoPipelining: false,
	})
	acquires(t, l, "k", "t", time.Minute)
	srv.Pause()
	defer srv.Continue()
	start := time.Now()
	_, err := l.Extend(context.Background(), "k", "t", time.Minute)
	assert.Error(t, err)
	assert.NotErrorIs(t, err, context.DeadlineExceeded)
	assert.Less(t, time.Since(start), 15*time.Second)
}

// If the Locker's own timeout ends a call, its request may have been sent, and what it may have taken
// is released.
func TestHungServerWithoutPings(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	admin := newAdmin(t, srv.Addr)
	const calls = 16 // on connections of their own, since rueidis's timer is not always the first
	var lockers [calls]*rueidis.Locker
	for i := range lockers {
		lockers[i] = newLocker(t, rueidisclient.ClientOption{
			InitAddress: []string{srv.Addr}, PipelineMultiplex: -1,
			Dialer: net.Dialer{KeepAlive: time.Hour}, ConnWriteTimeout: time.Minute,
		})
		rueidis.SetCallTimeout(lockers[i], 2*time.Second)
	}
	srv.Pause()
	defer srv.Continue()
	errs := make(chan error, calls)
	for i, l := range lockers {
		go func() {
			_, err := l.Wait(context.Background(), fmt.Sprint("k", i), "t", time.Hour)
			errs <- err
		}()
	}
	for range calls {
		assert.ErrorContains(t, <-errs, "no reply within")
	}
	srv.Continue()
	eventually(t, "all requests have arrived and all locks are free", func() bool {
		return executed(t, admin, "set") == calls && len(admin.Keys(t.Context(), "locker:k*").Val()) == 0
	})
}

// A request that was left behind while the server hung takes the lock when it goes on. The lock is
// released then, although that is later than waiters try to give up their place.
func TestHungServerTakesALockLate(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	admin, l := newAdmin(t, srv.Addr), at(t, srv.Addr)
	acquires(t, l, "other", "other", time.Hour) // it has a connection
	before := executed(t, admin, "set")
	srv.Pause()
	defer srv.Continue()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second) // or it might leave before it has written its request
	defer cancel()
	_, err := l.Wait(ctx, "k", "t", time.Hour)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	time.Sleep(7 * time.Second)
	srv.Continue()
	eventually(t, "the request has arrived and the lock is free", func() bool {
		return executed(t, admin, "set") > before && admin.Exists(t.Context(), "locker:k").Val() == 0
	})
}

// A server that hangs for longer than waiters try to leave its queue executes their requests when it
// goes on.
func TestServerHangsForLong(t *testing.T) {
	t.Parallel()
	redistest.HangingServer(t, func(addr string) redistest.Locker {
		return rueidis.New(newClient(t, rueidisclient.ClientOption{InitAddress: []string{addr}, ConnWriteTimeout: time.Second}))
	})
}

func TestNilClient(t *testing.T) {
	t.Parallel()
	for operation, f := range operations(rueidis.New(nil)) {
		assert.EqualError(t, f(t.Context(), "k", "t"), "rueidis: nil client", operation)
	}
	var none *nothing
	for operation, f := range operations(rueidis.New(none)) {
		assert.EqualError(t, f(t.Context(), "k", "t"), "rueidis: nil client", operation)
	}
}

type nothing struct{ rueidisclient.Client }

// A closed client is an error. rueidis leaves the Locker's own connection open, which ends when it
// is no longer needed.
func TestClosedClient(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	client, err := rueidisclient.NewClient(rueidisclient.ClientOption{InitAddress: []string{addr}})
	require.NoError(t, err)
	l := rueidis.New(client)
	rueidis.SetLinger(l, 100*time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	_, err = l.Watch(ctx, "k")
	require.NoError(t, err)
	client.Close()
	cancel()
	eventually(t, "nothing is left", func() bool { return !rueidis.IsConnected(l) && subscribers(t, newAdmin(t, addr)) == 0 })
	for name, operation := range operations(l) {
		assert.ErrorIs(t, operation(t.Context(), "k", "t"), rueidisclient.ErrClosing, name)
	}
	eventually(t, "nothing is left", func() bool { return !rueidis.IsConnected(l) })
}
