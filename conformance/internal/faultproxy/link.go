package faultproxy

import (
	"io"
	"net"
	"strings"
	"sync/atomic"
	"time"
)

// Link is a connection of a client to the proxy, and that of the proxy to the server.
type Link struct {
	p              *Proxy
	client, server *net.TCPConn
	gate           chan struct{} // closed: bytes flow; guarded by the proxy's mu
	ended          chan struct{} // closed when the server's side has ended
	wasCut         atomic.Bool

	early   []byte                   // of the client, before they show what it speaks
	speaks  atomic.Pointer[protocol] // nil until then
	replies frames                   // of the server; used by fromServer alone
}

// protocol distinguishes requests and replies in what passes through a link, and injects the
// faults. Its methods return false if the connection has ended.
type protocol interface {
	fromClient(b []byte) bool
	fromServer(b []byte) bool

	// hungUp is called when the client has hung up. It returns when what was held back, or is
	// affected by a fault, has been executed.
	hungUp()

	// over is called when nothing more comes from the server.
	over()
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
		if n > 0 && !l.sent(buf[:n]) {
			return
		}
		if err != nil {
			if l.speaks.Load() == nil && len(l.early) > 0 {
				l.speak(&bursts{l: l}).fromClient(l.early)
			}
			return
		}
	}
}

// sent forwards bytes of the client, once they show what the client speaks.
func (l *Link) sent(b []byte) bool {
	if p := l.speaks.Load(); p != nil {
		return (*p).fromClient(b)
	}
	l.early = append(l.early, b...)
	switch {
	case strings.HasPrefix(string(l.early), preface):
		return l.speak(newStreams(l)).fromClient(l.early)
	case strings.HasPrefix(preface, string(l.early)):
		return true // it may yet be the preface
	}
	return l.speak(&bursts{l: l}).fromClient(l.early)
}

func (l *Link) speak(p protocol) protocol {
	l.speaks.Store(&p)
	return p
}

// hangUp tells the server that the client has hung up, after the server has executed what was held
// back.
func (l *Link) hangUp() {
	if p := l.speaks.Load(); p != nil {
		(*p).hungUp()
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
		if p := l.speaks.Load(); p != nil {
			(*p).over()
		}
		l.client.Close()
		l.server.Close()
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := l.server.Read(buf)
		if n > 0 && !l.received(buf[:n]) {
			return
		}
		if err != nil {
			return
		}
	}
}

// received forwards bytes of the server. A server may speak first.
func (l *Link) received(b []byte) bool {
	if p := l.speaks.Load(); p != nil {
		return (*p).fromServer(b)
	}
	if !l.p.flow(l, true) {
		return false
	}
	l.replies.forwarded(b)
	l.client.Write(b)
	return true
}

// affects injects a fault that affects a request, which begins with b. It returns false if the
// connection has ended.
func (l *Link) affects(f *Fault, b []byte) bool {
	switch f.kind {
	case HoldRequest, StrandRequest:
		if f.kind == StrandRequest {
			l.client.Close()
		}
		select {
		case <-f.goOn:
		case <-l.ended:
		case <-l.p.closed:
		}
		return true
	case ResetRequest:
		l.server.Write(b[:len(b)/2])
		l.client.SetLinger(0)
		l.cut()
		f.finish()
	case CloseRequest, GarbageRequest:
		f.finish()
		if f.kind == GarbageRequest {
			l.client.Write(garbage)
		}
		l.endCleanly()
	}
	return false
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

// executed returns when the server has executed the request that f affects, or takes long.
func (l *Link) executed(f *Fault) {
	if l.wasCut.Load() {
		return
	}
	select {
	case <-f.Answered:
	case <-time.After(5 * time.Second):
	case <-l.p.closed:
	}
}

// garbage is not the beginning of a reply in any protocol that locks use.
var garbage = []byte("\xff\xfe\xfd?? garbage \x00\x01\xff\r\n\r\n")
