package redisv9_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// batchOf queues calls behind a jam, so that they travel together, and returns their outcomes.
func batchOf(tb testing.TB, l *redisv9.Locker, h *traffic, calls ...call) (outcomes []outcome) {
	tb.Helper()
	h.seen()
	free := h.jam(tb, l, 1)
	all := queues(tb, context.Background(), l, calls...)
	free()
	for _, done := range all {
		outcomes = append(outcomes, result(tb, done))
	}
	return outcomes
}

// releaseCalls acquires n locks and returns their releases.
func releaseCalls(tb testing.TB, l *redisv9.Locker, n int) (calls []call) {
	tb.Helper()
	for i := range n {
		acquires(tb, l, fmt.Sprint(i), "t", time.Minute)
		calls = append(calls, releaseCall(l, fmt.Sprint(i), "t"))
	}
	return calls
}

// allTrue is the outcome of n calls that all report true.
func allTrue(n int) []outcome { return slices.Repeat([]outcome{{ok: true}}, n) }

// Up to 32 releases are one command, and each has its own answer. Fewer than four are not worth it.
func TestMerged(t *testing.T) {
	admin := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
	l, h := newBatching(t, 1, &redis.Options{Addr: admin.Options().Addr})
	for n, want := range map[int][]string{
		3:  {"evalsha", "evalsha", "evalsha"},
		4:  {"evalsha"},
		70: {"evalsha", "evalsha", "evalsha"},
	} {
		assert.Equal(t, allTrue(n), batchOf(t, l, h, releaseCalls(t, l, n)...))
		alone, pipelines := h.seen()
		assert.Empty(t, alone)
		assert.Equal(t, [][]string{want}, pipelines, "%d releases", n)
	}

	acquires(t, l, "held", "holder", time.Minute)
	acquires(t, l, "waited for", "holder", time.Minute)
	waiter := redisv9.New(admin)
	taken := make(chan outcome, 1)
	go func() {
		ok, err := waitCall(waiter, "waited for", "waiter")(t.Context())
		taken <- outcome{ok, err}
	}()
	eventually(t, "it waits", func() bool { return admin.Exists(t.Context(), "!queue:locker:{locker:waited for}").Val() == 1 })
	require.NoError(t, admin.HSet(t.Context(), "locker:hash", "f", "v").Err())
	require.NoError(t, admin.Set(t.Context(), "locker:foreign", "1700000000:t", 0).Err())
	calls := append(releaseCalls(t, l, 2), releaseCall(l, "held", "t"), releaseCall(l, "free", "t"),
		releaseCall(l, "waited for", "holder"), releaseCall(l, "held", "holder"), releaseCall(l, "held", "holder"),
		acquireCall(l, "0", "t"), releaseCall(l, "hash", "t"), releaseCall(l, "foreign", "t"))
	got := batchOf(t, l, h, calls...)
	yes, no := outcome{ok: true}, outcome{}
	assert.Equal(t, []outcome{yes, yes, no, no, yes, yes, no, yes}, got[:8])
	assert.True(t, redis.HasErrorPrefix(got[8].err, "WRONGTYPE"), "%v", got[8].err)
	assert.ErrorContains(t, got[9].err, "redigo")
	assert.Equal(t, outcome{ok: true}, result(t, taken))
	alone, pipelines := h.seen()
	assert.Equal(t, []string{"evalsha", "set"}, pipelines[0])
	again := slices.Concat(append(pipelines[1:], alone)...)
	assert.Equal(t, []string{"evalsha", "evalsha"}, again, "the errors are the calls' own")
	isIdle(t, l)
}

