package redigo

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker/internal/testserver"
	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The tests share pools, a wire to watch and disturb, and a connection past the package.

// patience bounds waiting for something on a busy machine.
const patience = 30 * time.Second

// newPool returns a pool like the one in redigo's documentation.
func newPool(tb testing.TB, addr string, options ...redis.DialOption) *redis.Pool {
	dial := func() (redis.Conn, error) { return redis.Dial("tcp", addr, options...) }
	pool := &redis.Pool{MaxIdle: 64, Dial: dial}
	tb.Cleanup(func() { _ = pool.Close() })
	return pool
}

// newServer starts a server, and returns a Locker on it and a connection to inspect it.
func newServer(tb testing.TB, args ...string) (*testserver.Server, *Locker, rawConn) {
	srv := testserver.Redis(tb, args...)
	return srv, New(newPool(tb, srv.Addr)), newRaw(tb, srv.Addr)
}

// rawConn is a connection past the package under test.
type rawConn struct {
	tb   testing.TB
	conn redis.Conn
}

func newRaw(tb testing.TB, addr string) rawConn {
	conn, err := redis.Dial("tcp", addr)
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = conn.Close() })
	return rawConn{tb, conn}
}

func (r rawConn) do(name string, args ...any) any {
	r.tb.Helper()
	reply, err := r.conn.Do(name, args...)
	require.NoError(r.tb, err, name)
	return reply
}

func (r rawConn) string(name string, args ...any) string {
	r.tb.Helper()
	s, err := redis.String(r.do(name, args...), nil)
	require.NoError(r.tb, err, name)
	return s
}

// value returns the value of the key.
func (r rawConn) value(key string) value {
	r.tb.Helper()
	v, err := decode([]byte(r.string("GET", key)))
	require.NoError(r.tb, err)
	return v
}

// now returns the server's time in µs.
func (r rawConn) now() int64 {
	r.tb.Helper()
	parts, err := redis.Int64s(r.do("TIME"), nil)
	require.NoError(r.tb, err)
	return parts[0]*1e6 + parts[1]
}

// remains returns the remaining time of the lock at the key.
func (r rawConn) remains(key string) time.Duration {
	r.tb.Helper()
	return time.Duration(r.value(key).expiry*1000-r.now()) * time.Microsecond
}

// plant writes a lock that expires in d.
func (r rawConn) plant(key, token string, d time.Duration) value {
	r.tb.Helper()
	v := value{r.now()/1000 + d.Milliseconds(), token}
	r.do("SET", key, v.encode())
	return v
}

// isOK and isRefused are for the results of an operation.
func isOK(tb testing.TB) func(bool, error) {
	return func(ok bool, err error) {
		tb.Helper()
		require.NoError(tb, err)
		require.True(tb, ok)
	}
}

func isRefused(tb testing.TB) func(bool, error) {
	return func(ok bool, err error) {
		tb.Helper()
		require.NoError(tb, err)
		require.False(tb, ok)
	}
}

// operations returns all operations on a lock by name.
func operations(l *Locker, key, token string) map[string]func(context.Context) (bool, error) {
	return map[string]func(context.Context) (bool, error){
		"acquire": func(ctx context.Context) (bool, error) { return l.Acquire(ctx, key, token, time.Minute) },
		"extend":  func(ctx context.Context) (bool, error) { return l.Extend(ctx, key, token, time.Minute) },
		"release": func(ctx context.Context) (bool, error) { return l.Release(ctx, key, token) },
		"fence": func(ctx context.Context) (bool, error) {
			_, ok, err := l.Fence(ctx, key, token)
			return ok, err
		},
	}
}

// wire intercepts the requests and replies of a pool. Redigo writes what it has in one
// piece, so a write is a round trip, called by the names of its commands: "WATCH GET TIME".
type wire struct {
	// sending is called before a request goes to the server; it may block.
	sending atomic.Pointer[func(request string)]
	// received is called when the reply has come; its error replaces the reply.
	received atomic.Pointer[func(request string) error]
	refuse   atomic.Pointer[error] // what writing fails with
	dials    atomic.Int64

	mu   sync.Mutex
	sent []string
}

type wireConn struct {
	net.Conn
	wire    *wire
	request string // the one that waits for its reply: a connection has one at a time
}

