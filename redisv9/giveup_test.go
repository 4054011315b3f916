package redisv9_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/redislock/redistest"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/internal/undo"
	"github.com/golockers/locker/redisv9"
	"github.com/golockers/locker/semaphore"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A Wait that ends without the lock leaves nothing behind that releases another's lock, or that
// takes the lock without a holder.

// Lock goes on with the same token when Wait is not supported. A place in the queue that was given
// up later would release the lock under its holder.
func TestLockWithoutSubscribing(t *testing.T) {
	ctx := t.Context()
	user := limited(t, newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr}))
	user.ContextTimeoutEnabled = true
	key, _, _ := names(t)
	var inside, served atomic.Int64
	var all sync.WaitGroup
	end := time.Now().Add(2 * time.Second)
	for range 6 {
		own := *user // which the client changes
		l := newLocker(t, &own)
		all.Go(func() {
			for first := true; first || time.Now().Before(end); first = false {
				lease, err := locker.Lock(ctx, l, key, time.Minute)
				if !assert.NoError(t, err) {
					return
				}
				assert.EqualValues(t, 1, inside.Add(1), "holders")
				served.Add(1)
				time.Sleep(200 * time.Microsecond)
				inside.Add(-1)
				assert.NoError(t, lease.Unlock(ctx))
			}
		})
	}
	all.Wait()
	t.Logf("%d locks", served.Load())
}

// isUndoing reports whether anything is being undone for l.
func isUndoing(l locker.Locker) bool {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return undo.Wait(ctx, l) != nil
}

// Nothing is cleaned up on a backend that is down.
func TestNothingToGiveUp(t *testing.T) {
	l := newLocker(t, &redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1}) // on which no server listens
	before := runtime.NumGoroutine()
	for range 1000 {
		_, err := l.Wait(t.Context(), "k", "t", time.Minute)
		require.Error(t, err)
	}
	require.Less(t, runtime.NumGoroutine(), before+100)
}

// Nothing is cleaned up after a server's reply that it may not write: then it has not written at all.
// Otherwise those who try again and again would use up the room for those who have to clean up.
func TestNothingToGiveUpWhenRefused(t *testing.T) {
	for setting, want := range map[string]string{"min-replicas-to-write": "NOREPLICAS", "maxmemory": "OOM"} {
		admin := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
		// New versions of go-redis repeat a request after NOREPLICAS.
		l := newLocker(t, &redis.Options{Addr: admin.Options().Addr, MaxRetries: -1})
		refused := func(key string) {
			eventually(t, "what came before is undone", func() bool { return !isUndoing(l) })
			require.NoError(t, admin.ConfigSet(t.Context(), setting, "1").Err())
			_, err := l.Wait(t.Context(), key, "t", time.Minute)
			require.True(t, redis.HasErrorPrefix(err, want), "%v", err)
			assert.False(t, isUndoing(l), want)
			require.NoError(t, admin.ConfigSet(t.Context(), setting, "0").Err())
		}
		refused("free")

		acquires(t, l, "k", "holder", time.Minute)
		turn := redistest.Joins(t, admin, l, t.Context(), "k", "waiter", time.Minute)
		releases(t, l, "k", "holder")
		redistest.IsServed(t, turn, "it is the first")
		refused("k") // by the queue's script: the Locker has just met a queue
	}
}

// Package locker does not clean up after an attempt that certainly did nothing, but after one that
// may have been executed.
func TestNoCleanup(t *testing.T) {
	t.Parallel()
	for name, attempt := range map[string]func(l *redisv9.Locker) error{
		"acquire": func(l *redisv9.Locker) error { _, err := l.Acquire(t.Context(), "k", "t", time.Minute); return err },
		"wait":    func(l *redisv9.Locker) error { _, err := l.Wait(t.Context(), "k", "t", time.Minute); return err },
		"permit": func(l *redisv9.Locker) error {
			_, err := semaphore.NewLocker(l, 2).Acquire(t.Context(), "s", "t", time.Minute)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			srv := testserver.Redis(t)
			client := newClient(t, &redis.Options{Addr: srv.Addr, MaxRetries: -1, ReadTimeout: 100 * time.Millisecond})
			l := redisv9.New(client)
			attempted := func(isNeedless bool, why string) {
				t.Helper()
				err := attempt(l)
				require.Error(t, err, why)
				assert.Equal(t, isNeedless, undo.IsNeedless(err), "%s: %v", why, err)
			}
			require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", "1").Err())
			attempted(true, "no memory")
			require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", "0").Err())
			srv.Pause()
			attempted(false, "no answer, over a connection that is there")
			srv.Continue()
			srv.Stop()
			attempted(true, "no server")
		})
	}
}

