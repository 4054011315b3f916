package redisv9_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/lazyctx"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// cutting is a network that counts its connections, and that cuts the next reply to a request with
// what cut contains after its first bytes.
type cutting struct {
	dials atomic.Int32

	mu    sync.Mutex
	cut   []byte // nil: nothing
	after int
	wrote func(b []byte) // is called after each write; may be nil

	reached, resume chan struct{} // if not nil: it waits before the cut
}

type cuttingConn struct {
	net.Conn
	n     *cutting
	left  int // bytes
	isCut bool
	once  sync.Once
}

func (n *cutting) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	n.dials.Add(1)
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	return &cuttingConn{Conn: conn, n: n}, err
}

func (n *cutting) cutNext(request string, after int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut, n.after = []byte(request), after
}

func (c *cuttingConn) Write(b []byte) (int, error) {
	written, err := c.Conn.Write(b)
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	if c.n.cut != nil && bytes.Contains(b, c.n.cut) {
		c.isCut, c.left, c.n.cut = true, c.n.after, nil
	}
	if c.n.wrote != nil {
		c.n.wrote(b)
	}
	return written, err
}

func (c *cuttingConn) Read(b []byte) (int, error) {
	c.n.mu.Lock()
	isCut, left := c.isCut, c.left
	c.n.mu.Unlock()
	switch {
	case !isCut:
		return c.Conn.Read(b)
	case left > 0:
		n, err := c.Conn.Read(b[:min(len(b), left)])
		c.n.mu.Lock()
		defer c.n.mu.Unlock()
		c.left -= n
		return n, err
	}
	c.once.Do(func() {
		_, _ = c.Conn.Read(b) // the server has executed it all
		if c.n.reached != nil {
			close(c.n.reached)
			<-c.n.resume
		}
	})
	return 0, io.ErrUnexpectedEOF
}

// A caller that leaves the queue is gone at once, and nothing is sent for it.
func TestLeavingBeforeTheBatch(t *testing.T) {
	client := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
	for name, contexts := range map[string]bool{"defaults": false, "ContextTimeoutEnabled": true} {
		o := &redis.Options{Addr: client.Options().Addr, ContextTimeoutEnabled: contexts}
		l, h := newBatching(t, 1, o)
		free := h.jam(t, l, 1)
		ctx, cancel := context.WithCancel(t.Context())
		leaving := queues(t, ctx, l, acquireCall(l, "a", "t"), waitCall(l, "b", "t"))
		lazy := lazyctx.WithDeadline(ctx, time.Now().Add(time.Hour)) // ends with its parent as well
		defer lazy.Cancel()
		leaving = append(leaving, queues(t, lazy, l, acquireCall(l, "e", "t"))...)
		staying := queues(t, t.Context(), l, acquireCall(l, "c", name), acquireCall(l, "d", name))
		cancel()
		for _, done := range leaving {
			require.ErrorIs(t, result(t, done).err, context.Canceled)
		}
		// Wait releases what it may have taken, which queues as well.
		eventually(t, "they have left the queue", func() bool { return redisv9.Queued(l) <= 3 })
		free()
		for _, done := range staying {
			require.Equal(t, outcome{ok: true}, result(t, done))
		}
		assert.Zero(t, client.Exists(t.Context(), "locker:a", "locker:b", "locker:e").Val())
		require.NoError(t, client.FlushAll(t.Context()).Err())
		isIdle(t, l)
	}
}

// A caller that leaves when its batch has been made, but not written, was not sent either. It costs
// the others neither their answers nor the connection.
func TestLeavingAsTheBatchGoes(t *testing.T) {
	n := new(cutting)
	client := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
	l, h := newBatching(t, 1, &redis.Options{Addr: client.Options().Addr, Dialer: n.dial})
	ctx, cancel := context.WithCancel(t.Context())
	reached, resume := make(chan struct{}), make(chan struct{})
	h.before = func() {
		close(reached)
		<-resume
	}
	free := h.jam(t, l, 1)
	first := queues(t, ctx, l, acquireCall(l, "a", "t"))[0]
	staying := queues(t, t.Context(), l, acquireCall(l, "b", "t"))[0]
	last := queues(t, ctx, l, extendCall(l, "a", "t"))[0]
	dials := n.dials.Load()
	free()
	<-reached
	cancel()
	for _, leaving := range []<-chan outcome{first, last} {
		require.ErrorIs(t, result(t, leaving).err, context.Canceled)
	}
	close(resume)
	require.Equal(t, outcome{ok: true}, result(t, staying))
	assert.Zero(t, client.Exists(t.Context(), "locker:a").Val())
	assert.Equal(t, dials, n.dials.Load(), "connections")
}

