package memcache

import (
	"context"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// operations returns the three operations by name.
func operations(l *Locker, key, token string) map[string]func(context.Context) (bool, error) {
	return map[string]func(context.Context) (bool, error){
		"acquire": func(ctx context.Context) (bool, error) { return l.Acquire(ctx, key, token, time.Minute) },
		"extend":  func(ctx context.Context) (bool, error) { return l.Extend(ctx, key, token, time.Minute) },
		"release": func(ctx context.Context) (bool, error) { return l.Release(ctx, key, token) },
	}
}

func TestDoneBefore(t *testing.T) {
	t.Parallel()
	w, client := newWire(t, testserver.Memcached(t).Addr)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for name, op := range operations(New(client), "k", "t") {
		ok, err := op(ctx)
		assert.ErrorIs(t, err, context.Canceled, name)
		assert.EqualError(t, err, "context canceled", name)
		assert.False(t, ok, name)
	}
	assert.Empty(t, w.requests())
}

// When ctx ends between two steps, the next one is not made.
func TestDoneBetween(t *testing.T) {
	t.Parallel()
	srv := testserver.Memcached(t)
	w, client := newWire(t, srv.Addr)
	l := New(client)
	ok, err := l.Acquire(context.Background(), "k", "t", time.Minute)
	require.NoError(t, err)
	require.True(t, ok)
	for name, sent := range map[string]string{"acquire": "add", "extend": "gets", "release": "gets"} {
		for _, near := range []bool{false, true} {
			ctx, cancel := context.WithCancel(context.Background())
			if near {
				// A deadline nearer than the client's timeout, which is 5 s: with a goroutine.
				ctx, cancel = context.WithTimeout(ctx, 4*time.Second)
			}
			w.requests()
			w.onReceived(func(string) error { cancel(); return nil })
			ok, err := operations(l, "k", "t")[name](ctx)
			assert.ErrorIs(t, err, context.Canceled, name)
			assert.False(t, ok, name)
			require.NoError(t, l.calls.Wait(context.Background(), "t"))
			assert.Equal(t, sent, w.requests(), name)
			w.onReceived(func(string) error { return nil })
		}
	}
	ok, err = l.Release(context.Background(), "k", "t")
	require.NoError(t, err)
	require.True(t, ok)
}

// A caller of a server that hangs returns when its ctx ends, if that is before the client's
// timeout, and otherwise at the timeout. A goroutine that was left behind ends at the timeout.
func TestHungServer(t *testing.T) {
	srv := testserver.Memcached(t)
	client := newClient(t, srv.Addr)
	client.Timeout = 3 * time.Second
	l := New(client)
	ok, err := l.Acquire(context.Background(), "k", "t", time.Minute)
	require.NoError(t, err)
	require.True(t, ok)
	srv.Pause()
	for name := range operations(l, "k", "t") {
		// A token for which no call is under way.
		op := operations(l, "k", "t "+name)[name]
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		start := time.Now()
		ok, err := op(ctx)
		took := time.Since(start)
		cancel()
		assert.ErrorIs(t, err, context.DeadlineExceeded, name)
		assert.False(t, ok, name)
		assert.Less(t, took, 2*time.Second, "%s waited for the client", name)
		assert.NotEmpty(t, left(), "%s: no call was left behind, so this test shows nothing", name)
	}
	var all sync.WaitGroup
	for name, op := range operations(l, "k", "u") {
		all.Go(func() {
			ok, err := op(context.Background())
			assert.Error(t, err, name)
			assert.ErrorContains(t, err, "timeout", name)
			assert.False(t, ok, name)
		})
	}
	all.Wait()
	assert.Eventually(t, func() bool { return left() == "" }, 30*time.Second, 20*time.Millisecond,
		"goroutines are left")
	srv.Continue()
	require.Eventually(t, func() bool {
		ok, err := l.Release(context.Background(), "k", "t")
		return assert.NoError(t, err) && ok
	}, 30*time.Second, 20*time.Millisecond)
}

// left returns the goroutines that run a call of a Locker. Tests that use it are not parallel.
func left() string {
	var left []string
	all := make([]byte, 1<<20)
	for g := range strings.SplitSeq(string(all[:runtime.Stack(all, true)]), "\n\n") {
		if strings.Contains(g, "locker/internal/inflight.") {
			left = append(left, g)
		}
	}
	return strings.Join(left, "\n\n")
}

// A Release waits behind an Acquire that its caller has left, so that it finds the lock that the
// Acquire takes.
func TestReleaseBehindAcquire(t *testing.T) {
	t.Parallel()
	srv := testserver.Memcached(t)
	w, client := newWire(t, srv.Addr)
	client.Timeout = time.Minute
	l, other := New(client), New(newClient(t, srv.Addr))

	paused, resume := w.pauseBefore(t, "add")
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	ok, err := l.Acquire(ctx, "k", "t", time.Minute)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.False(t, ok)
	<-paused

	for name, op := range operations(l, "k", "t") {
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		ok, err := op(ctx)
		cancel()
		assert.ErrorIs(t, err, context.DeadlineExceeded, name)
		assert.False(t, ok, name)
	}
	ok, err = other.Acquire(context.Background(), "other", "t", time.Minute)
	require.NoError(t, err)
	require.True(t, ok)
	require.Empty(t, w.requests(), "something overtook the Acquire")

	released := make(chan error, 1)
	go func() {
		ok, err := l.Release(context.Background(), "k", "t")
		if err == nil && !ok {
			err = assert.AnError
		}
		released <- err
	}()
	resume()
	require.NoError(t, <-released, "the Release did not find what the Acquire left")
	require.Equal(t, "add gets cas", w.requests())
	ok, err = other.Acquire(context.Background(), "k", "u", time.Minute)
	require.NoError(t, err)
	require.True(t, ok)
}

// A Dial function that ends its goroutine must not look like an answer. (Inline it is the caller's own
// goroutine that ends.)
func TestGoexitIsAnError(t *testing.T) {
	t.Parallel()
	client := gomemcache.New("127.0.0.1:1")
	client.Timeout = time.Minute
	client.DialContext = func(context.Context, string, string) (net.Conn, error) {
		runtime.Goexit()
		return nil, nil
	}
	for name, op := range operations(New(client), "k", "t") {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		ok, err := op(ctx)
		cancel()
		assert.ErrorContains(t, err, "runtime.Goexit", name)
		assert.False(t, ok, name)
	}
}

func TestNilClient(t *testing.T) {
	t.Parallel()
	for name, op := range operations(New(nil), "k", "t") {
		ok, err := op(context.Background())
		assert.EqualError(t, err, "memcache: nil client", name)
		assert.False(t, ok)
	}
}