// If the script as a whole fails, each release is made by a command of its own. They share requests
// like any others, so they do not exhaust the connections.
func TestMergedFails(t *testing.T) {
	client := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
	const n = 40
	network := new(cutting)
	o := &redis.Options{Addr: client.Options().Addr, Dialer: network.dial, MaxActiveConns: 2}
	l, h := newBatching(t, 1, o)
	for range 2 { // the first sends the text
		assert.Equal(t, allTrue(n), batchOf(t, l, h, releaseCalls(t, l, n)...))
		alone, pipelines := h.seen()
		assert.Empty(t, alone)
		assert.Len(t, slices.Concat(pipelines...), 2)
	}
	dials := network.dials.Load()
	calls := releaseCalls(t, l, n)
	require.NoError(t, client.ScriptFlush(t.Context()).Err())
	assert.Equal(t, append(allTrue(n), outcome{}), batchOf(t, l, h, append(calls, releaseCall(l, "none", "t"))...))
	alone, pipelines := h.seen()
	assert.Greater(t, len(alone)+len(slices.Concat(pipelines...)), n, "the server has forgotten the script")
	assert.Equal(t, dials, network.dials.Load(), "connections")
	assert.Equal(t, allTrue(n), batchOf(t, l, h, releaseCalls(t, l, n)...))
	alone, _ = h.seen()
	assert.Empty(t, alone, "it has the text again")
}

// A user may not run every command, or have every key. A script that was refused has done nothing,
// so it does not make a release of a lock that is not held report true.
func TestMergedNotPermitted(t *testing.T) {
	admin := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
	for user, rules := range map[string][]any{
		"no-mget": {"+@all", "-mget", "~*"},
		"no-key":  {"+@all", "~locker:0", "~locker:1", "~locker:none", "~!queue:*"},
	} {
		acl := append([]any{"acl", "setuser", user, "on", ">password"}, rules...)
		require.NoError(t, admin.Do(t.Context(), acl...).Err())
		client := newClient(t, &redis.Options{Addr: admin.Options().Addr, Username: user, Password: "password"})
		h := new(traffic)
		client.AddHook(h)
		l := redisv9.New(client, redisv9.WithBatching(1))
		calls := append(releaseCalls(t, l, 2), releaseCall(l, "none", "t"), releaseCall(l, "refused", "t"))
		got := batchOf(t, l, h, calls...)
		assert.Equal(t, append(allTrue(2), outcome{}), got[:3], user)
		assert.False(t, got[3].ok)
		assert.Equal(t, user == "no-key", redis.HasErrorPrefix(got[3].err, "NOPERM"), "%v", got[3].err)

		// One key that is not permitted does not stop the merging of the others.
		calls = append(releaseCalls(t, l, 2), releaseCall(l, "none", "t"), releaseCall(l, "none", "t"))
		assert.Equal(t, append(allTrue(2), outcome{}, outcome{}), batchOf(t, l, h, calls...))
		_, pipelines := h.seen()
		assert.Equal(t, user == "no-key", len(pipelines[0]) == 1, "%s: %v", user, pipelines)
	}
}

// Locks in different slots of a server that is part of a Cluster cannot be released by one script.
func TestMergedInSlots(t *testing.T) {
	srv := testserver.Redis(t, "--cluster-enabled", "yes")
	client := newClient(t, &redis.Options{Addr: srv.Addr})
	require.NoError(t, client.Do(t.Context(), "cluster", "addslotsrange", 0, 16383).Err())
	eventually(t, "it has all slots", func() bool { return client.Get(t.Context(), "k").Err() == redis.Nil })
	h := new(traffic)
	client.AddHook(h)
	l := redisv9.New(client, redisv9.WithBatching(1))
	const n = 5
	for first := range 2 {
		var calls []call
		for i := range n {
			key := fmt.Sprintf("{%d}", i) // without a tag, a lock and its queue would be in different slots
			acquires(t, l, key, "t", time.Minute)
			calls = append(calls, releaseCall(l, key, "t"))
		}
		assert.Equal(t, allTrue(n), batchOf(t, l, h, calls...))
		_, pipelines := h.seen()
		require.NotEmpty(t, pipelines) // more the first time: the server lacks the script of a single release
		assert.Len(t, pipelines[0], []int{1, n}[first], "after an error they are not merged for a while")
	}
}

