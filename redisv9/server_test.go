package redisv9_test

import (
	"context"
	"math"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/redislock"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// names returns a key and two tokens.
func names(tb testing.TB) (key, t1, t2 string) {
	return tb.Name(), tb.Name() + " 1", tb.Name() + " 2"
}

func TestOneRequestAnOperation(t *testing.T) {
	addr := testserver.Redis(t).Addr
	client, admin := newClient(t, &redis.Options{Addr: addr}), newClient(t, &redis.Options{Addr: addr})
	l := redisv9.New(client)
	ctx := t.Context()
	key, t1, t2 := names(t)
	steps := []struct {
		name string
		do   func() (bool, error)
		want bool
	}{
		{"Acquire", func() (bool, error) { return l.Acquire(ctx, key, t1, time.Minute) }, true},
		{"Acquire by another", func() (bool, error) { return l.Acquire(ctx, key, t2, time.Minute) }, false},
		{"Extend", func() (bool, error) { return l.Extend(ctx, key, t1, time.Minute) }, true},
		{"Extend by another", func() (bool, error) { return l.Extend(ctx, key, t2, time.Minute) }, false},
		{"Fence", func() (bool, error) { n, ok, err := l.Fence(ctx, key, t1); return ok && n > 0, err }, true},
		{"Fence by another", func() (bool, error) { _, ok, err := l.Fence(ctx, key, t2); return ok, err }, false},
		{"Release by another", func() (bool, error) { return l.Release(ctx, key, t2) }, false},
		{"Release", func() (bool, error) { return l.Release(ctx, key, t1) }, true},
		{"Wait", func() (bool, error) {
			deadline, err := l.Wait(ctx, key, t1, time.Minute)
			return time.Until(deadline) > 0, err
		}, true},
		{"Release after Wait", func() (bool, error) { return l.Release(ctx, key, t1) }, true},
	}
	for round := range 2 { // the first connects, and brings the scripts to the server
		for _, step := range steps {
			before := reads(t, admin)
			ok, err := step.do()
			require.NoError(t, err, step.name)
			require.Equal(t, step.want, ok, step.name)
			if round > 0 {
				assert.EqualValues(t, 1, reads(t, admin)-before-1, "requests of %s", step.name)
			}
		}
	}
}

// The server shows the key, the token and the expiry, and nothing remains but the counter of
// fencing numbers.
func TestWhatIsOnTheServer(t *testing.T) {
	addr := testserver.Redis(t).Addr
	client := newClient(t, &redis.Options{Addr: addr})
	ctx := t.Context()
	for _, c := range []struct{ prefix, counter, key, lock, queue string }{
		{"locker:", "!fence:locker:", "k", "locker:k", "!line:locker:{locker:k}"},
		{"locker:", "!fence:locker:", "a{b}c", "locker:a{b}c", "!line:locker:{b}locker:a{b}c"},
		{"locker:", "!fence:locker:", "a{b", "locker:a{b", "!line:locker:{locker:a{b}"},
		{"locker:", "!fence:locker:", "a}b", "locker:a}b", "!line:locker:{}locker:a}b"},
		{"locker:", "!fence:locker:", "a{}b", "locker:a{}b", "!line:locker:{}locker:a{}b"},
		{"{app}", "!fence:%7Bapp%7D", "k", "{app}k", "!line:%7Bapp%7D{app}{app}k"},
		{"!", "#fence:%21", "k", "!k", "#line:%21{!k}"},
	} {
		t.Run(c.prefix+c.key, func(t *testing.T) {
			require.NoError(t, client.FlushAll(ctx).Err())
			l := redisv9.New(client, redisv9.WithPrefix(c.prefix))
			ok, err := l.Acquire(ctx, c.key, "t", 90*time.Second)
			require.NoError(t, err)
			require.True(t, ok)
			assert.Equal(t, "t", client.Get(ctx, c.lock).Val())
			assert.InDelta(t, 90, client.PTTL(ctx, c.lock).Val().Seconds(), 30)
			assert.Equal(t, []string{c.lock}, client.Keys(ctx, "*").Val())

			waitCtx, cancel := context.WithCancel(ctx)
			waited := make(chan error, 1)
			go func() {
				_, err := l.Wait(waitCtx, c.key, "t2", time.Minute)
				waited <- err
			}()
			eventually(t, "the waiter is in the queue", func() bool { return client.ZCard(ctx, c.queue).Val() == 1 })
			assert.ElementsMatch(t, []string{c.lock, c.queue}, client.Keys(ctx, "*").Val())
			ttl, left := client.PTTL(ctx, c.queue).Val(), client.PTTL(ctx, c.lock).Val()
			assert.Greater(t, ttl, left, "volatile-ttl evicts the lock first")
			assert.Less(t, ttl, left+2*time.Minute)
			cancel()
			require.ErrorIs(t, <-waited, context.Canceled)
			eventually(t, "the queue is empty", func() bool { return client.Exists(ctx, c.queue).Val() == 0 })

			_, ok, err = l.Fence(ctx, c.key, "t")
			require.NoError(t, err)
			require.True(t, ok)
			ok, err = l.Release(ctx, c.key, "t")
			require.NoError(t, err)
			require.True(t, ok)
			assert.Equal(t, []string{c.counter}, client.Keys(ctx, "*").Val())
		})
	}
}

func TestLongestTTL(t *testing.T) {
	client := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
	l := redisv9.New(client)
	ctx := t.Context()
	key, t1, _ := names(t)
	for range 2 { // by SET, and by PEXPIRE, as it is held
		ok, err := l.Acquire(ctx, key, t1, math.MaxInt64)
		require.NoError(t, err)
		require.True(t, ok)
		ms, err := client.Do(ctx, "pttl", "locker:"+key).Int64() // too long for go-redis's PTTL
		require.NoError(t, err)
		assert.InDelta(t, 292, float64(ms)/1000/60/60/24/365, 1, "years")
	}
	for _, ttl := range []time.Duration{0, -1, math.MinInt64} {
		_, err := l.Acquire(ctx, key, t1, ttl)
		require.ErrorIs(t, err, locker.ErrInvalidTTL)
		_, err = l.Extend(ctx, key, t1, ttl)
		require.ErrorIs(t, err, locker.ErrInvalidTTL)
		_, err = l.Wait(ctx, key, t1, ttl)
		require.ErrorIs(t, err, locker.ErrInvalidTTL)
	}
	ok, err := l.Extend(ctx, key, t1, time.Nanosecond)
	require.NoError(t, err)
	require.True(t, ok, "rounded up")
}

// A server may forget its scripts at any time.
func TestScriptFlush(t *testing.T) {
	client := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
	l := redisv9.New(client)
	ctx := t.Context()
	key, t1, _ := names(t)
	for range 2 {
		for name, operation := range operations(l) {
			_, err := l.Acquire(ctx, key, t1, time.Minute)
			require.NoError(t, err)
			require.NoError(t, client.ScriptFlush(ctx).Err())
			require.NoError(t, operation(ctx, key, t1), name)
		}
		_, err := l.Acquire(ctx, key, t1, time.Minute)
		require.NoError(t, err)
		require.NoError(t, client.ScriptFlush(ctx).Err())
		ok, err := l.Release(ctx, key, t1)
		require.NoError(t, err)
		require.True(t, ok)
	}
}

// A value of another type is foreign and left alone. Any string is a lock that another holds, even
// if it has no expiry.
func TestForeignValue(t *testing.T) {
	client := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
	l := redisv9.New(client)
	ctx := t.Context()
	key, t1, _ := names(t)
	require.NoError(t, client.HSet(ctx, "locker:"+key, "field", "value").Err())
	for _, name := range []string{"acquire", "extend", "release", "fence", "wait"} {
		err := operations(l)[name](ctx, key, t1)
		assert.ErrorContains(t, err, "WRONGTYPE ", name)
	}
	assert.Equal(t, map[string]string{"field": "value"}, client.HGetAll(ctx, "locker:"+key).Val())

	require.NoError(t, client.Set(ctx, "locker:"+key, "by hand", 0).Err())
	for name, f := range map[string]func() (bool, error){
		"acquire": func() (bool, error) { return l.Acquire(ctx, key, t1, time.Minute) },
		"extend":  func() (bool, error) { return l.Extend(ctx, key, t1, time.Minute) },
		"release": func() (bool, error) { return l.Release(ctx, key, t1) },
	} {
		ok, err := f()
		assert.NoError(t, err, name)
		assert.False(t, ok, name)
	}
	assert.Equal(t, "by hand", client.Get(ctx, "locker:"+key).Val())
	assert.EqualValues(t, -1, client.PTTL(ctx, "locker:"+key).Val())
}

// A replica may lag, so every operation on one is an error.
func TestReadOnlyReplica(t *testing.T) {
	master := testserver.Redis(t)
	host, port, err := net.SplitHostPort(master.Addr)
	require.NoError(t, err)
	replica := newClient(t, &redis.Options{Addr: testserver.Redis(t, "--replicaof", host+" "+port).Addr})
	ctx := t.Context()
	key, t1, t2 := names(t)
	ok, err := newLocker(t, &redis.Options{Addr: master.Addr}).Acquire(ctx, key, t1, time.Minute)
	require.NoError(t, err)
	require.True(t, ok)
	eventually(t, "the replica has it", func() bool { return replica.Get(ctx, "locker:"+key).Val() == t1 })
	l := redisv9.New(replica)
	for name, operation := range operations(l) {
		if name == "watch" {
			continue // a replica passes messages on
		}
		for what, token := range map[string]string{"the holder": t1, "another": t2} {
			err := operation(ctx, key, token)
			assert.True(t, redis.HasErrorPrefix(err, "READONLY"), "%s by %s: %v", name, what, err)
		}
		assert.Error(t, operation(ctx, "free", t1), name)
	}
	onRing := operations(redisv9.New(newRing(t, map[string]string{"a": replica.Options().Addr})))
	for _, name := range []string{"acquire", "extend", "release"} {
		err := onRing[name](ctx, "}", t1) // a name without a queue
		assert.True(t, redis.HasErrorPrefix(err, "READONLY"), "%s: %v", name, err)
	}
}

func TestOutOfMemory(t *testing.T) {
	client := newClient(t, &redis.Options{Addr: testserver.Redis(t, "--maxmemory-policy", "noeviction").Addr})
	l := redisv9.New(client)
	ctx := t.Context()
	key, t1, t2 := names(t)
	ok, err := l.Acquire(ctx, key, t1, time.Minute)
	require.NoError(t, err)
	require.True(t, ok)
	granted := make(chan error, 1)
	enqueue := func() {
		go func() {
			_, err := l.Wait(ctx, key, t2, time.Minute)
			granted <- err
		}()
		eventually(t, "the waiter is in the queue", func() bool { return queueLength(client, key) == 1 })
	}
	// Once subscribed, a waiter does not look again by itself, which would be refused while memory
	// is short.
	enqueue()
	releases(t, l, key, t1)
	require.NoError(t, <-granted)
	releases(t, l, key, t2)
	acquires(t, l, key, t1, time.Minute)
	enqueue()
	require.NoError(t, client.ConfigSet(ctx, "maxmemory", "1").Err())
	for _, name := range []string{"acquire", "wait"} {
		err := operations(l)[name](ctx, "another", t1)
		assert.True(t, redis.HasErrorPrefix(err, "OOM"), "%s: %v", name, err)
	}
	ok, err = l.Extend(ctx, key, t1, time.Minute)
	require.NoError(t, err)
	require.True(t, ok)
	ok, err = l.Release(ctx, key, t1)
	require.NoError(t, err)
	require.True(t, ok, "freeing a lock needs no memory")
	assert.NotEqual(t, t1, client.Get(ctx, "locker:"+key).Val())
	start := time.Now()
	require.NoError(t, <-granted, "neither does handing it over")
	assert.Less(t, time.Since(start), redislock.LookAgain/2)
	require.NoError(t, client.ConfigSet(ctx, "maxmemory", "0").Err())
}

func TestNoServer(t *testing.T) {
	srv := testserver.Redis(t)
	srv.Stop()
	l := newLocker(t, &redis.Options{Addr: srv.Addr})
	key, t1, _ := names(t)
	for name, operation := range operations(l) {
		err := operation(t.Context(), key, t1)
		assert.ErrorIs(t, err, syscall.ECONNREFUSED, name)
	}
	_, err := locker.Lock(t.Context(), l, "invoice/42", time.Minute)
	assert.EqualError(t, err, `locker: lock "invoice/42": dial tcp `+srv.Addr+": connect: connection refused")
}

// The error of an OnConnect is no reply, even if it looks like one.
func TestOnConnectFails(t *testing.T) {
	l := newLocker(t, &redis.Options{Addr: testserver.Redis(t).Addr, MaxRetries: -1,
		OnConnect: func(context.Context, *redis.Conn) error { return redis.Nil }})
	key, t1, _ := names(t)
	for name, operation := range operations(l) {
		if name != "watch" {
			assert.Error(t, operation(t.Context(), key, t1), name)
		}
	}
	ok, err := l.Acquire(t.Context(), key, t1, time.Minute)
	assert.False(t, ok)
	assert.Error(t, err)
}

// A suspended server delays no caller for longer than the client's timeouts.
func TestHungServer(t *testing.T) {
	srv := testserver.Redis(t)
	ctx := t.Context()
	key, t1, _ := names(t)
	const patience = 300 * time.Millisecond
	for name, o := range map[string]*redis.Options{
		"defaults":              {},
		"ContextTimeoutEnabled": {ContextTimeoutEnabled: true},
		"no timeout":            {ReadTimeout: -1, WriteTimeout: -1},
		"no timeout at all":     {ReadTimeout: -2, WriteTimeout: -2, ContextTimeoutEnabled: true},
	} {
		o.Addr = srv.Addr
		l := newLocker(t, o)
		_, err := l.Acquire(ctx, key, t1, time.Minute) // connects
		require.NoError(t, err)
		for operation, f := range operations(l) {
			srv.Pause()
			bounded, cancel := context.WithTimeout(ctx, patience)
			start := time.Now()
			err := f(bounded, key, t1)
			took := time.Since(start)
			srv.Continue()
			cancel()
			assert.ErrorIs(t, err, context.DeadlineExceeded, "%s with %s", operation, name)
			assert.Less(t, took, 2500*time.Millisecond, "%s with %s: less than any timeout of the client", operation, name)
		}
	}
}

// A client without timeouts is given one.
func TestNoTimeout(t *testing.T) {
	t.Parallel()
	for name, read := range map[string]time.Duration{"none": -1, "no deadlines": -2} {
		for kind, connect := range map[string]func(addr string) redis.UniversalClient{
			"Client": func(addr string) redis.UniversalClient {
				return redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: read, MaxRetries: -1})
			},
			"Ring": func(addr string) redis.UniversalClient {
				return redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"only": addr},
					ReadTimeout: read, HeartbeatFrequency: time.Hour, MaxRetries: -1})
			},
		} {
			t.Run(name+" "+kind, func(t *testing.T) {
				t.Parallel()
				srv := testserver.Redis(t) // its own: the others end their pauses while this one hangs
				client := connect(srv.Addr)
				t.Cleanup(func() { _ = client.Close() })
				key, t1, _ := names(t)
				l := redisv9.New(client)
				_, err := l.Acquire(t.Context(), key, t1, time.Minute)
				require.NoError(t, err)
				srv.Pause()
				defer srv.Continue()
				start := time.Now()
				_, err = l.Extend(t.Context(), key, t1, time.Minute)
				assert.Error(t, err)
				assert.GreaterOrEqual(t, time.Since(start), 2*time.Second)
				assert.Less(t, time.Since(start), 15*time.Second)
			})
		}
	}
}