// ending is a context that has ended before its channel is closed, as one with a deadline may.
type ending struct {
	context.Context
	hasEnded atomic.Bool
}

func (e *ending) Err() error {
	if e.hasEnded.Load() {
		return context.DeadlineExceeded
	}
	return e.Context.Err()
}

// A caller whose context ends as the batch goes does not fail the others.
func TestContextEndsAsTheBatchGoes(t *testing.T) {
	n, addr := new(cutting), testserver.Redis(t).Addr
	l, h := newBatching(t, 1, &redis.Options{Addr: addr, Dialer: n.dial, MaxRetries: -1})
	ctx := &ending{Context: t.Context()}
	free := h.jam(t, l, 1)
	first := queues(t, t.Context(), l, acquireCall(l, "a", "t"))[0]
	late := queues(t, ctx, l, acquireCall(l, "b", "t"))[0]
	last := queues(t, t.Context(), l, acquireCall(l, "c", "t"))[0]
	ctx.hasEnded.Store(true)
	dials := n.dials.Load()
	free()
	require.Equal(t, outcome{ok: true}, result(t, first))
	require.Equal(t, outcome{ok: true}, result(t, last))
	require.ErrorIs(t, result(t, late).err, context.DeadlineExceeded)
	assert.Equal(t, dials, n.dials.Load(), "connections")
	releases(t, l, "b", "t") // it may have been sent, and was
}

// A caller that leaves while its batch is under way is gone at once. A later Release of its token
// waits for the batch, as long as its context lasts, and finds what the batch has taken.
func TestLeavingTheBatchUnderWay(t *testing.T) {
	for name, contexts := range map[string]bool{"defaults": false, "ContextTimeoutEnabled": true} {
		t.Run(name, func(t *testing.T) {
			srv := testserver.Redis(t)
			n := new(cutting)
			o := &redis.Options{Addr: srv.Addr, Dialer: n.dial, ContextTimeoutEnabled: contexts}
			l, h := newBatching(t, 1, o)
			written := make(chan struct{}, 10)
			n.mu.Lock()
			n.wrote = func([]byte) { written <- struct{}{} }
			n.mu.Unlock()
			ctx, cancel := context.WithCancel(t.Context())
			free := h.jam(t, l, 1)
			leaving := queues(t, ctx, l, acquireCall(l, "a", "t"))[0]
			staying := queues(t, t.Context(), l, acquireCall(l, "b", "t"))[0]
			srv.Pause()
			defer srv.Continue()
			free()
			<-written
			cancel()
			require.ErrorIs(t, result(t, leaving).err, context.Canceled)

			h.seen()
			short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, err := l.Release(short, "a", "t")
			require.ErrorIs(t, err, context.DeadlineExceeded)
			assert.Zero(t, redisv9.Queued(l), "it waits for the token's own call")
			released := make(chan outcome, 1)
			go func() {
				ok, err := l.Release(t.Context(), "a", "t")
				released <- outcome{ok, err}
			}()
			srv.Continue()
			assert.Equal(t, outcome{ok: true}, result(t, released), "the batch had taken it")
			assert.Equal(t, outcome{ok: true}, result(t, staying))
		})
	}
}

