package redigo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/pubsub"
	"github.com/golockers/locker/internal/testserver"
	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// watches starts a Watch, and returns its channel and a function that ends it.
func watches(tb testing.TB, l *Locker, key string) (<-chan struct{}, context.CancelFunc) {
	tb.Helper()
	ctx, cancel := context.WithCancel(background)
	tb.Cleanup(cancel)
	wake, err := l.Watch(ctx, key)
	require.NoError(tb, err)
	return wake, cancel
}

func woken(tb testing.TB, wake <-chan struct{}, what string) {
	tb.Helper()
	select {
	case <-wake:
	case <-time.After(patience):
		require.Fail(tb, "not woken", what)
	}
}

func asleep(tb testing.TB, wake <-chan struct{}, what string) {
	tb.Helper()
	select {
	case <-wake:
		require.Fail(tb, "woken", what)
	default:
	}
}

func cycle(tb testing.TB, l *Locker, key string) {
	tb.Helper()
	isOK(tb)(l.Acquire(background, key, "t", time.Minute))
	isOK(tb)(l.Release(background, key, "t"))
}

// subscribers returns how many connections are subscribed to a lock's channel.
func subscribers(raw rawConn, key string) int64 {
	raw.tb.Helper()
	reply, err := redis.Values(raw.do("PUBSUB", "NUMSUB", "locker:"+key), nil)
	require.NoError(raw.tb, err)
	return reply[1].(int64)
}

func TestWatch(t *testing.T) {
	t.Parallel()
	srv, releaser, raw := newServer(t)
	w, pool := newWire(t, srv.Addr)
	l := New(pool)
	a, endA := watches(t, l, "k")
	b, endB := watches(t, l, "k")
	other, _ := watches(t, l, "other")
	last, _ := watches(t, l, "\x00any \xff name\r\n")
	elsewhere, _ := watches(t, New(newPool(t, srv.Addr)), "k")
	assert.EqualValues(t, 1, w.dials.Load(), "the watchers of a Locker share one connection")
	assert.Zero(t, pool.ActiveCount(), "it is one of the pool's")
	assert.EqualValues(t, 2, subscribers(raw, "k"))

	for range 3 {
		cycle(t, releaser, "k")
		woken(t, a, "a")
		woken(t, b, "b")
		woken(t, elsewhere, "elsewhere")
	}
	cycle(t, releaser, "\x00any \xff name\r\n") // it comes after all others
	woken(t, last, "last")
	asleep(t, a, "a")
	asleep(t, b, "b")
	asleep(t, other, "other")

	for range 3 {
		cycle(t, l, "k") // wake-ups coalesce
	}
	cycle(t, l, "\x00any \xff name\r\n")
	woken(t, last, "last")
	woken(t, a, "a")
	asleep(t, a, "a has room for one wake-up")
	woken(t, b, "b")

	endA()
	require.Eventually(t, func() bool { // it ends by itself, soon
		for len(a) > 0 {
			<-a
		}
		cycle(t, l, "k")
		woken(t, b, "b")
		return len(a) == 0
	}, patience, time.Millisecond)
	endB()
	require.Eventually(t, func() bool { return subscribers(raw, "k") == 1 }, patience, time.Millisecond)
	c, _ := watches(t, l, "k")
	cycle(t, l, "k")
	woken(t, c, "c")
	assert.EqualValues(t, 1, w.dials.Load()-int64(pool.ActiveCount()))
}

// An expiry wakes no watcher, but the holder's late Release does.
func TestWatchLateRelease(t *testing.T) {
	t.Parallel()
	_, l, raw := newServer(t)
	wake, _ := watches(t, l, "k")
	raw.plant("locker:k", "t", -time.Second)
	isRefused(t)(l.Release(background, "k", "t"))
	woken(t, wake, "")
}

// Nothing remains after the last watcher has gone: its channel is left soon, the connection a while
// later.
func TestWatchEnds(t *testing.T) {
	_, l, raw := newServer(t)
	l.hub.SetLinger(time.Second)
	for range 2 {
		_, end := watches(t, l, "a")
		_, end2 := watches(t, l, "b")
		end()
		require.Eventually(t, func() bool { return subscribers(raw, "a") == 0 }, patience, time.Millisecond)
		assert.EqualValues(t, 1, subscribers(raw, "b"))
		end2()
		noGoroutines(t)
		channels, err := redis.Strings(raw.do("PUBSUB", "CHANNELS"), nil)
		require.NoError(t, err)
		assert.Empty(t, channels)
		assert.Zero(t, l.hub.Channels())
		assert.False(t, l.hub.InUse())
	}
}