// newWire returns a pool whose requests pass through a wire of their own.
func newWire(tb testing.TB, addr string) (*wire, *redis.Pool) {
	w := new(wire)
	return w, newPool(tb, addr, redis.DialNetDial(func(network, addr string) (net.Conn, error) {
		w.dials.Add(1)
		conn, err := net.Dial(network, addr)
		if err != nil {
			return nil, err
		}
		return &wireConn{Conn: conn, wire: w}, nil
	}))
}

func (c *wireConn) Write(b []byte) (int, error) {
	c.request = names(b)
	if f := c.wire.sending.Load(); f != nil {
		(*f)(c.request)
	}
	if err := c.wire.refuse.Load(); err != nil {
		return 0, *err
	}
	c.wire.mu.Lock()
	defer c.wire.mu.Unlock()
	n, err := c.Conn.Write(b)
	if err == nil { // redigo also writes to connections that it has closed
		c.wire.sent = append(c.wire.sent, c.request)
	}
	return n, err
}

func (c *wireConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if f := c.wire.received.Load(); f != nil && err == nil {
		err := (*f)(c.request)
		if other, ok := err.(replaced); ok {
			return copy(b, other), nil
		}
		if err != nil {
			return 0, err
		}
	}
	return n, err
}

// replaced is an error of received that replaces the reply by other bytes.
type replaced []byte

func (replaced) Error() string { return "replaced" }

func (w *wire) onSending(f func(request string))        { w.sending.Store(&f) }
func (w *wire) onReceived(f func(request string) error) { w.received.Store(&f) }

// quiet removes the functions that onSending and onReceived have set.
func (w *wire) quiet() {
	w.sending.Store(nil)
	w.received.Store(nil)
}

// requests returns the requests since its last call.
func (w *wire) requests() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	sent := w.sent
	w.sent = nil
	return sent
}

// pauseBefore holds back the first request with that command until resume is called. It closes
// paused when the request comes. Other requests pass.
func (w *wire) pauseBefore(tb testing.TB, name string) (paused <-chan struct{}, resume func()) {
	there, goOn := make(chan struct{}), make(chan struct{})
	var last sync.Once
	var taken atomic.Bool
	resume = func() { last.Do(func() { close(goOn) }) }
	tb.Cleanup(resume)
	w.onSending(func(request string) {
		if has(request, name) && taken.CompareAndSwap(false, true) {
			close(there)
			<-goOn
		}
	})
	return there, resume
}

func has(request, name string) bool {
	for _, n := range strings.Fields(request) {
		if n == name {
			return true
		}
	}
	return false
}

// names returns the names of the commands in b.
func names(b []byte) string {
	var found []string
	for r := bufio.NewReader(bytes.NewReader(b)); ; {
		n, err := number(r, '*')
		if err != nil {
			return strings.Join(found, " ")
		}
		for i := range n {
			size, err := number(r, '$')
			if err != nil {
				return strings.Join(append(found, "?"), " ")
			}
			arg := make([]byte, size+2)
			_, _ = io.ReadFull(r, arg)
			if i == 0 {
				found = append(found, string(arg[:size]))
			}
		}
	}
}

func number(r *bufio.Reader, kind byte) (int, error) {
	line, err := r.ReadString('\n')
	if err != nil || line[0] != kind {
		return 0, io.EOF
	}
	return strconv.Atoi(strings.TrimSpace(line[1:]))
}

// goroutines returns the stacks of goroutines that run this package's code, except for tests. Tests
// that use it are not parallel.
func goroutines() string {
	var left []string
	all := make([]byte, 1<<20)
	for g := range strings.SplitSeq(string(all[:runtime.Stack(all, true)]), "\n\n") {
		if (strings.Contains(g, "locker/redigo.") || strings.Contains(g, "internal/pubsub.")) && !strings.Contains(g, "testing.tRunner") {
			left = append(left, g)
		}
	}
	return strings.Join(left, "\n\n")
}

func noGoroutines(tb testing.TB) {
	tb.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end) && goroutines() != ""; {
		time.Sleep(10 * time.Millisecond)
	}
	assert.Empty(tb, goroutines(), "goroutines are left")
}