// go-redis repeats a whole pipeline if it was not answered. If it would, the callers that are still
// there go alone instead. What was answered stays as it is.
func TestBatchIsNotRepeated(t *testing.T) {
	addr := testserver.Redis(t).Addr
	admin := newClient(t, &redis.Options{Addr: addr})
	for _, retries := range []int{3, -1} {
		for _, answered := range []int{0, 2, 4} {
			t.Run(fmt.Sprintf("MaxRetries %d, %d answered", retries, answered), func(t *testing.T) {
				require.NoError(t, admin.FlushAll(t.Context()).Err())
				n := new(cutting)
				l, h := newBatching(t, 1, &redis.Options{Addr: addr, Dialer: n.dial, MaxRetries: retries})
				for _, key := range []string{"extended", "released"} {
					acquires(t, l, key, "t", time.Minute)
				}
				h.seen()
				n.cutNext("extended", answered*len(":1\r\n"))
				free := h.jam(t, l, 1)
				calls := []call{
					extendCall(l, "extended", "t"), releaseCall(l, "none", "t"),
					extendCall(l, "extended", "t"), releaseCall(l, "released", "t"),
					acquireCall(l, "acquired", "t"), extendCall(l, "extended", "another"),
				}
				all := queues(t, t.Context(), l, calls...)
				free()
				want := []outcome{{ok: true}, {}, {ok: true}, {ok: true}, {ok: true}, {}}
				for i, done := range all {
					o := result(t, done)
					// An Extend that was sent twice may yet shorten the lock, and a Release of which one copy may
					// have done it reports true, whether it did or not.
					switch {
					case i < answered:
						assert.Equal(t, want[i], o, "call %d was answered", i)
					case retries < 0:
						assert.Error(t, o.err, "call %d", i)
					case i == 0 || i == 2:
						assert.ErrorContains(t, o.err, "the request was sent again", "call %d", i)
					case i == 1:
						assert.Equal(t, outcome{ok: true}, o, "call %d", i)
					default:
						assert.Equal(t, want[i], o, "call %d", i)
					}
				}
				alone, pipelines := h.seen()
				assert.Len(t, pipelines, 1)
				if retries < 0 {
					assert.Empty(t, alone)
				} else {
					want := len(calls) - answered + 1 // Acquire finds its own token, and extends
					assert.Len(t, alone, want, "%v", alone)
				}
				isIdle(t, l)
			})
		}
	}
}

// A caller that has left does not go alone when its batch was not answered.
func TestLeaverIsNotRepeated(t *testing.T) {
	addr := testserver.Redis(t).Addr
	n := &cutting{reached: make(chan struct{}), resume: make(chan struct{})}
	l, h := newBatching(t, 1, &redis.Options{Addr: addr, Dialer: n.dial, MaxRetries: 1})
	n.cutNext("locker:a", 0)
	ctx, cancel := context.WithCancel(t.Context())
	free := h.jam(t, l, 1)
	leaving := queues(t, ctx, l, acquireCall(l, "a", "t"))[0]
	staying := queues(t, t.Context(), l, acquireCall(l, "b", "t"))[0]
	free()
	<-n.reached
	cancel()
	require.ErrorIs(t, result(t, leaving).err, context.Canceled)
	close(n.resume)
	require.Equal(t, outcome{ok: true}, result(t, staying))
	alone, _ := h.seen()
	assert.Equal(t, []string{"set", "evalsha"}, alone, "the other's: it finds its token, and extends")
	releases(t, l, "a", "t") // the batch had taken it
}

// An error that is the same for all commands, and for which go-redis would repeat the pipeline, is
// each command's own.
func TestBatchOnReplica(t *testing.T) {
	host, port, err := net.SplitHostPort(testserver.Redis(t).Addr)
	require.NoError(t, err)
	for _, retries := range []int{1, -1} {
		replica := testserver.Redis(t, "--replicaof", host+" "+port)
		client := newClient(t, &redis.Options{Addr: replica.Addr, MaxRetries: retries})
		h := new(traffic)
		client.AddHook(h)
		l := redisv9.New(client, redisv9.WithBatching(1))
		free := h.jam(t, l, 1)
		all := queues(t, t.Context(), l, acquireCall(l, "a", "t"), acquireCall(l, "b", "t"),
			releaseCall(l, "c", "t"))
		free()
		for _, done := range all {
			o := result(t, done)
			assert.False(t, o.ok)
			assert.True(t, redis.HasErrorPrefix(o.err, "READONLY"), "%v", o.err)
		}
	}
}