// breakable is a network that can be down: connections break, and there are no new ones.
type breakable struct {
	mu    sync.Mutex
	down  bool
	conns []net.Conn
}

func (n *breakable) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down {
		return nil, errors.New("no route to host")
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err == nil {
		n.conns = append(n.conns, conn)
	}
	return conn, err
}

func (n *breakable) set(down bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = down
	for _, conn := range n.conns {
		conn.Close()
	}
	n.conns = nil
}

// Waiters that could not leave the queue, because the server was out of reach for longer than they
// tried, are passed over when their process is back, even while others of that process wait in the
// queue.
func TestWaitersOfALostNetwork(t *testing.T) {
	t.Parallel()
	t.Run("single server", func(t *testing.T) {
		t.Parallel()
		admin := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
		n := new(breakable)
		client := newClient(t, &redis.Options{Addr: admin.Options().Addr, Dialer: n.dial, MaxRetries: -1})
		testLostNetwork(t, admin, redisv9.New(admin), redisv9.New(client), n)
	})
	t.Run("Cluster", func(t *testing.T) {
		t.Parallel()
		nodes := testserver.RedisCluster(t, 2)
		admin := newCluster(t, nodes)
		n := new(breakable)
		client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: nodes, Dialer: n.dial, ContextTimeoutEnabled: true})
		t.Cleanup(func() { _ = client.Close() })
		testLostNetwork(t, admin, redisv9.New(admin), redisv9.New(client), n)
	})
}

func testLostNetwork(t *testing.T, admin redis.UniversalClient, a, b *redisv9.Locker, n *breakable) {
	ctx := t.Context()
	key, t1, t2 := names(t)
	acquires(t, a, key, t1, time.Minute)
	waiting, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			_, err := locker.Lock(waiting, b, key, time.Hour)
			assert.Error(t, err)
		})
	}
	eventually(t, "all wait", func() bool { return queueLength(admin, key) == 1 && redisv9.Waiting(b) == 5 })
	n.set(true)
	cancel()
	all.Wait()
	require.EqualValues(t, 1, queueLength(admin, key), "it could not leave")
	n.set(false)
	eventually(t, "it can be reached", func() bool { _, err := b.Extend(ctx, key, t2, time.Minute); return err == nil })
	done := make(chan redistest.Turn, 1) // not joins: the others leave the queue meanwhile
	go func() {
		deadline, err := b.Wait(ctx, key, t2, time.Minute)
		done <- redistest.Turn{Deadline: deadline, Err: err}
	}()
	released, err := a.Release(ctx, key, t1)
	require.NoError(t, err)
	require.True(t, released)
	isServed(t, done, "those before it have gone")
}

// holding is a network that holds back the second request for a place in the queue, and delivers it
// when the test asks for it, even if the client has closed the connection since.
type holding struct {
	mu   sync.Mutex
	asks int
	late chan func()
	deaf atomic.Bool // what arrives is lost
}

type holdingConn struct {
	net.Conn
	n    *holding
	held []byte
}

func (n *holding) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &holdingConn{Conn: conn, n: n}, nil
}

func (c *holdingConn) Write(b []byte) (int, error) {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	if !bytes.Contains(b, []byte("evalsha")) || !bytes.Contains(b, []byte("!wait:")) {
		return c.Conn.Write(b)
	}
	if c.n.asks++; c.n.asks != 2 {
		return c.Conn.Write(b)
	}
	c.held = bytes.Clone(b)
	c.n.late <- func() {
		_ = c.SetDeadline(time.Time{})
		_, _ = c.Conn.Write(c.held)
		_, _ = c.Conn.Read(make([]byte, 1)) // it was done
		c.Conn.Close()
	}
	return len(b), nil
}

func (c *holdingConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if err != nil || !c.n.deaf.Load() {
			return n, err
		}
	}
}

func (c *holdingConn) Close() error {
	if c.held == nil {
		return c.Conn.Close()
	}
	return c.SetDeadline(time.Unix(1, 0)) // readers get an error; what was written is still on its way
}

// teachLook makes the server know the script of a look. The lock of key is held.
func teachLook(tb testing.TB, admin redis.UniversalClient, l *redisv9.Locker, key string) {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	done := joins(tb, admin, l, ctx, key, "teacher", time.Minute)
	cancel()
	require.ErrorIs(tb, (<-done).Err, locker.ErrHeld)
	eventually(tb, "it has left", func() bool { return queueLength(admin, key) == 0 })
}

// heldLock is a lock that token t1 holds on a, of a server that knows the script for a look.
type heldLock struct {
	addr        string
	admin       *redis.Client
	a           *redisv9.Locker
	key, t1, t2 string
}

