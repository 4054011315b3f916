package faultproxy

import (
	"bytes"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// faultKind is what happens to the request that a fault waits for.
type Kind int

const (
	// holdRequest keeps the request, and what follows it on its connection, from the server until release.
	HoldRequest Kind = iota
	// holdReply keeps the reply from the client until release.
	HoldReply
	// dropReply ends the connection instead of delivering the reply, once the server has done the request.
	DropReply
	// halfReply delivers the first half of the reply and ends the connection.
	HalfReply
	// garbageReply delivers bytes that are a reply in no protocol, and ends the connection.
	GarbageReply
	// resetRequest delivers the first half of the request and resets the connection.
	ResetRequest
	// closeRequest keeps the request from the server for good and ends the connection in good order.
	CloseRequest
	// garbageRequest is closeRequest, with garbage for a reply before.
	GarbageRequest
)

func (k Kind) String() string {
	return [...]string{
		"is held on its way to the server",
		"is done by the server, and the reply is held",
		"is done by the server, and the connection ends instead of the reply",
		"is done by the server, and the connection ends after half of the reply",
		"is done by the server, and the reply is garbage",
		"reaches the server by half, and the connection is reset",
		"never reaches the server, and the connection ends in good order",
		"never reaches the server, and the reply is garbage",
	}[k]
}

// onRequest reports whether the fault befalls the request, and not its reply.
func (k Kind) onRequest() bool {
	switch k {
	case HoldRequest, ResetRequest, CloseRequest, GarbageRequest:
		return true
	}
	return false
}

// fault is one that is armed.
type Fault struct {
	kind Kind
	left int    // requests until it acts; guarded by the proxy's mu
	next *Fault // armed when it acts, or nil

	tokens []string // only requests in which one of these stands count; nil: all

	Hit      chan struct{} // closed when it acts: a hold then holds, anything else is about to be done
	goOn     chan struct{} // closed by release
	Answered chan struct{} // closed when the server has answered the request, or cannot any more
	released sync.Once
	finished sync.Once
}

func newFault(kind Kind, n int) *Fault {
	return &Fault{kind: kind, left: n, Hit: make(chan struct{}), goOn: make(chan struct{}), Answered: make(chan struct{})}
}

// release lets go what a hold holds. It may be called more than once, and before anything is held.
func (f *Fault) Release() { f.released.Do(func() { close(f.goOn) }) }

func (f *Fault) finish() { f.finished.Do(func() { close(f.Answered) }) }

// concerns reports whether a request that begins with these bytes counts.
func (f *Fault) concerns(b []byte) bool {
	return f.tokens == nil || slices.ContainsFunc(f.tokens, func(token string) bool { return bytes.Contains(b, []byte(token)) })
}

// acted says whether its request has come.
func (f *Fault) Acted() bool {
	select {
	case <-f.Hit:
		return true
	default:
		return false
	}
}

// link is one connection of a client through the proxy, and that of the proxy to the server.
type Link struct {
	p              *Proxy
	client, server *net.TCPConn
	gate           chan struct{} // closed: bytes flow; guarded by the proxy's mu
	ended          chan struct{} // closed when the server's side has ended
	wasCut         atomic.Bool

	mu    sync.Mutex
	open  bool   // a request is under way: the server has not answered since its first byte
	fault *Fault // of the request under way, or of the last one
}

// cut ends both connections.
func (l *Link) cut() {
	l.wasCut.Store(true)
	l.client.Close()
	l.server.Close()
}

// fromClient forwards what the client sends until it hangs up.
func (l *Link) fromClient() {
	// What was sent before the end of it reaches the server, and the server sees the end.
	defer l.hangUp()
	buf := make([]byte, 64<<10)
	for {
		n, err := l.client.Read(buf)
		if n > 0 && !l.request(buf[:n]) {
			return
		}
		if err != nil {
			return
		}
	}
}

// request forwards bytes of the client. It is false when there is nothing more to forward.
func (l *Link) request(b []byte) bool {
	f := l.begin(b)
	if f != nil {
		close(f.Hit)
		switch f.kind {
		case HoldRequest:
			select {
			case <-f.goOn:
			case <-l.ended:
			case <-l.p.closed:
			}
		case ResetRequest:
			l.server.Write(b[:len(b)/2])
			l.client.SetLinger(0)
			l.cut()
			f.finish()
			return false
		case CloseRequest, GarbageRequest:
			f.finish()
			if f.kind == GarbageRequest {
				l.client.Write(garbage)
			}
			l.endCleanly()
			return false
		}
	}
	if !l.p.flow(l, false) {
		return false
	}
	_, err := l.server.Write(b)
	return err == nil
}

// endCleanly ends the client's connection by a FIN, and then both. Bytes that the client sends after its request are
// read until it hangs up: a socket that is closed with bytes to read is reset.
func (l *Link) endCleanly() {
	l.wasCut.Store(true)
	l.client.CloseWrite()
	l.client.SetReadDeadline(time.Now().Add(10 * time.Second))
	io.Copy(io.Discard, l.client)
	l.cut()
}

// begin takes note of bytes of the client, and returns the fault that acts on the request that they begin.
// A fault on the reply is not returned: it is kept for the reply.
func (l *Link) begin(b []byte) *Fault {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open {
		return nil
	}
	l.open, l.fault = true, nil
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	l.p.requests++
	f := l.p.fault
	if f == nil || !f.concerns(b) {
		return nil
	}
	if f.left--; f.left > 0 {
		return nil
	}
	l.p.fault, l.fault = f.next, f
	if f.kind.onRequest() {
		return f
	}
	return nil
}

// hangUp tells the server that the client has hung up, after the server has done what was held back from it.
func (l *Link) hangUp() {
	l.mu.Lock()
	f, open := l.fault, l.open
	l.mu.Unlock()
	if f != nil && open && !l.wasCut.Load() {
		select {
		case <-f.Answered:
		case <-time.After(5 * time.Second):
		case <-l.p.closed:
		}
	}
	if l.server.CloseWrite() != nil {
		l.server.Close()
	}
	// One that never ends its side is not waited for.
	l.server.SetReadDeadline(time.Now().Add(10 * time.Second))
}

// fromServer forwards what the server sends until it hangs up.
func (l *Link) fromServer() {
	defer func() {
		close(l.ended)
		l.mu.Lock()
		if l.fault != nil {
			l.fault.finish()
		}
		l.mu.Unlock()
		l.client.Close()
		l.server.Close()
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := l.server.Read(buf)
		if n > 0 && !l.reply(buf[:n]) {
			return
		}
		if err != nil {
			return
		}
	}
}

// reply forwards bytes of the server. It is false when that was the last of this connection.
func (l *Link) reply(b []byte) bool {
	l.mu.Lock()
	l.open = false
	f := l.fault
	l.fault = nil
	l.mu.Unlock()
	if f != nil && !f.kind.onRequest() {
		close(f.Hit)
		// A reply may come in pieces, and a pipeline may be answered before all of it is done.
		b = l.rest(b)
		switch f.kind {
		case HoldReply:
			f.finish()
			select {
			case <-f.goOn:
			case <-l.p.closed:
			}
		case DropReply:
			b = nil
		case HalfReply:
			b = b[:len(b)/2]
		case GarbageReply:
			b = garbage
		}
	}
	if f != nil {
		defer f.finish()
	}
	if !l.p.flow(l, true) {
		return false
	}
	if len(b) > 0 {
		l.client.Write(b) // the server is to be heard to the end, also when the client has hung up
	}
	if f == nil || f.kind == HoldRequest || f.kind == HoldReply {
		return true
	}
	l.cut()
	return false
}

// garbage begins no reply of any protocol that locks are kept by.
var garbage = []byte("\xff\xfe\xfd?? garbage \x00\x01\xff\r\n\r\n")

// rest returns b and what the server sends after it before it is quiet for a moment.
func (l *Link) rest(b []byte) []byte {
	all := bytes.Clone(b)
	buf := make([]byte, 64<<10)
	for {
		l.server.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		n, err := l.server.Read(buf)
		all = append(all, buf[:n]...)
		if err != nil {
			l.server.SetReadDeadline(time.Time{})
			return all
		}
	}
}