// The error of an OnConnect is no reply, whatever it is.
func TestBatchOnConnect(t *testing.T) {
	var fails atomic.Bool
	client := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr, PoolSize: 1, MaxRetries: -1,
		OnConnect: func(context.Context, *redis.Conn) error {
			if fails.Load() {
				return redis.Nil
			}
			return nil
		}})
	h := new(traffic)
	client.AddHook(h)
	l := redisv9.New(client, redisv9.WithBatching(1))
	free := h.jam(t, l, 1)
	all := queues(t, t.Context(), l, acquireCall(l, "a", "t"), acquireCall(l, "b", "t"))
	fails.Store(true)
	free()
	for _, done := range all {
		o := result(t, done)
		assert.False(t, o.ok)
		assert.Error(t, o.err)
	}
}

// On a server that hangs, every caller leaves at its own deadline, and no slot is lost. Contexts like
// Unlock's have no timer of their own.
func TestBatchOnHungServer(t *testing.T) {
	for name, o := range map[string]*redis.Options{
		"defaults":              {},
		"ContextTimeoutEnabled": {ContextTimeoutEnabled: true},
		"no timeout":            {ReadTimeout: -1, WriteTimeout: -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := testserver.Redis(t)
			o.Addr = srv.Addr
			l := redisv9.New(newClient(t, o), redisv9.WithBatching(4))
			acquires(t, l, "before", "t", time.Minute)
			srv.Pause()
			var all sync.WaitGroup
			late := make([]time.Duration, 200) // after their deadlines
			for i := range late {
				all.Go(func() {
					deadline := time.Now().Add(time.Duration(100+2*i) * time.Millisecond)
					_, err := l.Acquire(bounded(t, i%2 == 0, deadline), fmt.Sprint(i), "t", time.Minute)
					assert.ErrorIs(t, err, context.DeadlineExceeded)
					late[i] = time.Since(deadline)
				})
			}
			all.Wait()
			srv.Continue()
			t.Logf("the last left %v after its deadline", slices.Max(late))
			assert.Less(t, slices.Max(late), 2*time.Second, "less than any timeout of the client")
			isIdle(t, l)
			acquires(t, l, "after", "t", time.Minute)
		})
	}
}

// bounded returns a context with a deadline: one of package context, or one like Unlock's.
func bounded(t *testing.T, likeUnlock bool, deadline time.Time) context.Context {
	t.Helper()
	if likeUnlock {
		ctx := lazyctx.WithoutCancel(t.Context(), deadline)
		t.Cleanup(ctx.Cancel)
		return ctx
	}
	ctx, cancel := context.WithDeadline(t.Context(), deadline)
	t.Cleanup(cancel)
	return ctx
}

// Callers without a timer leave when their deadlines pass, in whatever order they came, whether
// their calls queue or are under way.
func TestBatchAlarm(t *testing.T) {
	srv := testserver.Redis(t)
	// With this option the calls are made on their callers' goroutines, whatever their deadlines.
	l, h := newBatching(t, 1, &redis.Options{Addr: srv.Addr, ContextTimeoutEnabled: true})
	written := make(chan struct{})
	h.before = sync.OnceFunc(func() { close(written) })
	free := h.jam(t, l, 1)
	defer srv.Continue()
	begin := time.Now()
	var ends []time.Time
	var all []<-chan outcome
	add := func(seconds ...time.Duration) {
		now := time.Now() // the last has to queue before the first leaves
		for _, d := range seconds {
			ends = append(ends, now.Add(d*time.Second))
			ctx := bounded(t, true, ends[len(ends)-1])
			all = append(all, queues(t, ctx, l, acquireCall(l, fmt.Sprint(len(all)), "t"))...)
		}
	}
	add(60, 2, 1, 3) // in a batch
	srv.Pause()
	free()
	<-written
	add(4, 2, 1, 60) // in the queue
	for i, done := range all {
		if i == 0 || i == 7 {
			continue
		}
		require.ErrorIs(t, result(t, done).err, context.DeadlineExceeded)
		assert.False(t, time.Now().Before(ends[i]), "it leaves early")
	}
	assert.Less(t, time.Since(begin), 30*time.Second, "no other timeout has ended a call")
	assert.Equal(t, 1, redisv9.Queued(l))
	srv.Continue()
	for _, i := range []int{0, 7} {
		assert.Equal(t, outcome{ok: true}, result(t, all[i]))
	}
	isIdle(t, l)
}