// On a read-only replica no release is done, and each caller is told why.
func TestMergedOnReplica(t *testing.T) {
	admin := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
	host, port, err := net.SplitHostPort(admin.Options().Addr)
	require.NoError(t, err)
	const n = 5
	for i := range n {
		acquires(t, redisv9.New(admin), fmt.Sprint(i), "t", time.Minute)
	}
	client := newClient(t, &redis.Options{Addr: testserver.Redis(t, "--replicaof", host+" "+port).Addr})
	eventually(t, "it has the data", func() bool { return client.Exists(t.Context(), "locker:0").Val() == 1 })
	h := new(traffic)
	client.AddHook(h)
	l := redisv9.New(client, redisv9.WithBatching(1))
	var held, free []call
	for i := range n {
		held, free = append(held, releaseCall(l, fmt.Sprint(i), "t")), append(free, releaseCall(l, "free", "t"))
	}
	for _, calls := range [][]call{held, free} {
		for _, o := range batchOf(t, l, h, calls...) {
			assert.False(t, o.ok)
			assert.True(t, redis.HasErrorPrefix(o.err, "READONLY"), "%v", o.err)
		}
	}
	assert.EqualValues(t, n, admin.Exists(t.Context(), "locker:0", "locker:1", "locker:2", "locker:3", "locker:4").Val())
}

// If the reply is lost, go-redis would repeat the pipeline. Each release is then repeated alone, or
// not at all.
func TestMergedReplyIsLost(t *testing.T) {
	addr := testserver.Redis(t).Addr
	admin := newClient(t, &redis.Options{Addr: addr})
	const n = 5
	for _, retries := range []int{-1, 2} {
		for _, after := range []int{0, len("*5\r\n:1\r\n")} {
			require.NoError(t, admin.FlushAll(t.Context()).Err())
			network := new(cutting)
			l, h := newBatching(t, 1, &redis.Options{Addr: addr, Dialer: network.dial, MaxRetries: retries})
			calls := releaseCalls(t, l, n)
			network.cutNext("locker:3", after)
			for _, o := range batchOf(t, l, h, calls...) {
				if retries < 0 {
					assert.Error(t, o.err)
					assert.False(t, o.ok)
				} else {
					assert.Equal(t, outcome{ok: true}, o)
				}
			}
			assert.Empty(t, admin.Keys(t.Context(), "locker:*").Val())
			alone, pipelines := h.seen()
			assert.Equal(t, [][]string{{"evalsha"}}, pipelines)
			if retries < 0 {
				assert.Empty(t, alone)
			} else {
				assert.Len(t, alone, n)
			}
			isIdle(t, l)
		}
	}
}

// A release whose caller leaves before it is written is not made, whether others remain or not.
func TestLeavingTheMerged(t *testing.T) {
	network := new(cutting)
	l, h := newBatching(t, 1, &redis.Options{Addr: testserver.Redis(t).Addr, Dialer: network.dial})
	for _, staying := range []int{0, 1, 4} {
		const n = 6
		calls := releaseCalls(t, l, n)
		var written bytes.Buffer
		network.mu.Lock()
		network.wrote = func(b []byte) { written.Write(b) }
		network.mu.Unlock()
		ctx, cancel := context.WithCancel(t.Context())
		reached, resume := make(chan struct{}), make(chan struct{})
		h.mu.Lock()
		h.before = func() {
			close(reached)
			<-resume
		}
		h.mu.Unlock()
		free := h.jam(t, l, 1)
		stay := queues(t, t.Context(), l, calls[:staying]...)
		leave := queues(t, ctx, l, calls[staying:]...)
		free()
		<-reached
		cancel()
		for _, done := range leave {
			require.ErrorIs(t, result(t, done).err, context.Canceled)
		}
		h.mu.Lock()
		h.before = nil
		h.mu.Unlock()
		close(resume)
		for _, done := range stay {
			require.Equal(t, outcome{ok: true}, result(t, done))
		}
		isIdle(t, l)
		network.mu.Lock()
		assert.Equal(t, staying, bytes.Count(written.Bytes(), []byte("\r\nlocker:")), "locks")
		assert.Equal(t, min(staying, 1), bytes.Count(written.Bytes(), []byte("eval")), "scripts")
		network.wrote = nil
		network.mu.Unlock()
		for i := range n {
			released, err := l.Release(t.Context(), fmt.Sprint(i), "t")
			require.NoError(t, err)
			assert.Equal(t, i >= staying, released, "lock %d", i)
		}
	}
}

