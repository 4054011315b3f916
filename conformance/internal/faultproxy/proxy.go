// Package faultproxy is a TCP proxy that injects faults: it drops, holds back, delays and corrupts
// requests and replies, and cuts, hangs and refuses connections.
package faultproxy

import (
	"context"
	"errors"
	"maps"
	"net"
	"runtime/pprof"
	"slices"
	"sync"
	"testing"
	"time"
)

// Proxy is a TCP proxy between a Locker and its backend that breaks the link on command,
// deterministically: a fault affects the nth request after it is armed, or the whole link from when
// it is set.
//
// It knows no protocol but HTTP/2. A request is a burst of bytes from the client: it begins with the
// first byte on a new connection, or after bytes from the server, and includes all bytes until the
// server answers. So a pipeline is one request. A client of HTTP/2 without TLS, such as one of gRPC,
// begins with a preface; then a request is what it sends on one stream until the server answers
// there, see streams. Requests are counted in the order in which they begin, over all connections
// and all their streams: if two callers share a connection, request 2 is the second of either.
// Faults are armed while D is idle, after a warm-up.
//
// A fault on a request or a reply affects that request alone if it holds the request back; with
// HTTP/2 the other streams of the connection go on. A fault that holds back a reply holds back all
// that the server sends on that connection, and one that ends the connection ends all its streams.
//
// A request that was held back is delivered to the server when it is released, even if the client
// has hung up or reset the stream meanwhile, as a network may deliver late. The server learns of
// that after it has answered.
type Proxy struct {
	Addr   string // where it listens
	target string // the backend

	mu        sync.Mutex
	listener  net.Listener // nil while connections are refused
	links     map[*Link]struct{}
	fault     *Fault // the one that is armed
	requests  int
	accepted  int
	slamming  bool          // connections are accepted and cut immediately
	gate      chan struct{} // closed: bytes flow; open: the server seems to hang
	replies   chan struct{} // closed: the server's bytes flow; open: they are held
	dials     chan struct{} // closed: new connections are served; open: they are accepted and nothing flows
	latency   time.Duration // before each forwarding
	closed    chan struct{}
	goroutine sync.WaitGroup
}

// New starts a proxy in front of target that ends with tb.
func New(tb testing.TB, target string) *Proxy {
	tb.Helper()
	addr, release, err := reserve()
	if err != nil {
		tb.Fatalf("the fault proxy cannot reserve a port: %v", err)
	}
	tb.Cleanup(release)
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		tb.Fatalf("the fault proxy cannot listen: %v", err)
	}
	p := &Proxy{
		Addr:    ln.Addr().String(),
		target:  target,
		links:   make(map[*Link]struct{}),
		gate:    make(chan struct{}),
		replies: make(chan struct{}),
		dials:   make(chan struct{}),
		closed:  make(chan struct{}),
	}
	close(p.gate)
	close(p.replies)
	close(p.dials)
	p.serve(ln)
	tb.Cleanup(p.close)
	return p
}

// Count returns how many requests the proxy has seen, and how many connections.
func (p *Proxy) Count() (requests, connections int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests, p.accepted
}

// Arm makes the nth request from now on, counted from 1, run into a fault. It replaces the fault
// that was armed before.
func (p *Proxy) Arm(kind Kind, n int) *Fault {
	f := newFault(kind, n)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = f
	return f
}

// ArmFor is Arm for the first request that contains one of the tokens.
func (p *Proxy) ArmFor(kind Kind, tokens []string) *Fault {
	f := newFault(kind, 1)
	f.tokens, f.only = tokens, true
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = f
	return f
}

// ArmEach is ArmFor for each request that contains one of the tokens, until Disarm.
func (p *Proxy) ArmEach(kind Kind, tokens []string) {
	f := newFault(kind, 1)
	f.tokens, f.only, f.each = tokens, true, true
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = f
}

// ArmBut is Arm, but requests that contain one of others, and none of names, do not count: those
// that the client makes in the background for something else.
func (p *Proxy) ArmBut(kind Kind, n int, names, others []string) *Fault {
	f := newFault(kind, n)
	f.tokens, f.others = names, slices.Clone(others)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = f
	return f
}

// ArmThen is Arm, and the request after the affected one runs into another fault.
func (p *Proxy) ArmThen(kind Kind, n int, then Kind) (first, second *Fault) {
	first, second = newFault(kind, n), newFault(then, 1)
	first.next = second
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = first
	return first, second
}

// Disarm takes back the fault that is armed, if it has not acted yet.
func (p *Proxy) Disarm() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = nil
}

// Delay delays every request and every reply by d.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latency = d
}

// Hang makes the server seem to hang: connections are accepted and bytes received, but nothing is
// done or answered until Heal.
func (p *Proxy) Hang() { p.shut(&p.gate) }

