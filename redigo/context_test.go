package redigo

import (
	"context"
	"errors"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker/internal/inflight"
	"github.com/golockers/locker/internal/testserver"
	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDoneBefore(t *testing.T) {
	t.Parallel()
	w, pool := newWire(t, testserver.Redis(t).Addr)
	l := New(pool)
	isOK(t)(l.Acquire(background, "warm", "t", time.Minute))
	w.requests()
	ctx, cancel := context.WithCancel(background)
	cancel()
	for name, run := range operations(l, "k", "t") {
		ok, err := run(ctx)
		assert.ErrorIs(t, err, context.Canceled, name)
		assert.EqualError(t, err, "context canceled", name)
		assert.False(t, ok, name)
	}
	_, err := l.Watch(ctx, "k")
	assert.EqualError(t, err, "context canceled")
	assert.Empty(t, w.requests())
	assert.EqualValues(t, 1, w.dials.Load())
}

// If ctx ends between two steps, nothing more is sent. The connection is closed, since it is
// watching the key.
func TestDoneBetween(t *testing.T) {
	t.Parallel()
	srv, _, raw := newServer(t)
	for name, sent := range map[string][]string{
		"acquire": {create}, "extend": {look}, "release": {look}, "take over": {create, look},
	} {
		for _, near := range []bool{false, true} {
			w, pool := newWire(t, srv.Addr)
			l := New(pool)
			isOK(t)(l.Acquire(background, "warm", "t", time.Minute))
			w.requests()
			ctx, cancel := context.WithCancel(background)
			defer cancel()
			if near {
				ctx, cancel = context.WithTimeout(ctx, ioTimeout-time.Second) // with a goroutine
				defer cancel()
			}
			op := operations(l, "k", "t")[name]
			owner := value{raw.now()/1000 + 60_000, "t"}
			if name == "take over" {
				op = operations(l, "k", "t")["acquire"]
				owner.expiry = 1
			}
			raw.do("SET", "locker:k", owner.encode())
			w.onReceived(func(request string) error {
				if request == sent[len(sent)-1] {
					cancel()
				}
				return nil
			})
			ok, err := op(ctx)
			assert.ErrorIs(t, err, context.Canceled, name)
			assert.False(t, ok, name)
			require.NoError(t, l.calls.Wait(background, "t"))
			w.quiet()
			assert.Equal(t, sent, w.requests(), name)
			if sent[len(sent)-1] == look {
				assert.Zero(t, pool.IdleCount(), "%s: a connection that watches a key is in the pool", name)
			}
			assert.Equal(t, owner.encode(), raw.string("GET", "locker:k"))
			isOK(t)(l.Acquire(background, "k", "t", time.Minute))
			assert.Eventually(t, func() bool { return pool.ActiveCount() == pool.IdleCount() }, patience, time.Millisecond)
		}
	}
}

// A caller of a server that hangs returns when its ctx ends, if that is before the timeout, and
// otherwise at the timeout. A goroutine that was left behind ends at the timeout.
func TestHungServer(t *testing.T) {
	srv, l, _ := newServer(t)
	isOK(t)(l.Acquire(background, "k", "t", time.Minute))
	var all sync.WaitGroup
	for range 8 { // so that no call has to dial
		all.Go(func() {
			_, err := l.Acquire(background, "k", "u", time.Minute)
			assert.NoError(t, err)
		})
	}
	all.Wait()
	srv.Pause()
	for name := range operations(l, "k", "t") {
		run := operations(l, "k", "t "+name)[name] // a token that nothing is under way for
		ctx, cancel := context.WithTimeout(background, 100*time.Millisecond)
		start := time.Now()
		ok, err := run(ctx)
		took := time.Since(start)
		cancel()
		assert.ErrorIs(t, err, context.DeadlineExceeded, name)
		assert.False(t, ok, name)
		assert.Less(t, took, ioTimeout-time.Second, "%s waited for the server", name)
		assert.NotEmpty(t, goroutines(), "%s: no call was left behind, so this test shows nothing", name)
	}
	for name := range operations(l, "k", "u") {
		run := operations(l, "k", "u "+name)[name]
		all.Go(func() { // nothing to end it
			ok, err := run(background)
			var timeout net.Error
			assert.ErrorAs(t, err, &timeout, name)
			assert.True(t, timeout != nil && timeout.Timeout(), name)
			assert.False(t, ok, name)
		})
		all.Go(func() { // canceled under way
			ctx, cancel := context.WithCancel(background)
			time.AfterFunc(50*time.Millisecond, cancel)
			start := time.Now()
			ok, err := run(ctx)
			assert.ErrorIs(t, err, context.Canceled, name)
			assert.Less(t, time.Since(start), ioTimeout+2*time.Second, name)
			assert.False(t, ok, name)
		})
		all.Go(func() { // a deadline just beyond the timeout, which comes first
			ctx, cancel := context.WithTimeout(background, ioTimeout+200*time.Millisecond)
			defer cancel()
			ok, err := run(ctx)
			assert.Error(t, err, name)
			assert.False(t, ok, name)
		})
	}
	all.Wait()
	noGoroutines(t)
	srv.Continue()
	isOK(t)(l.Release(background, "k", "t"))
}

// A deadline that is far when an operation begins, and near when its second step does, is honored.
func TestDeadlineComesNear(t *testing.T) {
	t.Parallel()
	srv, _, raw := newServer(t)
	w, pool := newWire(t, srv.Addr)
	l := New(pool)
	raw.plant("locker:k", "t", time.Minute)
	isOK(t)(l.Extend(background, "k", "t", time.Minute))
	const most = ioTimeout + 300*time.Millisecond
	w.onReceived(func(string) error {
		time.Sleep(ioTimeout - 300*time.Millisecond)
		srv.Pause()
		return nil
	})
	ctx, cancel := context.WithTimeout(background, most)
	defer cancel()
	start := time.Now()
	ok, err := l.Extend(ctx, "k", "t", time.Minute)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.False(t, ok)
	assert.Less(t, time.Since(start), most+ioTimeout/2, "the second step had the timeout for itself")
	assert.Equal(t, []string{look, renew, look, renew}, w.requests())
	srv.Continue()
}

// A Release waits behind an Acquire whose caller has left, so that it finds the lock that the
// Acquire takes.
func TestReleaseBehindAcquire(t *testing.T) {
	t.Parallel()
	srv, other, _ := newServer(t)
	w, pool := newWire(t, srv.Addr)
	l := New(pool)
	isOK(t)(l.Acquire(background, "warm", "t", time.Minute))
	paused, resume := w.pauseBefore(t, "RENAMENX")
	ctx, cancel := context.WithTimeout(background, ioTimeout-time.Second) // near, so that it is left behind
	defer cancel()
	go func() {
		<-paused
		cancel()
	}()
	ok, err := l.Acquire(ctx, "k", "t", time.Minute)
	require.ErrorIs(t, err, context.Canceled)
	require.False(t, ok)

	released := make(chan error, 1)
	go func() {
		ok, err := l.Release(background, "k", "t")
		if err == nil && !ok {
			err = errors.New("there was nothing to release")
		}
		released <- err
	}()
	isOK(t)(l.Acquire(background, "unrelated", "u", time.Minute))
	isOK(t)(l.Release(background, "unrelated", "u")) // another token's does not wait
	short, cancel := context.WithTimeout(background, 50*time.Millisecond)
	defer cancel()
	_, err = l.Release(short, "k", "t")
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	select {
	case err := <-released:
		t.Fatalf("Release did not wait: %v", err)
	default:
	}
	resume()
	require.NoError(t, <-released)
	isOK(t)(other.Acquire(background, "k", "o", time.Minute))
}

// If the pool's Dial or TestOnBorrow function does not return, callers return when their ctx ends,
// and a connection that comes later goes back to the pool.
func TestHungDial(t *testing.T) {
	srv := testserver.Redis(t)
	hang := func(t *testing.T, l *Locker, hanging *atomic.Bool, goOn chan struct{}) {
		for name, run := range operations(l, "k", "t") {
			for _, deadline := range []time.Duration{0, 50 * time.Millisecond, time.Hour} {
				ctx, cancel := context.WithCancel(background)
				want := context.Canceled
				if deadline > 0 {
					ctx, cancel = context.WithTimeout(ctx, deadline)
				}
				if deadline == 50*time.Millisecond {
					want = context.DeadlineExceeded
				} else {
					time.AfterFunc(50*time.Millisecond, cancel)
				}
				start := time.Now()
				ok, err := run(ctx)
				assert.ErrorIs(t, err, want, name)
				assert.False(t, ok, name)
				assert.Less(t, time.Since(start), ioTimeout-time.Second, name)
				cancel()
			}
		}
		assert.NotEmpty(t, goroutines(), "nothing hung, so this test shows nothing")
		hanging.Store(false)
		close(goOn)
		noGoroutines(t)
		assert.Equal(t, l.pool.IdleCount(), l.pool.ActiveCount(), "connections are lost")
		isOK(t)(l.Acquire(background, "k", "t", time.Minute))
		isOK(t)(l.Release(background, "k", "t"))
	}
	t.Run("Dial", func(t *testing.T) {
		pool, goOn := newPool(t, srv.Addr), make(chan struct{})
		var hanging atomic.Bool
		hanging.Store(true)
		dial := pool.Dial
		pool.Dial = func() (redis.Conn, error) {
			if hanging.Load() {
				<-goOn
			}
			return dial()
		}
		hang(t, New(pool), &hanging, goOn)
	})
	t.Run("stale", func(t *testing.T) {
		pool, goOn := newPool(t, srv.Addr), make(chan struct{})
		pool.IdleTimeout = 20 * time.Millisecond
		var hanging atomic.Bool
		dial := pool.Dial
		pool.Dial = func() (redis.Conn, error) {
			if hanging.Load() {
				<-goOn
			}
			return dial()
		}
		l := New(pool)
		isOK(t)(l.Acquire(background, "k", "t", time.Minute))
		isOK(t)(l.Release(background, "k", "t"))
		assert.NotZero(t, pool.IdleCount())
		time.Sleep(2 * pool.IdleTimeout)
		hanging.Store(true)
		hang(t, l, &hanging, goOn)
	})
	t.Run("TestOnBorrow", func(t *testing.T) {
		pool, goOn := newPool(t, srv.Addr), make(chan struct{})
		var hanging atomic.Bool
		pool.TestOnBorrow = func(redis.Conn, time.Time) error {
			if hanging.Load() {
				<-goOn
			}
			return nil
		}
		l := New(pool)
		var conns []redis.Conn
		for range 20 {
			conn := pool.Get()
			_, err := conn.Do("PING")
			require.NoError(t, err)
			conns = append(conns, conn)
		}
		for _, conn := range conns {
			conn.Close()
		}
		hanging.Store(true)
		hang(t, l, &hanging, goOn)
	})
}

// A user's function that ends its goroutine, or panics, does not leave the caller waiting.
func TestDialEndsItsGoroutine(t *testing.T) {
	t.Parallel()
	cause := errors.New("the cause")
	goexits := &redis.Pool{Dial: func() (redis.Conn, error) {
		runtime.Goexit()
		return nil, nil
	}}
	panics := &redis.Pool{Dial: func() (redis.Conn, error) { panic(cause) }}
	for name, bound := range map[string]time.Duration{"inline": time.Hour, "apart": ioTimeout - time.Millisecond} {
		for op, run := range operations(New(goexits), "k", "t") {
			ctx, cancel := context.WithTimeout(t.Context(), bound)
			ok, err := run(ctx)
			cancel()
			assert.ErrorIs(t, err, inflight.ErrGoexit, "%s: %s", name, op)
			assert.False(t, ok, "%s: %s", name, op)
		}
		for op, run := range operations(New(panics), "k", "t") {
			ctx, cancel := context.WithTimeout(t.Context(), bound)
			err := recovered(func() { _, _ = run(ctx) })
			cancel()
			assert.ErrorIs(t, err, cause, "%s: %s", name, op)
		}
	}
}

// A pool that is closed is an error, even if it has limits and the caller's context ends meanwhile.
func TestClosedPool(t *testing.T) {
	t.Parallel()
	p := &redis.Pool{MaxActive: 1, Wait: true, Dial: func() (redis.Conn, error) { return nil, errors.New("no server") }}
	_, err := connect(background, p)
	require.EqualError(t, err, "no server")
	require.NoError(t, p.Close())
	ended, cancel := context.WithCancel(background)
	cancel()
	for range 100 { // the pool chooses at random what it notices first
		_, err := connect(ended, p)
		require.Error(t, err)
	}
}

// recovered returns the error that f panics with.
func recovered(f func()) (err error) {
	defer func() { err, _ = recover().(error) }()
	f()
	return nil
}

func TestPools(t *testing.T) {
	srv, l, raw := newServer(t)
	isOK(t)(l.Acquire(background, "k", "t", time.Minute))
	held := raw.string("GET", "locker:k")
	fails := func(l *Locker, what string, is func(err error) bool) {
		t.Helper()
		for name, run := range operations(l, "k", "t") {
			for _, ctx := range []context.Context{background, t.Context()} {
				ok, err := run(ctx)
				if assert.Error(t, err, "%s: %s", what, name) {
					assert.True(t, is(err), "%s: %v", what, err)
				}
				assert.False(t, ok, "%s: %s", what, name)
			}
		}
	}
	leftAlone := func(what string) {
		t.Helper()
		assert.Equal(t, held, raw.string("GET", "locker:k"), "%s: something was left", what)
	}
	says := func(text string) func(error) bool {
		return func(err error) bool { return assert.ErrorContains(t, err, text) }
	}

	pool := newPool(t, srv.Addr)
	pool.MaxActive = 1
	conn := pool.Get()
	exhausted := New(pool)
	fails(exhausted, "exhausted", func(err error) bool { return errors.Is(err, redis.ErrPoolExhausted) })
	leftAlone("exhausted")
	require.NoError(t, conn.Close())
	isOK(t)(exhausted.Extend(background, "k", "t", time.Minute))
	held = raw.string("GET", "locker:k")

	pool = newPool(t, srv.Addr)
	pool.MaxActive, pool.Wait = 1, true
	conn = pool.Get()
	waiting := New(pool)
	for name, run := range operations(waiting, "k", "t") {
		ctx, cancel := context.WithCancel(background)
		time.AfterFunc(20*time.Millisecond, cancel)
		ok, err := run(ctx)
		assert.ErrorIs(t, err, context.Canceled, name)
		assert.False(t, ok, name)
	}
	leftAlone("waiting")
	require.NoError(t, conn.Close())
	isOK(t)(waiting.Extend(t.Context(), "k", "t", time.Minute))
	held = raw.string("GET", "locker:k")

	pool = newPool(t, srv.Addr)
	closed := New(pool)
	isRefused(t)(closed.Acquire(background, "k", "u", time.Minute))
	require.NoError(t, pool.Close())
	fails(closed, "closed", says("closed pool"))

	fails(New(nil), "nil", says("redigo: nil pool"))
	_, err := New(nil).Watch(background, "k")
	assert.EqualError(t, err, "redigo: nil pool")

	fails(New(&redis.Pool{}), "empty", says("Dial"))
	_, err = New(&redis.Pool{}).Watch(background, "k")
	assert.ErrorContains(t, err, "Dial")

	refused := errors.New("no")
	fails(New(&redis.Pool{Dial: func() (redis.Conn, error) { return nil, refused }}), "refused",
		func(err error) bool { return errors.Is(err, refused) })
	_, err = New(&redis.Pool{Dial: func() (redis.Conn, error) { return nil, refused }}).Watch(background, "k")
	assert.ErrorIs(t, err, refused)

	// Nothing is sent over a user's connection that has no timeouts.
	w, pool := newWire(t, srv.Addr)
	dial := pool.Dial
	pool.Dial = func() (redis.Conn, error) {
		conn, err := dial()
		return struct{ redis.Conn }{conn}, err
	}
	fails(New(pool), "without timeouts", says("ConnWithTimeout"))
	_, err = New(pool).Watch(background, "k")
	assert.ErrorContains(t, err, "ConnWithTimeout")
	assert.Empty(t, w.requests())

	leftAlone("all others")
	assert.EqualValues(t, 1, raw.do("DBSIZE"), "something else was left")
	noGoroutines(t)
}

// A server that is down or restarts is an error with its cause. Then the Locker works again, after
// each connection in the pool was found broken.
func TestRestart(t *testing.T) {
	t.Parallel()
	srv, l, _ := newServer(t)
	isOK(t)(l.Acquire(background, "k", "t", time.Minute))
	srv.Stop()
	for name, run := range operations(l, "k", "t") {
		ok, err := run(background)
		assert.Error(t, err, name)
		assert.False(t, ok, name)
	}
	srv.Restart()
	require.Eventually(t, func() bool {
		ok, err := l.Acquire(background, "k", "u", time.Minute)
		return err == nil && ok // what it held is lost
	}, patience, time.Millisecond)
	isRefused(t)(l.Extend(background, "k", "t", time.Minute))
	isRefused(t)(l.Release(background, "k", "t"))
}
