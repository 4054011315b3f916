package faultproxy

import (
	"bytes"
	"sync"
	"time"
)

// exchange is a request and its reply.
type exchange struct {
	open  bool   // a request is under way: the server has not answered it
	fault *Fault // of the request under way, or of the last one
}

// bursts is a protocol in which the client and the server take turns: all bytes of the client until
// the server answers are a request.
type bursts struct {
	l  *Link
	mu sync.Mutex
	exchange
}

func (s *bursts) fromClient(b []byte) bool {
	if f := s.begin(b); f != nil {
		close(f.Hit)
		if !s.l.affects(f, b) {
			return false
		}
	}
	if !s.l.p.flow(s.l, false) || !s.l.p.delay() {
		return false
	}
	_, err := s.l.server.Write(b)
	return err == nil
}

// begin notes bytes of the client, and returns the fault that affects the request that they begin,
// if any. A fault on the reply is kept for the reply.
func (s *bursts) begin(b []byte) *Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open {
		return nil
	}
	s.open = true
	s.fault = s.l.p.begins(b)
	if s.fault != nil && s.fault.kind.onRequest() {
		return s.fault
	}
	return nil
}

func (s *bursts) hungUp() {
	s.mu.Lock()
	f, open := s.fault, s.open
	s.mu.Unlock()
	if f != nil && open {
		s.l.executed(f)
	}
}

func (s *bursts) over() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fault != nil {
		s.fault.finish()
	}
}

func (s *bursts) fromServer(b []byte) bool {
	l := s.l
	s.mu.Lock()
	s.open = false
	f := s.fault
	s.fault = nil
	s.mu.Unlock()
	if f != nil && !f.kind.onRequest() {
		close(f.Hit)
		// A reply may arrive in pieces, and a pipeline may be answered before all of it has been
		// executed.
		b = s.rest(b)
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
	if !l.p.flow(l, true) || !l.p.delay() {
		return false
	}
	if len(b) > 0 {
		l.client.Write(b) // even if the client has hung up, the server's replies are read
	}
	if f == nil || f.kind.holds() || f.kind == HoldReply {
		return true
	}
	l.cut()
	return false
}

// quiet is for how long a server that has sent a part of a reply sends nothing after its end.
const quiet = 20 * time.Millisecond

// rest returns b and what the server sends after it until it is quiet for a moment.
func (s *bursts) rest(b []byte) []byte {
	all := bytes.Clone(b)
	buf := make([]byte, 64<<10)
	for {
		s.l.server.SetReadDeadline(time.Now().Add(quiet))
		n, err := s.l.server.Read(buf)
		all = append(all, buf[:n]...)
		if err != nil {
			s.l.server.SetReadDeadline(time.Time{})
			return all
		}
	}
}