func newHeldLock(t *testing.T) heldLock {
	t.Helper()
	h := heldLock{addr: testserver.Redis(t).Addr}
	h.admin = newClient(t, &redis.Options{Addr: h.addr})
	h.key, h.t1, h.t2 = names(t)
	h.a = newLocker(t, &redis.Options{Addr: h.addr})
	acquires(t, h.a, h.key, h.t1, time.Minute)
	teachLook(t, h.admin, h.a, h.key)
	return h
}

// waitsInVain waits for h's lock until the second look of its waiter t2 is held back, and returns the
// waiter's Locker, its network, and what delivers that look.
func waitsInVain(t *testing.T, h heldLock, ttl time.Duration) (*redisv9.Locker, *holding, func()) {
	t.Helper()
	for patience := 2 * time.Second; patience < time.Minute; patience *= 2 {
		n := &holding{late: make(chan func(), 1)}
		l := newLocker(t, &redis.Options{Addr: h.addr, ContextTimeoutEnabled: true, Dialer: n.dial})
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, err := l.Wait(ctx, h.key, h.t2, ttl)
		cancel()
		select {
		case deliver := <-n.late:
			require.ErrorIs(t, err, locker.ErrHeld)
			return l, n, deliver
		default:
		}
		t.Logf("not two looks within %v: %v", patience, err)
		eventually(t, "it no longer tries to leave", func() bool { return !isUndoing(l) })
	}
	t.Fatal("it does not look twice")
	return nil, nil, nil
}

// A look that arrives after its waiter has gone puts the waiter in the queue again. The lock must
// not be left without a holder.
func TestLookThatArrivesLate(t *testing.T) {
	h := newHeldLock(t)
	ctx, admin, a, key, t1 := t.Context(), h.admin, h.a, h.key, h.t1
	_, _, deliver := waitsInVain(t, h, time.Minute)
	eventually(t, "it has left the queue", func() bool { return queueLength(admin, key) == 0 })
	deliver()
	releases(t, a, key, t1)
	eventually(t, "the lock is free", func() bool {
		ok, err := a.Acquire(ctx, key, t1, time.Minute)
		return ok && err == nil
	})
}

// As TestLookThatArrivesLate, but when it is no longer undone, and the message that the lock is offered
// to it is lost.
func TestLostOfferToOneWhoHasGone(t *testing.T) {
	t.Parallel()
	h := newHeldLock(t)
	ctx, admin, a, key, t1 := t.Context(), h.admin, h.a, h.key, h.t1
	acquires(t, a, "other", "holder", time.Minute)
	b, n, deliver := waitsInVain(t, h, time.Hour)
	joins(t, admin, b, ctx, "other", "stays", time.Minute) // so the channel stays as well
	eventually(t, "it no longer tries to leave", func() bool { return !isUndoing(b) })
	require.Zero(t, queueLength(admin, key))
	n.deaf.Store(true)
	deliver()
	eventually(t, "it has arrived", func() bool { return queueLength(admin, key) == 1 })
	releases(t, a, key, t1)
	require.True(t, strings.HasPrefix(admin.Get(ctx, "locker:"+key).Val(), "offer:"))
	eventually(t, "it did not take the lock in time", func() bool {
		ok, err := a.Acquire(ctx, key, t1, time.Minute)
		return ok && err == nil
	})
}

// A look that was repeated, and arrives after its waiter was served and has released the lock, puts
// the waiter in the queue again. The lock must not be left without a holder.
func TestRepeatedLookThatArrivesLate(t *testing.T) {
	t.Parallel()
	h := newHeldLock(t)
	ctx, addr, admin, a, key, t1, t2 := t.Context(), h.addr, h.admin, h.a, h.key, h.t1, h.t2
	n := &holding{late: make(chan func(), 1)}
	b := newLocker(t, &redis.Options{Addr: addr, ContextTimeoutEnabled: true, Dialer: n.dial, ReadTimeout: time.Second})
	done := joins(t, admin, b, ctx, key, t2, time.Minute)
	deliver := <-n.late
	eventually(t, "it looks again", func() bool { n.mu.Lock(); defer n.mu.Unlock(); return n.asks > 2 })
	releases(t, a, key, t1)
	isServed(t, done, "it is in the queue")
	releases(t, b, key, t2)
	acquires(t, a, key, t1, time.Minute)
	deliver()
	eventually(t, "it has arrived", func() bool { return queueLength(admin, key) == 1 })
	releases(t, a, key, t1)
	eventually(t, "what was granted to it is released", func() bool {
		ok, err := a.Acquire(ctx, key, t1, time.Minute)
		return ok && err == nil
	})
}
