package redisv9_test

import (
	"bytes"
	"context"
	"net"
	"sync"
	"testing"
	"time"
)

// late is a network that holds back the next write that matches, until the test delivers it.
type late struct {
	mu      sync.Mutex
	matches func(b []byte) bool // nil: none
	held    chan func()         // delivers it, and returns when the server has executed it
}

type lateConn struct {
	net.Conn
	n    *late
	held []byte
}

func newLate() *late { return &late{held: make(chan func(), 1)} }

func (n *late) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &lateConn{Conn: conn, n: n}, nil
}

// hold holds back the next write that matches.
func (n *late) hold(matches func(b []byte) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.matches = matches
}

// deliver sends what was held back.
func (n *late) deliver(tb testing.TB) {
	tb.Helper()
	select {
	case send := <-n.held:
		send()
	case <-time.After(10 * time.Second):
		tb.Fatal("nothing was held back")
	}
}

func (c *lateConn) Write(b []byte) (int, error) {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	if c.n.matches == nil || !c.n.matches(b) {
		return c.Conn.Write(b)
	}
	c.n.matches = nil
	c.held = bytes.Clone(b)
	c.n.held <- func() {
		_ = c.SetDeadline(time.Time{})
		_, _ = c.Conn.Write(c.held)
		_, _ = c.Conn.Read(make([]byte, 1))
		_ = c.Conn.Close()
	}
	return len(b), nil
}

// Close ends reading, but leaves the connection open for what is held back.
func (c *lateConn) Close() error {
	if c.held == nil {
		return c.Conn.Close()
	}
	return c.SetDeadline(time.Unix(1, 0))
}

func isScript(b []byte) bool { return bytes.Contains(b, []byte("evalsha")) }
