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

// Kind is what happens to the request that a fault affects.
type Kind int

const (
	// HoldRequest holds back the request, and what follows it on its connection, until Release.
	HoldRequest Kind = iota
	// HoldReply holds back the reply until Release.
	HoldReply
	// DropReply ends the connection instead of delivering the reply, once the server has executed
	// the request.
	DropReply
	// HalfReply delivers the first half of the reply and ends the connection.
	HalfReply
	// GarbageReply delivers bytes that are not a reply in any protocol, and ends the connection.
	GarbageReply
	// ResetRequest delivers the first half of the request and resets the connection.
	ResetRequest
	// CloseRequest drops the request and closes the connection.
	CloseRequest
	// GarbageRequest is CloseRequest after a garbage reply.
	GarbageRequest
)

func (k Kind) String() string {
	return [...]string{
		"is held back on its way to the server",
		"is executed by the server, and the reply is held back",
		"is executed by the server, and the connection ends in place of the reply",
		"is executed by the server, and the connection ends after half of the reply",
		"is executed by the server, and the reply is garbage",
		"reaches the server in part, and the connection is reset",
		"never reaches the server, and the connection is closed",
		"never reaches the server, and the reply is garbage",
	}[k]
}

// onRequest reports whether the fault affects the request, not its reply.
func (k Kind) onRequest() bool {
	switch k {
	case HoldRequest, ResetRequest, CloseRequest, GarbageRequest:
		return true
	}
	return false
}

// Fault is a fault that is or was armed.
type Fault struct {
	kind Kind
	left int    // requests until it acts; guarded by the proxy's mu
	next *Fault // armed when this one acts, or nil

	tokens []string // if not nil, only requests that contain one of these count

	Hit      chan struct{} // closed when it begins to act
	goOn     chan struct{} // closed by Release
	Answered chan struct{} // closed when the server has answered the request, or no longer can
	released sync.Once
	finished sync.Once
}

func newFault(kind Kind, n int) *Fault {
	return &Fault{kind: kind, left: n, Hit: make(chan struct{}), goOn: make(chan struct{}), Answered: make(chan struct{})}
}

// Release delivers what is held back. It may be called repeatedly, and before anything is held
// back.
func (f *Fault) Release() { f.released.Do(func() { close(f.goOn) }) }

func (f *Fault) finish() { f.finished.Do(func() { close(f.Answered) }) }

// concerns reports whether a request that begins with these bytes counts.
func (f *Fault) concerns(b []byte) bool {
	return f.tokens == nil || slices.ContainsFunc(f.tokens, func(token string) bool { return bytes.Contains(b, []byte(token)) })
}

// Acted reports whether the fault has begun to act.
func (f *Fault) Acted() bool {
	select {
	case <-f.Hit:
		return true
	default:
		return false
	}
}

// Link is a connection of a client to the proxy, and that of the proxy to the server.
type Link struct {
	p              *Proxy
	client, server *net.TCPConn
	gate           chan struct{} // closed: bytes flow; guarded by the proxy's mu
	ended          chan struct{} // closed when the server's side has ended
	wasCut         atomic.Bool

	mu    sync.Mutex
	open  bool   // a request is under way: the server has not answered it
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
	// The server gets what was sent before, and sees the end.
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

// request forwards bytes of the client. It returns false if the connection has ended.
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

// endCleanly closes the client's connection with a FIN, and then both connections. It reads what
// the client sends until that hangs up, since closing a socket with unread bytes resets the
// connection.
func (l *Link) endCleanly() {
	l.wasCut.Store(true)
	l.client.CloseWrite()
	l.client.SetReadDeadline(time.Now().Add(10 * time.Second))
	io.Copy(io.Discard, l.client)
	l.cut()
}

// begin notes bytes of the client, and returns the fault that affects the request that they begin,
// if any. A fault on the reply is kept for the reply.
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

// hangUp tells the server that the client has hung up, after the server has executed what was held
// back.
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
	// Do not wait for a server that never closes its side.
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

// reply forwards bytes of the server. It returns false if they are the last of the connection.
func (l *Link) reply(b []byte) bool {
	l.mu.Lock()
	l.open = false
	f := l.fault
	l.fault = nil
	l.mu.Unlock()
	if f != nil && !f.kind.onRequest() {
		close(f.Hit)
		// A reply may arrive in pieces, and a pipeline may be answered before all of it has been
		// executed.
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
		l.client.Write(b) // even if the client has hung up, the server's replies are read
	}
	if f == nil || f.kind == HoldRequest || f.kind == HoldReply {
		return true
	}
	l.cut()
	return false
}

// garbage is not the beginning of a reply in any protocol that locks use.
var garbage = []byte("\xff\xfe\xfd?? garbage \x00\x01\xff\r\n\r\n")

// rest returns b and what the server sends after it until it is quiet for a moment.
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
