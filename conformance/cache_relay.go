package conformance

import (
	"fmt"
	"io"
	"net"
	"sync"
)

// cacheRelay is a TCP server that stands between a cache and its backend, and can stop working.
type cacheRelay struct {
	backend  string
	listener net.Listener

	mu    sync.Mutex
	state relayState
	moved chan struct{} // closed when state changes
	conns map[net.Conn]struct{}
	count int // of connections so far
}

type relayState int

const (
	relayWorks relayState = iota
	relayHangs
	relayCuts
)

func newCacheRelay(backend string) (*cacheRelay, error) {
	probe, err := net.DialTimeout("tcp", backend, cachePatience)
	if err != nil {
		return nil, fmt.Errorf("no server answers: %w", err)
	}
	probe.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &cacheRelay{backend: backend, listener: listener,
		moved: make(chan struct{}), conns: make(map[net.Conn]struct{})}
	go r.accept()
	return r, nil
}

func (r *cacheRelay) addr() string { return r.listener.Addr().String() }

func (r *cacheRelay) used() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count > 0
}

// hang keeps connections and takes new ones, but carries nothing.
func (r *cacheRelay) hang() { r.set(relayHangs) }

// cut ends all connections, and every new one.
func (r *cacheRelay) cut() {
	r.set(relayCuts)
	r.endAll()
}

func (r *cacheRelay) heal() { r.set(relayWorks) }

func (r *cacheRelay) close() {
	r.listener.Close()
	r.cut()
}

func (r *cacheRelay) endAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for conn := range r.conns {
		conn.Close()
	}
}

func (r *cacheRelay) set(s relayState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state = s
	close(r.moved)
	r.moved = make(chan struct{})
}

// works waits while the relay hangs, and reports whether it works then.
func (r *cacheRelay) works() bool {
	for {
		r.mu.Lock()
		state, moved := r.state, r.moved
		r.mu.Unlock()
		if state != relayHangs {
			return state == relayWorks
		}
		<-moved
	}
}

func (r *cacheRelay) accept() {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		go r.serve(client)
	}
}

func (r *cacheRelay) serve(client net.Conn) {
	defer client.Close()
	r.mu.Lock()
	r.count++
	cuts := r.state == relayCuts
	r.mu.Unlock()
	if cuts {
		return
	}
	server, err := net.DialTimeout("tcp", r.backend, cachePatience)
	if err != nil {
		return
	}
	defer server.Close()
	for _, conn := range []net.Conn{client, server} {
		if !r.track(conn) {
			return
		}
		defer r.untrack(conn)
	}
	done := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		go func() {
			r.carry(way[1], way[0])
			done <- struct{}{}
		}()
	}
	<-done
}

// track makes cut end conn. It reports false if that has happened already.
func (r *cacheRelay) track(conn net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conns[conn] = struct{}{}
	return r.state != relayCuts
}

func (r *cacheRelay) untrack(conn net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, conn)
}

func (r *cacheRelay) carry(to io.Writer, from io.Reader) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		if err != nil || !r.works() {
			return
		}
		if _, err := to.Write(b[:n]); err != nil {
			return
		}
	}
}
