package conformance

import (
	"context"
	"errors"
	"net"
	"runtime/pprof"
	"sync"
	"testing"
	"time"
)

// proxy is a TCP proxy between a Locker and its backend that breaks the link on command, and always in the
// same way: a fault acts on the nth request from when it is armed, or on all of the link from when it is set.
//
// It knows no protocol. A request is a burst of bytes from the client: it begins with the first byte on a
// fresh connection, or after bytes of the server, and the bytes that follow it before the server answers
// belong to it, in however many writes they come. So a pipeline is one request. Requests are counted over
// all connections; a fault is armed while they are idle, after a warm-up.
//
// What the proxy holds is delivered to the server when it is let go, also when the client has hung up
// meanwhile, as a network delivers late.
type proxy struct {
	addr   string // where it listens
	target string // the backend

	mu        sync.Mutex
	listener  net.Listener // nil while connections are refused
	links     map[*link]struct{}
	fault     *fault // the one that is armed
	requests  int
	accepted  int
	slamming  bool          // connections are accepted and cut at once
	gate      chan struct{} // closed: bytes flow; open: the server seems to hang
	latency   time.Duration // before each forwarding
	closed    chan struct{}
	goroutine sync.WaitGroup
}

// newProxy starts a proxy before target that ends with tb.
func newProxy(tb testing.TB, target string) *proxy {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("the fault proxy cannot listen: %v", err)
	}
	p := &proxy{
		addr:   ln.Addr().String(),
		target: target,
		links:  make(map[*link]struct{}),
		gate:   make(chan struct{}),
		closed: make(chan struct{}),
	}
	close(p.gate)
	p.serve(ln)
	tb.Cleanup(p.close)
	return p
}

// count returns how many requests the proxy has seen, and how many connections.
func (p *proxy) count() (requests, connections int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests, p.accepted
}

// arm lets the nth request from now on, counted from 1, run into the fault. It replaces what was armed
// before.
func (p *proxy) arm(kind faultKind, n int) *fault {
	f := &fault{kind: kind, left: n,
		hit: make(chan struct{}), goOn: make(chan struct{}), answered: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = f
	return f
}

// disarm takes back what is armed and has not acted yet.
func (p *proxy) disarm() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = nil
}

// delay makes every request, and every reply, take d longer.
func (p *proxy) delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latency = d
}

// hang lets the server seem to hang: connections are accepted, bytes are taken, nothing is answered and
// nothing is done, until heal.
func (p *proxy) hang() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.gate:
		p.gate = make(chan struct{})
	default:
	}
}

// cut ends all connections. New ones are served.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.cut()
	}
}

// slam ends all connections, accepts new ones, and ends them at once.
func (p *proxy) slam() {
	p.mu.Lock()
	p.slamming = true
	p.mu.Unlock()
	p.cut()
}

// refuse ends all connections and refuses new ones.
func (p *proxy) refuse() {
	p.mu.Lock()
	if p.listener != nil {
		p.listener.Close()
		p.listener = nil
	}
	p.mu.Unlock()
	p.cut()
}

// heal ends hang, slam, refuse and delay and takes back what is armed. What a hang held is delivered.
func (p *proxy) heal(tb testing.TB) {
	tb.Helper()
	p.disarm()
	p.delay(0)
	p.mu.Lock()
	p.slamming = false
	select {
	case <-p.gate:
	default:
		close(p.gate)
	}
	refusing := p.listener == nil
	p.mu.Unlock()
	if !refusing {
		return
	}
	// Somebody may have the port for a moment.
	var ln net.Listener
	var err error
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if ln, err = net.Listen("tcp", p.addr); err == nil {
			p.serve(ln)
			return
		}
	}
	tb.Fatalf("the fault proxy cannot listen again: %v", err)
}

// close ends the proxy and returns when nothing of it is left.
func (p *proxy) close() {
	p.mu.Lock()
	select {
	case <-p.closed:
	default:
		close(p.closed)
	}
	p.mu.Unlock()
	p.refuse()
	p.goroutine.Wait()
}

// serve accepts connections from ln until it is closed.
func (p *proxy) serve(ln net.Listener) {
	p.mu.Lock()
	p.listener = ln
	p.mu.Unlock()
	p.goroutine.Go(func() {
		// The proxy's goroutines are none of the check's, in which somebody may look for leaks.
		pprof.SetGoroutineLabels(context.Background())
		for {
			conn, err := ln.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // such as too many open files
				time.Sleep(10 * time.Millisecond)
				continue
			}
			p.goroutine.Go(func() { p.connect(ln, conn.(*net.TCPConn)) })
		}
	})
}

// connect links a client with the server, until one of them ends the connection.
func (p *proxy) connect(ln net.Listener, client *net.TCPConn) {
	defer client.Close()
	server, err := net.DialTimeout("tcp", p.target, 10*time.Second)
	if err != nil {
		return // the client sees a connection that ends, which is what its backend does
	}
	defer server.Close()
	l := &link{p: p, client: client, server: server.(*net.TCPConn), ended: make(chan struct{})}

	p.mu.Lock()
	p.accepted++
	if p.slamming || p.listener != ln { // refused meanwhile
		p.mu.Unlock()
		return
	}
	p.links[l] = struct{}{}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.links, l)
		p.mu.Unlock()
	}()

	var both sync.WaitGroup
	both.Go(l.fromClient)
	both.Go(l.fromServer)
	both.Wait()
}

// flow returns when bytes may be forwarded, and false when the proxy is closed meanwhile.
func (p *proxy) flow() bool {
	for {
		p.mu.Lock()
		gate, latency := p.gate, p.latency
		p.mu.Unlock()
		select {
		case <-gate:
		case <-p.closed:
			return false
		}
		if latency == 0 {
			return true
		}
		timer := time.NewTimer(latency)
		defer timer.Stop()
		select {
		case <-timer.C:
			return true
		case <-p.closed:
			return false
		}
	}
}
