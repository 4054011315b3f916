package redisv9_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// traffic is a hook that records how commands about keys travel. It can jam a Locker: commands for
// jams take its slots and end, without having been sent, when the jam does.
type traffic struct {
	mu        sync.Mutex
	alone     []string   // the names of commands
	pipelines [][]string // of each pipeline
	before    func()     // a pipeline is sent
	jammed    chan struct{}
}

const jams = "jam"

var errJam = errors.New("jammed")

func (h *traffic) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *traffic) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		switch cmd.Name() {
		case "set", "eval", "evalsha": // newer versions of go-redis show their own commands as well
			if cmd.Args()[1] == "locker:"+jams {
				<-h.jammed
				cmd.SetErr(errJam)
				return errJam
			}
			h.mu.Lock()
			h.alone = append(h.alone, cmd.Name())
			h.mu.Unlock()
		}
		return next(ctx, cmd)
	}
}

func (h *traffic) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() == "client" {
			return next(ctx, cmds)
		}
		var names []string
		for _, cmd := range cmds {
			names = append(names, cmd.Name())
		}
		h.mu.Lock()
		h.pipelines = append(h.pipelines, names)
		before := h.before
		h.mu.Unlock()
		if before != nil {
			before()
		}
		return next(ctx, cmds)
	}
}

// seen returns what has travelled since the last call of seen.
func (h *traffic) seen() (alone []string, pipelines [][]string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	alone, pipelines, h.alone, h.pipelines = h.alone, h.pipelines, nil, nil
	return alone, pipelines
}

// jam takes all slots of l and returns a function that frees them.
func (h *traffic) jam(tb testing.TB, l *redisv9.Locker, slots int) (free func()) {
	tb.Helper()
	isIdle(tb, l)
	h.jammed = make(chan struct{})
	var all sync.WaitGroup
	for range slots {
		all.Go(func() {
			_, err := l.Acquire(context.Background(), jams, "t", time.Minute)
			assert.ErrorIs(tb, err, errJam)
		})
	}
	eventually(tb, "all slots are taken", func() bool { return redisv9.Busy(l) == slots })
	return func() {
		close(h.jammed)
		all.Wait()
	}
}

// isIdle waits until no slot is taken: that takes a moment after the last call has returned.
func isIdle(tb testing.TB, l *redisv9.Locker) {
	tb.Helper()
	eventually(tb, "all slots are free", func() bool {
		return redisv9.Busy(l) == 0 && redisv9.Queued(l) == 0 && redisv9.Running(l) == 0
	})
}

// outcome is what a call returned.
type outcome struct {
	ok  bool
	err error
}

// call is one of a batch.
type call func(ctx context.Context) (bool, error)

// queues makes calls that have to queue, in this order.
func queues(tb testing.TB, ctx context.Context, l *redisv9.Locker, calls ...call) []<-chan outcome {
	tb.Helper()
	before := redisv9.Queued(l)
	var all []<-chan outcome
	for i, f := range calls {
		done := make(chan outcome, 1)
		go func() {
			ok, err := f(ctx)
			done <- outcome{ok, err}
		}()
		all = append(all, done)
		eventually(tb, "it queues", func() bool { return redisv9.Queued(l) == before+i+1 })
	}
	return all
}

// result waits for an outcome.
func result(tb testing.TB, done <-chan outcome) outcome {
	tb.Helper()
	select {
	case o := <-done:
		return o
	case <-time.After(30 * time.Second):
		tb.Fatal("no outcome within 30 seconds")
		return outcome{}
	}
}

// newBatching returns a Locker with connections that are open, on a server that knows the scripts.
func newBatching(tb testing.TB, slots int, o *redis.Options) (*redisv9.Locker, *traffic) {
	tb.Helper()
	client := newClient(tb, o)
	h := new(traffic)
	client.AddHook(h)
	l := redisv9.New(client, redisv9.WithBatching(slots))
	ctx := context.Background()
	for range 2 { // alone, and in a pipeline
		free := h.jam(tb, l, slots)
		all := queues(tb, ctx, l, extendCall(l, "none", "t"), releaseCall(l, "none", "t"), fenceCall(l, "none", "t"))
		free()
		for _, done := range all {
			require.Equal(tb, outcome{}, result(tb, done))
		}
	}
	h.seen()
	return l, h
}

func acquireCall(l *redisv9.Locker, key, token string) call {
	return func(ctx context.Context) (bool, error) { return l.Acquire(ctx, key, token, time.Minute) }
}

func extendCall(l *redisv9.Locker, key, token string) call {
	return func(ctx context.Context) (bool, error) { return l.Extend(ctx, key, token, time.Minute) }
}

func releaseCall(l *redisv9.Locker, key, token string) call {
	return func(ctx context.Context) (bool, error) { return l.Release(ctx, key, token) }
}

func fenceCall(l *redisv9.Locker, key, token string) call {
	return func(ctx context.Context) (bool, error) {
		n, ok, err := l.Fence(ctx, key, token)
		if ok != (n > 0) {
			err = fmt.Errorf("%d, %t", n, ok)
		}
		return ok, err
	}
}

func waitCall(l *redisv9.Locker, key, token string) call {
	return func(ctx context.Context) (bool, error) {
		deadline, err := l.Wait(ctx, key, token, time.Minute)
		return time.Until(deadline) > 0, err
	}
}

