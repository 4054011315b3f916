package memcache

import (
	"context"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// wire intercepts a client's requests and replies. The client writes a request at once, so a
// write is a round trip.
type wire struct {
	// sending is called with the verb of a request before it goes to the server; it may block.
	sending atomic.Pointer[func(verb string)]
	// received is called with the verb of a request after its reply has come; its error replaces
	// the reply.
	received atomic.Pointer[func(verb string) error]

	mu   sync.Mutex
	sent []string
}

type wireConn struct {
	net.Conn
	wire *wire
	verb string // of the request that waits for its reply; a connection has one at a time
}

// newWire returns a client whose requests pass through a wire of their own.
func newWire(tb testing.TB, addrs ...string) (*wire, *gomemcache.Client) {
	w := new(wire)
	client := newClient(tb, addrs...)
	client.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &wireConn{Conn: conn, wire: w}, nil
	}
	return w, client
}

func (c *wireConn) Write(b []byte) (int, error) {
	c.verb, _, _ = strings.Cut(string(b), " ")
	if f := c.wire.sending.Load(); f != nil {
		(*f)(c.verb)
	}
	c.wire.mu.Lock()
	c.wire.sent = append(c.wire.sent, c.verb)
	c.wire.mu.Unlock()
	return c.Conn.Write(b)
}

func (c *wireConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if f := c.wire.received.Load(); f != nil && err == nil {
		if err := (*f)(c.verb); err != nil {
			return 0, err
		}
	}
	return n, err
}

func (w *wire) onSending(f func(verb string))        { w.sending.Store(&f) }
func (w *wire) onReceived(f func(verb string) error) { w.received.Store(&f) }

// requests returns the verbs of the requests since its last call.
func (w *wire) requests() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	sent := strings.Join(w.sent, " ")
	w.sent = nil
	return sent
}

// pauseBefore holds back the first request with that verb until resume is called. It closes paused
// when the request comes.
func (w *wire) pauseBefore(tb testing.TB, verb string) (paused <-chan struct{}, resume func()) {
	there, goOn := make(chan struct{}), make(chan struct{})
	var first, last sync.Once
	resume = func() { last.Do(func() { close(goOn) }) }
	tb.Cleanup(resume)
	w.onSending(func(v string) {
		if v == verb {
			first.Do(func() { close(there) })
			<-goOn
		}
	})
	return there, resume
}

func TestRoundTrips(t *testing.T) {
	t.Parallel()
	srv := testserver.Memcached(t)
	w, client := newWire(t, srv.Addr)
	l := New(client)
	ctx := context.Background()

	for _, step := range []struct {
		what string
		do   func() (bool, error)
		ok   bool
		sent string
	}{
		{"acquire a free lock", func() (bool, error) { return l.Acquire(ctx, "k", "a", time.Minute) }, true, "add"},
		{"be refused", func() (bool, error) { return l.Acquire(ctx, "k", "b", time.Minute) }, false, "add gets"},
		{"acquire again", func() (bool, error) { return l.Acquire(ctx, "k", "a", time.Minute) }, true, "add gets cas"},
		{"extend", func() (bool, error) { return l.Extend(ctx, "k", "a", time.Minute) }, true, "gets cas"},
		{"extend another's", func() (bool, error) { return l.Extend(ctx, "k", "b", time.Minute) }, false, "gets"},
		{"release another's", func() (bool, error) { return l.Release(ctx, "k", "b") }, false, "gets"},
		{"release", func() (bool, error) { return l.Release(ctx, "k", "a") }, true, "gets cas"},
		{"release again", func() (bool, error) { return l.Release(ctx, "k", "a") }, false, "gets"},
	} {
		ok, err := step.do()
		require.NoError(t, err, step.what)
		require.Equal(t, step.ok, ok, step.what)
		require.Equal(t, step.sent, w.requests(), step.what)
	}
}

// A release or extension that the network holds up until the lock has expired and is another's
// leaves the other's lock alone.
func TestPausedOnTheWire(t *testing.T) {
	t.Parallel()
	srv := testserver.Memcached(t)
	ctx := context.Background()
	for name, late := range map[string]func(l *Locker) (bool, error){
		"release": func(l *Locker) (bool, error) { return l.Release(ctx, "release", "a") },
		"extend":  func(l *Locker) (bool, error) { return l.Extend(ctx, "extend", "a", time.Hour) },
		"acquire": func(l *Locker) (bool, error) { return l.Acquire(ctx, "acquire", "a", time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, client := newWire(t, srv.Addr)
			client.Timeout = time.Minute // longer than the pause
			a, b := New(client), New(newClient(t, srv.Addr))
			ok, err := a.Acquire(ctx, name, "a", time.Millisecond)
			require.NoError(t, err)
			require.True(t, ok)

			paused, resume := w.pauseBefore(t, "cas")
			type result struct {
				ok  bool
				err error
			}
			done := make(chan result)
			go func() {
				ok, err := late(a)
				done <- result{ok, err}
			}()
			<-paused
			require.Eventually(t, func() bool {
				ok, err := b.Acquire(ctx, name, "b", time.Minute)
				return assert.NoError(t, err) && ok
			}, 30*time.Second, 20*time.Millisecond, "the lock does not expire")
			before, err := client.Get("locker:" + name)
			require.NoError(t, err)

			resume()
			r := <-done
			require.NoError(t, r.err)
			assert.False(t, r.ok)
			after, err := client.Get("locker:" + name)
			require.NoError(t, err)
			assert.Equal(t, before, after, "the other's lock was touched")
			ok, err = b.Release(ctx, name, "b")
			require.NoError(t, err)
			assert.True(t, ok, "the other has lost its lock")
		})
	}
}