// A caller that watches and then releases is woken, however many watchers of the key come and go at
// the same time.
func TestWatchStorm(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	l := New(newPool(t, srv.Addr))
	raw := newRaw(t, srv.Addr)
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for range 100 {
				key := fmt.Sprint(rand.N(3))
				ctx, cancel := context.WithCancel(background)
				if rand.N(3) == 0 {
					time.AfterFunc(time.Duration(rand.N(1000))*time.Microsecond, cancel) // perhaps before it is live
				}
				wake, err := l.Watch(ctx, key)
				if err != nil {
					assert.ErrorIs(t, err, context.Canceled)
					cancel()
					continue
				}
				conn := l.pool.Get()
				_, err = conn.Do("PUBLISH", "locker:"+key, "")
				assert.NoError(t, err)
				conn.Close()
				select {
				case <-wake:
				case <-ctx.Done():
				case <-time.After(patience):
					t.Error("missed")
				}
				cancel()
			}
		})
	}
	all.Wait()
	for key := range 3 {
		require.Eventually(t, func() bool { return subscribers(raw, fmt.Sprint(key)) == 0 },
			patience, time.Millisecond)
	}
}

// When the connection breaks, watchers are woken, and see later releases.
func TestWatchCut(t *testing.T) {
	t.Parallel()
	srv, releaser, raw := newServer(t)
	w, pool := newWire(t, srv.Addr)
	l := New(pool)
	a, _ := watches(t, l, "a")
	b, _ := watches(t, l, "b")
	for range 3 {
		raw.do("CLIENT", "KILL", "TYPE", "pubsub")
		woken(t, a, "a")
		woken(t, b, "b")
		require.Eventually(t, func() bool { return subscribers(raw, "a")+subscribers(raw, "b") == 2 },
			patience, time.Millisecond)
		cycle(t, releaser, "a")
		cycle(t, releaser, "b")
		woken(t, a, "a, by a release")
		woken(t, b, "b, by a release")
	}
	assert.LessOrEqual(t, w.dials.Load(), int64(4), "one connection and three in its place")

	// One that came while the connection was broken waits for the next.
	raw.do("CLIENT", "KILL", "TYPE", "pubsub")
	c, _ := watches(t, l, "c")
	cycle(t, releaser, "c")
	woken(t, c, "c")
}

// While the server is down, or closes connections at once, there are pauses between attempts. A
// Watch then is an error.
func TestWatchRests(t *testing.T) {
	t.Parallel()
	srv, releaser, raw := newServer(t)
	pool := newPool(t, srv.Addr)
	dial := pool.Dial
	var dials atomic.Int64
	var down atomic.Bool
	refused := errors.New("away")
	pool.Dial = func() (redis.Conn, error) {
		dials.Add(1)
		if down.Load() {
			return nil, refused
		}
		return dial()
	}
	l := New(pool)
	wake, _ := watches(t, l, "k")
	down.Store(true)
	raw.do("CLIENT", "KILL", "TYPE", "pubsub")
	woken(t, wake, "by the break")
	before := dials.Load()
	_, err := l.Watch(background, "new")
	assert.ErrorIs(t, err, refused)
	time.Sleep(time.Second) // however long that takes, an attempt costs a rest of at least 25 ms
	assert.Less(t, dials.Load()-before, int64(25), "it tries without rests")
	down.Store(false)
	woken(t, wake, "by the new subscription")
	cycle(t, releaser, "k")
	woken(t, wake, "by a release")

	hangsUp, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer hangsUp.Close()
	var accepted atomic.Int64
	go func() {
		for {
			conn, err := hangsUp.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			conn.Close()
		}
	}()
	_, err = New(newPool(t, hangsUp.Addr().String())).Watch(background, "k")
	assert.ErrorContains(t, err, "connection lost")
	assert.EqualValues(t, 2, accepted.Load(), "a connection that breaks is given one other chance")
}

// A server that has stopped answering is detected when a reply is due.
func TestWatchHungServer(t *testing.T) {
	t.Parallel()
	srv, releaser, raw := newServer(t)
	l := New(newPool(t, srv.Addr))
	wake, _ := watches(t, l, "k")
	srv.Pause()
	ctx, cancel := context.WithTimeout(background, 100*time.Millisecond)
	defer cancel()
	_, err := l.Watch(ctx, "other")
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	woken(t, wake, "by the break, which is known after 3 s without a reply")
	_, err = l.Watch(background, "other")
	assert.ErrorContains(t, err, "no answer within 3s")
	srv.Continue()
	require.Eventually(t, func() bool { return subscribers(raw, "k") > 0 }, patience, 10*time.Millisecond)
	cycle(t, releaser, "k")
	woken(t, wake, "by a release")
	require.Eventually(t, func() bool { return subscribers(raw, "other") == 0 }, patience, 10*time.Millisecond)
}