// A hook may refuse the command, whether it has looked at its arguments or not.
func TestMergedWithHooks(t *testing.T) {
	client := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
	refused := errors.New("refused")
	var refuses, looks bool
	client.AddHook(pipelineHook(func(next redis.ProcessPipelineHook, ctx context.Context, cmds []redis.Cmder) error {
		if looks && cmds[0].Name() == "evalsha" {
			assert.NotEmpty(t, cmds[0].Args())
		}
		if !refuses {
			return next(ctx, cmds)
		}
		for _, cmd := range cmds {
			cmd.SetErr(refused)
		}
		return refused
	}))
	h := new(traffic)
	client.AddHook(h)
	l := redisv9.New(client, redisv9.WithBatching(1))
	const n = 5
	for _, looks = range []bool{true, false} {
		calls := releaseCalls(t, l, n)
		refuses = true
		for _, o := range batchOf(t, l, h, calls...) {
			assert.ErrorIs(t, o.err, refused)
		}
		refuses = false
		assert.Equal(t, allTrue(n), batchOf(t, l, h, calls...))
	}
}

// Goroutines of a hook may look at commands while the callers send them again.
func TestMergedWithOnlookers(t *testing.T) {
	addr := testserver.Redis(t).Addr
	for _, n := range []int{3, 4} {
		network := new(cutting)
		client := newClient(t, &redis.Options{Addr: addr, Dialer: network.dial, MaxRetries: 1})
		h := new(traffic)
		client.AddHook(h)
		var onlookers sync.WaitGroup
		over := make(chan struct{})
		client.AddHook(pipelineHook(func(next redis.ProcessPipelineHook, ctx context.Context, cmds []redis.Cmder) error {
			onlookers.Go(func() {
				for {
					for _, cmd := range cmds {
						_ = cmd.Args()
					}
					select {
					case <-over:
						return
					case <-time.After(time.Microsecond):
					}
				}
			})
			return next(ctx, cmds)
		}))
		l := redisv9.New(client, redisv9.WithBatching(1))
		calls := releaseCalls(t, l, n)
		network.cutNext("locker:1", 0)
		assert.Equal(t, allTrue(n), batchOf(t, l, h, calls...))
		close(over)
		onlookers.Wait()
		isIdle(t, l)
	}
}

// pipelineHook is a hook for pipelines.
type pipelineHook func(next redis.ProcessPipelineHook, ctx context.Context, cmds []redis.Cmder) error

func (pipelineHook) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (pipelineHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (h pipelineHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { return h(next, ctx, cmds) }
}

// If the reply is lost, an error of the next connection is none of the script: it may have released
// the locks.
func TestMergedReplyIsLostAndThenRefused(t *testing.T) {
	addr := testserver.Redis(t).Addr
	admin := newClient(t, &redis.Options{Addr: addr})
	network := new(cutting)
	require.NoError(t, admin.Set(t.Context(), "!string", "", 0).Err())
	var refuse atomic.Bool
	l, h := newBatching(t, 1, &redis.Options{Addr: addr, Dialer: network.dial, MaxRetries: 1,
		OnConnect: func(ctx context.Context, conn *redis.Conn) error {
			if refuse.CompareAndSwap(true, false) {
				return conn.LPush(ctx, "!string", "").Err()
			}
			return nil
		}})
	calls := releaseCalls(t, l, 5)
	network.cutNext("locker:3", 0)
	network.reached, network.resume = make(chan struct{}), make(chan struct{})
	go func() {
		<-network.reached
		refuse.Store(true)
		close(network.resume)
	}()
	for _, o := range batchOf(t, l, h, calls...) {
		assert.True(t, o.ok || o.err != nil, "it was released: %v", o)
	}
	assert.False(t, refuse.Load())
	assert.Empty(t, admin.Keys(t.Context(), "locker:*").Val())
}