// When a batch ends, the alarm still wakes the callers of the others.
func TestBatchAlarmOfTwo(t *testing.T) {
	o := &redis.Options{Addr: testserver.Redis(t).Addr, ContextTimeoutEnabled: true}
	l, h := newBatching(t, 2, o)
	isIdle(t, l)
	redisv9.AlwaysBatch(l)
	held := make(chan chan struct{})
	h.before = func() {
		goOn := make(chan struct{})
		held <- goOn
		<-goOn
	}
	begin := func(ctx context.Context, f call) (done chan outcome, goOn chan struct{}) {
		done = make(chan outcome, 1)
		go func() {
			ok, err := f(ctx)
			done <- outcome{ok, err}
		}()
		return done, <-held
	}
	first, goOn := begin(t.Context(), acquireCall(l, "a", "t"))
	second, goOnToo := begin(bounded(t, true, time.Now().Add(time.Second)), acquireCall(l, "b", "t"))
	close(goOn)
	require.Equal(t, outcome{ok: true}, result(t, first))
	require.ErrorIs(t, result(t, second).err, context.DeadlineExceeded)
	close(goOnToo)
	isIdle(t, l)
}

// A Locker in a bubble of package synctest leaves nothing behind for Lockers outside it.
func TestBatchInBubble(t *testing.T) {
	addr := testserver.Redis(t).Addr
	batch := func(t *testing.T) {
		client := redis.NewClient(&redis.Options{Addr: addr})
		defer func() { _ = client.Close() }()
		l := redisv9.New(client, redisv9.WithBatching(1))
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() {
				for range 5 {
					_, err := l.Acquire(context.Background(), fmt.Sprint(i), "t", time.Minute)
					assert.NoError(t, err)
				}
			})
		}
		all.Wait()
	}
	for range 3 {
		synctest.Test(t, batch)
		batch(t)
	}
}

// Callers that come and go while connections break never share a lock, and leave nothing behind.
func TestBatchStorm(t *testing.T) {
	addr := testserver.Redis(t).Addr
	admin := newClient(t, &redis.Options{Addr: addr})
	for _, slots := range []int{1, 4} {
		for _, retries := range []int{-1, 2} {
			t.Run(fmt.Sprintf("slots %d, MaxRetries %d", slots, retries), func(t *testing.T) {
				client := newClient(t, &redis.Options{Addr: addr, ContextTimeoutEnabled: slots == 1, MaxRetries: retries})
				l := redisv9.New(client, redisv9.WithBatching(slots))
				ctx, stop := context.WithTimeout(t.Context(), 2*time.Second)
				defer stop()
				var holders [8]atomic.Int32
				var all sync.WaitGroup
				var served atomic.Int32
				for range 64 {
					all.Go(func() {
						for ctx.Err() == nil {
							if storm(t, l, &holders) {
								served.Add(1)
							}
						}
					})
				}
				for ctx.Err() == nil {
					time.Sleep(100 * time.Millisecond)
					_ = admin.ClientKillByFilter(ctx, "type", "normal", "skipme", "yes").Err()
				}
				all.Wait()
				assert.Positive(t, served.Load())
				t.Logf("%d locks were held", served.Load())
				isIdle(t, l)
				eventually(t, "all locks are free", func() bool { return len(admin.Keys(t.Context(), "locker:storm/*").Val()) == 0 })
			})
		}
	}
}

// stormTTL bounds how long a lock is left behind if more than 256 have to be released at a time.
const stormTTL = 4 * time.Second

// storm takes one lock, by chance with a context that ends, and releases it. It reports whether it
// held the lock.
func storm(t *testing.T, l *redisv9.Locker, holders *[8]atomic.Int32) bool {
	ctx, cancel := context.WithTimeout(context.Background(), rand.N(100*time.Millisecond))
	defer cancel()
	n := rand.IntN(len(holders))
	take := locker.Lock
	if rand.IntN(2) == 0 {
		take = locker.TryLock
	}
	lease, err := take(ctx, l, fmt.Sprint("storm/", n), stormTTL)
	if err != nil {
		return false
	}
	assert.EqualValues(t, 1, holders[n].Add(1), "holders of one lock")
	time.Sleep(rand.N(time.Millisecond))
	_ = lease.Extend(ctx, stormTTL)
	holders[n].Add(-1)
	for lease.Unlock(context.Background()) != nil {
	}
	return true
}