// Calls of every kind travel in one request, and each has its own answer.
func TestBatch(t *testing.T) {
	addr := testserver.Redis(t).Addr
	admin := newClient(t, &redis.Options{Addr: addr})
	ctx := t.Context()
	for _, slots := range []int{1, 4} {
		require.NoError(t, admin.FlushAll(ctx).Err())
		l, h := newBatching(t, slots, &redis.Options{Addr: addr})
		for _, key := range []string{"held", "extended", "released", "fenced"} {
			acquires(t, l, key, "holder", time.Minute)
		}
		require.NoError(t, admin.HSet(ctx, "locker:foreign", "f", "v").Err())
		h.seen()
		all := []struct {
			do   call
			want bool
		}{
			{acquireCall(l, "free", "t"), true},
			{acquireCall(l, "held", "t"), false},
			{extendCall(l, "extended", "holder"), true},
			{extendCall(l, "extended", "t"), false},
			{releaseCall(l, "released", "holder"), true},
			{releaseCall(l, "held", "t"), false},
			{fenceCall(l, "fenced", "holder"), true},
			{fenceCall(l, "fenced", "t"), false},
			{waitCall(l, "another", "t"), true},
		}
		var calls []call
		for _, c := range all {
			calls = append(calls, c.do)
		}
		calls = append(calls, acquireCall(l, "foreign", "t"), extendCall(l, "foreign", "t"))
		before := reads(t, admin)
		free := h.jam(t, l, slots)
		outcomes := queues(t, ctx, l, calls...)
		free()
		for i, c := range all {
			assert.Equal(t, outcome{ok: c.want}, result(t, outcomes[i]), "call %d", i)
		}
		for _, done := range outcomes[len(all):] {
			o := result(t, done)
			assert.False(t, o.ok)
			assert.True(t, redis.HasErrorPrefix(o.err, "WRONGTYPE"), "%v", o.err)
		}
		assert.EqualValues(t, 1, reads(t, admin)-before-1, "requests")
		alone, pipelines := h.seen()
		assert.Empty(t, alone)
		require.Len(t, pipelines, 1)
		assert.Len(t, pipelines[0], len(calls))
		isIdle(t, l)
	}
}

// A call goes alone, on its caller's goroutine and context, while a slot is free, and if no other
// queues with it.
func TestBatchOfOne(t *testing.T) {
	type ctxKey struct{}
	const slots = 3
	l, h := newBatching(t, slots, &redis.Options{Addr: testserver.Redis(t).Addr})
	free := h.jam(t, l, slots-1)
	ctx := context.WithValue(t.Context(), ctxKey{}, "the caller's")
	for range 3 {
		acquires(t, l, "k", "t", time.Minute)
		releases(t, l, "k", "t")
	}
	free()
	free = h.jam(t, l, slots)
	one := queues(t, ctx, l, acquireCall(l, "k", "t"))
	free()
	require.Equal(t, outcome{ok: true}, result(t, one[0]))
	alone, pipelines := h.seen()
	assert.Empty(t, pipelines)
	assert.Equal(t, []string{"set", "evalsha", "set", "evalsha", "set", "evalsha", "set"}, alone)
	isIdle(t, l)
}

// No more than 128 calls are in one pipeline.
func TestBatchIsBounded(t *testing.T) {
	l, h := newBatching(t, 1, &redis.Options{Addr: testserver.Redis(t).Addr})
	free := h.jam(t, l, 1)
	var calls []call
	for i := range 300 {
		calls = append(calls, acquireCall(l, fmt.Sprint(i), "t"))
	}
	outcomes := queues(t, t.Context(), l, calls...)
	free()
	for _, done := range outcomes {
		require.Equal(t, outcome{ok: true}, result(t, done))
	}
	_, pipelines := h.seen()
	var sizes []int
	for _, names := range pipelines {
		sizes = append(sizes, len(names))
	}
	assert.Equal(t, []int{128, 128, 44}, sizes)
}

// A server may forget its scripts at any time, and each command is told so by itself.
func TestBatchWithoutScripts(t *testing.T) {
	client := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
	l, h := newBatching(t, 1, &redis.Options{Addr: client.Options().Addr})
	for _, key := range []string{"a", "b", "c"} {
		acquires(t, l, key, "t", time.Minute)
	}
	require.NoError(t, client.ScriptFlush(t.Context()).Err())
	free := h.jam(t, l, 1)
	outcomes := queues(t, t.Context(), l, extendCall(l, "a", "t"), acquireCall(l, "d", "t"), releaseCall(l, "b", "t"),
		fenceCall(l, "c", "t"), extendCall(l, "a", "another"))
	free()
	for i, want := range []bool{true, true, true, true, false} {
		assert.Equal(t, outcome{ok: want}, result(t, outcomes[i]), "call %d", i)
	}
}

// On kinds of clients for more than one server, and on those that are not go-redis's own, each call
// is a request of its own, as it is by default.
func TestBatchingIsForOneServer(t *testing.T) {
	addr := testserver.Redis(t).Addr
	client := newClient(t, &redis.Options{Addr: addr})
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}})
	t.Cleanup(func() { _ = cluster.Close() })
	option := redisv9.WithBatching(4)
	assert.True(t, redisv9.Batches(redisv9.New(client, option)))
	assert.False(t, redisv9.Batches(redisv9.New(client)))
	assert.False(t, redisv9.Batches(redisv9.New(client, option, redisv9.WithBatching(0))))
	assert.False(t, redisv9.Batches(redisv9.New(client, redisv9.WithBatching(-1))))
	for name, c := range map[string]redis.UniversalClient{
		"Ring": newRing(t, map[string]string{"a": addr}), "Cluster": cluster,
		"wrapper": struct{ redis.UniversalClient }{client}, "nil": nil, "nil Client": (*redis.Client)(nil),
	} {
		assert.False(t, redisv9.Batches(redisv9.New(c, option)), name)
	}
}