// Deafen holds back what the server sends until Heal. Requests get through.
func (p *Proxy) Deafen() { p.shut(&p.replies) }

// HangDials makes new connections hang until Heal. Open ones work.
func (p *Proxy) HangDials() { p.shut(&p.dials) }

// shut replaces an open gate by a closed one.
func (p *Proxy) shut(gate *chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-*gate:
		*gate = make(chan struct{})
	default:
	}
}

// Connected returns the open connections.
func (p *Proxy) Connected() map[*Link]struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.links)
}

// HangOthers makes the open connections hang until Heal, except those in but. New ones work. It
// returns how many connections hang.
func (p *Proxy) HangOthers(but map[*Link]struct{}) (n int) {
	others := p.Connected()
	maps.DeleteFunc(others, func(l *Link, _ struct{}) bool { _, ok := but[l]; return ok })
	p.HangThese(others)
	return len(others)
}

// HangThese makes some connections hang until Heal.
func (p *Proxy) HangThese(links map[*Link]struct{}) {
	gate := make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range links {
		l.gate = gate
	}
}

// CutAll ends connections.
func CutAll(links map[*Link]struct{}) {
	for l := range links {
		l.cut()
	}
}

// Cut ends all connections. New ones work.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.cut()
	}
}

// Slam ends all connections, and each new one as soon as it is accepted, until Heal.
func (p *Proxy) Slam() {
	p.mu.Lock()
	p.slamming = true
	p.mu.Unlock()
	p.Cut()
}

// Refuse ends all connections and refuses new ones until Heal.
func (p *Proxy) Refuse() {
	p.RefuseDials()
	p.Cut()
}

// RefuseDials refuses new connections until Heal. Open ones work.
func (p *Proxy) RefuseDials() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		p.listener.Close()
		p.listener = nil
	}
}

// Heal ends the effects of all methods above and takes back the fault that is armed. What was held
// back is delivered.
func (p *Proxy) Heal(tb testing.TB) {
	tb.Helper()
	p.Disarm()
	p.Delay(0)
	for _, s := range p.multiplexed() {
		s.silence(false)
	}
	p.mu.Lock()
	p.slamming = false
	gates := []chan struct{}{p.gate, p.replies, p.dials}
	for l := range p.links {
		if l.gate != nil {
			gates = append(gates, l.gate)
		}
	}
	for _, gate := range gates {
		select {
		case <-gate:
		default:
			close(gate)
		}
	}
	refusing := p.listener == nil
	p.mu.Unlock()
	if !refusing {
		return
	}
	// Where the port is not reserved, another process may use it for a moment.
	var ln net.Listener
	var err error
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if ln, err = net.Listen("tcp", p.Addr); err == nil {
			p.serve(ln)
			return
		}
	}
	tb.Fatalf("the fault proxy cannot listen again: %v", err)
}

// close ends the proxy and waits for its goroutines.
func (p *Proxy) close() {
	p.mu.Lock()
	select {
	case <-p.closed:
	default:
		close(p.closed)
	}
	p.mu.Unlock()
	p.Refuse()
	p.goroutine.Wait()
}

// serve accepts connections from ln until it is closed.
func (p *Proxy) serve(ln net.Listener) {
	p.mu.Lock()
	p.listener = ln
	p.mu.Unlock()
	p.goroutine.Go(func() {
		// The proxy's goroutines must not count as leaks of the check.
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
func (p *Proxy) connect(ln net.Listener, client *net.TCPConn) {
	defer client.Close()
	server, err := net.DialTimeout("tcp", p.target, 10*time.Second)
	if err != nil {
		return // as the client would see it without a proxy
	}
	defer server.Close()
	p.mu.Lock()
	gate := p.dials
	p.mu.Unlock()
	l := &Link{p: p, gate: gate, client: client, server: server.(*net.TCPConn), ended: make(chan struct{})}

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

// flow returns when bytes of l, from the server or not, may be forwarded, and false when the proxy
// is closed meanwhile.
func (p *Proxy) flow(l *Link, reply bool) bool {
	p.mu.Lock()
	gates := []chan struct{}{p.gate, l.gate}
	if reply {
		gates = append(gates, p.replies)
	}
	p.mu.Unlock()
	for _, gate := range gates {
		select {
		case <-gate:
		case <-p.closed:
			return false
		}
	}
	return true
}

// delay returns when a request or a reply has been delayed, and false when the proxy is closed
// meanwhile.
func (p *Proxy) delay() bool {
	p.mu.Lock()
	latency := p.latency
	p.mu.Unlock()
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

// begins counts a request, which begins with b, and returns the fault that affects it, if any.
func (p *Proxy) begins(b []byte) *Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests++
	f := p.fault
	if f == nil || !f.concerns(b) {
		return nil
	}
	if f.left--; f.left > 0 {
		return nil
	}
	p.fault = f.then()
	return f
}