// A quiet server answers the ping, whether or not its channel is allowed.
func TestWatchPing(t *testing.T) {
	t.Parallel()
	srv, _, raw := newServer(t)
	raw.do("ACL", "SETUSER", "u", "on", ">p", "+@all", "~*", "resetchannels")
	for _, user := range []string{"", "u"} {
		pool := newPool(t, srv.Addr)
		if user != "" {
			pool.Dial = withUser(pool.Dial, user, "p")
		}
		conn, err := New(pool).subscriber(background, "")
		require.NoError(t, err)
		for range 3 {
			require.NoError(t, conn.Ping())
			require.NoError(t, conn.Flush())
			e, err := conn.Receive()
			require.NoError(t, err)
			assert.NotEqual(t, pubsub.Message, e.Kind)
		}
		require.NoError(t, conn.Close())
	}
}

// A connection's read timeout applies to replies, not to messages.
func TestWatchOutlastsReadTimeout(t *testing.T) {
	t.Parallel()
	srv, releaser, _ := newServer(t)
	pool := newPool(t, srv.Addr, redis.DialReadTimeout(20*time.Millisecond))
	dial := pool.Dial
	var dials atomic.Int64
	pool.Dial = func() (redis.Conn, error) { dials.Add(1); return dial() }
	wake, _ := watches(t, New(pool), "k")
	time.Sleep(200 * time.Millisecond) // ten of them
	asleep(t, wake, "by a timeout")
	cycle(t, releaser, "k")
	woken(t, wake, "by a release")
	assert.EqualValues(t, 1, dials.Load())
}

func TestWatchUnsupported(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t, "--rename-command", "SUBSCRIBE", "", "--rename-command", "PUBLISH", "")
	l, other := New(newPool(t, srv.Addr)), New(newPool(t, srv.Addr))
	for range 2 {
		_, err := l.Watch(background, "k")
		assert.ErrorIs(t, err, errors.ErrUnsupported)
		assert.ErrorContains(t, err, "SUBSCRIBE")
	}
	// Lock polls then.
	held, err := locker.TryLock(background, other, "k", time.Minute)
	require.NoError(t, err)
	locked := make(chan error, 1)
	go func() {
		lease, err := locker.Lock(background, l, "k", time.Minute)
		if err == nil {
			err = lease.Unlock(background)
		}
		locked <- err
	}()
	require.NoError(t, held.Unlock(background))
	require.NoError(t, <-locked)
}

// Watching takes none of the pool's connections. Otherwise waiters could keep others from locking.
func TestWatchBesideSmallPool(t *testing.T) {
	t.Parallel()
	srv, other, raw := newServer(t)
	pool := newPool(t, srv.Addr)
	pool.MaxActive, pool.MaxIdle = 1, 1
	l := New(pool)
	for i := range 5 {
		key := fmt.Sprint("k", i)
		held, err := locker.TryLock(background, other, key, time.Minute)
		require.NoError(t, err)
		locked := make(chan error, 1)
		go func() {
			lease, err := locker.Lock(background, l, key, time.Minute)
			if err == nil {
				err = lease.Unlock(background)
			}
			locked <- err
		}()
		require.Eventually(t, func() bool { return subscribers(raw, key) == 1 }, patience, time.Millisecond)
		require.NoError(t, held.Unlock(background))
		require.NoError(t, <-locked)
	}
}

// If a dial hangs, Watch soon returns an error. It works again once the dial has returned.
func TestWatchHungDial(t *testing.T) {
	srv := testserver.Redis(t)
	pool, goOn := newPool(t, srv.Addr), make(chan struct{})
	dial := pool.Dial
	pool.Dial = func() (redis.Conn, error) { <-goOn; return dial() }
	l := New(pool)
	l.hub.SetLinger(50 * time.Millisecond)
	ctx, cancel := context.WithTimeout(background, 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := l.Watch(ctx, "k")
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Less(t, time.Since(start), ioTimeout-time.Second)
	_, err = l.Watch(background, "k")
	assert.ErrorContains(t, err, "no answer")
	close(goOn)
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithCancel(background)
		defer cancel()
		_, err := l.Watch(ctx, "k")
		return err == nil
	}, patience, time.Millisecond)
	noGoroutines(t)
}