// If the token itself extends the lock under each try of an operation, the operation gives up with
// an error. It cannot return false, since the token holds the lock.
func TestChangingAllTheTime(t *testing.T) {
	t.Parallel()
	srv := testserver.Memcached(t)
	w, client := newWire(t, srv.Addr)
	l, other := New(client), New(newClient(t, srv.Addr))
	ctx := context.Background()
	ok, err := l.Acquire(ctx, "k", "a", time.Minute)
	require.NoError(t, err)
	require.True(t, ok)
	changes := 0
	w.onSending(func(verb string) {
		if verb == "cas" && changes > 0 {
			changes--
			ok, err := other.Extend(ctx, "k", "a", time.Minute)
			assert.NoError(t, err)
			assert.True(t, ok)
		}
	})
	for name, op := range map[string]func() (bool, error){
		"acquire": func() (bool, error) { return l.Acquire(ctx, "k", "a", time.Minute) },
		"extend":  func() (bool, error) { return l.Extend(ctx, "k", "a", time.Minute) },
		"release": func() (bool, error) { return l.Release(ctx, "k", "a") },
	} {
		w.requests()
		changes = 100
		ok, err := op()
		assert.ErrorIs(t, err, errChanging, name)
		assert.False(t, ok, name)
		assert.Equal(t, 3, strings.Count(w.requests(), "cas"), name)
	}
	for _, op := range []func() (bool, error){
		func() (bool, error) { return l.Acquire(ctx, "k", "a", time.Minute) },
		func() (bool, error) { return l.Extend(ctx, "k", "a", time.Minute) },
		func() (bool, error) { return l.Release(ctx, "k", "a") },
	} {
		changes = 2
		ok, err := op()
		assert.NoError(t, err, "the third time works")
		assert.True(t, ok)
	}
}

// If the lock is free again when a refused Acquire reads it, Acquire tries again. If that happens
// each time, as it may with many contenders, the result is false and no error.
func TestGoneWhenLookedAt(t *testing.T) {
	t.Parallel()
	srv := testserver.Memcached(t)
	w, client := newWire(t, srv.Addr)
	l, other := New(client), New(newClient(t, srv.Addr))
	ctx := context.Background()
	for _, test := range []struct {
		times    int
		acquired bool
		sent     string
	}{
		{1, true, "add gets add"},
		{2, true, "add gets add gets add"},
		{3, false, "add gets add gets add gets"},
	} {
		left := test.times
		w.onSending(func(verb string) {
			switch {
			case verb == "add" && left > 0:
				ok, err := other.Acquire(ctx, "k", "b", time.Minute)
				assert.NoError(t, err)
				assert.True(t, ok)
			case verb == "gets" && left > 0:
				left--
				ok, err := other.Release(ctx, "k", "b")
				assert.NoError(t, err)
				assert.True(t, ok)
			}
		})
		w.requests()
		ok, err := l.Acquire(ctx, "k", "a", time.Minute)
		require.NoError(t, err)
		require.Equal(t, test.acquired, ok)
		require.Equal(t, test.sent, w.requests())
		if ok {
			ok, err = l.Release(ctx, "k", "a")
			require.NoError(t, err)
			require.True(t, ok)
		}
	}
}

// If the reply to a request that the server carried out is lost, the outcome is unknown, which is
// an error. The client does not repeat the request, but the caller may, with the same token.
func TestLostReply(t *testing.T) {
	t.Parallel()
	srv := testserver.Memcached(t)
	w, client := newWire(t, srv.Addr)
	l := New(client)
	ctx := context.Background()
	lost := &net.OpError{Op: "read", Err: net.ErrClosed}
	lose := func(verb string) {
		var once atomic.Bool
		w.onReceived(func(v string) error {
			if v == verb && once.CompareAndSwap(false, true) {
				return lost
			}
			return nil
		})
	}

	lose("add")
	ok, err := l.Acquire(ctx, "k", "a", time.Minute)
	require.ErrorIs(t, err, lost)
	require.False(t, ok)
	require.Equal(t, "add", w.requests())
	ok, err = l.Acquire(ctx, "k", "a", time.Minute)
	require.NoError(t, err)
	require.True(t, ok, "the same token again")
	w.requests()

	lose("cas")
	ok, err = l.Extend(ctx, "k", "a", time.Minute)
	require.ErrorIs(t, err, lost)
	require.False(t, ok)
	require.Equal(t, "gets cas", w.requests())
	ok, err = l.Extend(ctx, "k", "a", time.Minute)
	require.NoError(t, err)
	require.True(t, ok)
	w.requests()

	lose("cas")
	ok, err = l.Release(ctx, "k", "a")
	require.ErrorIs(t, err, lost)
	require.False(t, ok)
	require.Equal(t, "gets cas", w.requests())
	ok, err = l.Acquire(ctx, "k", "b", time.Minute)
	require.NoError(t, err)
	require.True(t, ok, "it was released")
}
