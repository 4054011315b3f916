package faultproxy

import (
	"context"
	"errors"
	"maps"
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
type Proxy struct {
	Addr   string // where it listens
	target string // the backend

	mu        sync.Mutex
	listener  net.Listener // nil while connections are refused
	links     map[*Link]struct{}
	fault     *Fault // the one that is armed
	requests  int
	accepted  int
	slamming  bool          // connections are accepted and cut at once
	gate      chan struct{} // closed: bytes flow; open: the server seems to hang
	replies   chan struct{} // closed: the server's bytes flow; open: they are held
	dials     chan struct{} // closed: new connections are served; open: they are accepted and nothing flows
	latency   time.Duration // before each forwarding
	closed    chan struct{}
	goroutine sync.WaitGroup
}

// newProxy starts a proxy before target that ends with tb.
func New(tb testing.TB, target string) *Proxy {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
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

// count returns how many requests the proxy has seen, and how many connections.
func (p *Proxy) Count() (requests, connections int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests, p.accepted
}

// arm lets the nth request from now on, counted from 1, run into the fault. It replaces what was armed
// before.
func (p *Proxy) Arm(kind Kind, n int) *Fault {
	f := newFault(kind, n)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = f
	return f
}

// armFor is arm for the first request in which one of the tokens stands.
func (p *Proxy) ArmFor(kind Kind, tokens []string) *Fault {
	f := newFault(kind, 1)
	f.tokens = tokens
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = f
	return f
}

// armThen is arm, and the request after the one that runs into the fault runs into another.
func (p *Proxy) ArmThen(kind Kind, n int, then Kind) (first, second *Fault) {
	first, second = newFault(kind, n), newFault(then, 1)
	first.next = second
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = first
	return first, second
}

// disarm takes back what is armed and has not acted yet.
func (p *Proxy) Disarm() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = nil
}

// delay makes every request, and every reply, take d longer.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latency = d
}

// hang lets the server seem to hang: connections are accepted, bytes are taken, nothing is answered and
// nothing is done, until heal.
func (p *Proxy) Hang() { p.shut(&p.gate) }

// deafen holds what the server sends until heal. Requests get through and are done.
func (p *Proxy) Deafen() { p.shut(&p.replies) }

// hangDials lets new connections hang until heal. Those that are there work.
func (p *Proxy) HangDials() { p.shut(&p.dials) }

// shut replaces a gate that is open by one that is not.
func (p *Proxy) shut(gate *chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-*gate:
		*gate = make(chan struct{})
	default:
	}
}

// connected returns the connections that are there.
func (p *Proxy) Connected() map[*Link]struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.links)
}

// hangOthers lets all connections hang until heal that are there now and are not in but. New ones work. It
// returns how many those are.
func (p *Proxy) HangOthers(but map[*Link]struct{}) (n int) {
	others := p.Connected()
	maps.DeleteFunc(others, func(l *Link, _ struct{}) bool { _, ok := but[l]; return ok })
	p.HangThese(others)
	return len(others)
}

// hangThese lets some connections hang until heal.
func (p *Proxy) HangThese(links map[*Link]struct{}) {
	gate := make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range links {
		l.gate = gate
	}
}

// cutAll ends connections.
func CutAll(links map[*Link]struct{}) {
	for l := range links {
		l.cut()
	}
}

// cut ends all connections. New ones are served.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.cut()
	}
}

// slam ends all connections, accepts new ones, and ends them at once.
func (p *Proxy) Slam() {
	p.mu.Lock()
	p.slamming = true
	p.mu.Unlock()
	p.Cut()
}

// refuse ends all connections and refuses new ones.
func (p *Proxy) Refuse() {
	p.RefuseDials()
	p.Cut()
}

// refuseDials refuses new connections. Those that are there work.
func (p *Proxy) RefuseDials() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		p.listener.Close()
		p.listener = nil
	}
}

// heal ends all that the methods above begin and takes back what is armed. What was held is delivered.
func (p *Proxy) Heal(tb testing.TB) {
	tb.Helper()
	p.Disarm()
	p.Delay(0)
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
	// Somebody may have the port for a moment.
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

// close ends the proxy and returns when nothing of it is left.
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
func (p *Proxy) connect(ln net.Listener, client *net.TCPConn) {
	defer client.Close()
	server, err := net.DialTimeout("tcp", p.target, 10*time.Second)
	if err != nil {
		return // the client sees a connection that ends, which is what its backend does
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

// flow returns when bytes of l, a reply or not, may be forwarded, and false when the proxy is closed meanwhile.
func (p *Proxy) flow(l *Link, reply bool) bool {
	for {
		p.mu.Lock()
		gates, latency := []chan struct{}{p.gate, l.gate}, p.latency
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
