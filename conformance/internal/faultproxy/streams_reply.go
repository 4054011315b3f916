package faultproxy

import (
	"bytes"
	"time"
)

func (s *streams) fromServer(b []byte) bool {
	s.l.replies.add(b)
	for {
		f, rest, ok := s.l.replies.next()
		if !ok {
			return true
		}
		if !s.back(f, rest) {
			return false
		}
	}
}

// back forwards a frame of the server, or the rest of it.
func (s *streams) back(f frame, rest []byte) bool {
	l := s.l
	answers, fault := s.answer(f)
	if fault != nil {
		defer fault.finish()
	}
	if fault != nil && !fault.kind.onRequest() {
		close(fault.Hit)
		if fault.kind != HoldReply {
			return s.breakReply(fault.kind, s.reply(f))
		}
		fault.finish()
		select {
		case <-fault.goOn:
		case <-l.p.closed:
		}
	}
	if s.muted(f) {
		s.kept = append(s.kept, f)
		return true
	}
	if !l.p.flow(l, true) || answers && !l.p.delay() {
		return false
	}
	// Even if the client has hung up, the server's frames are read.
	for ; len(s.kept) > 0 && !s.silent(); s.kept = s.kept[1:] {
		l.client.Write(s.kept[0])
	}
	if len(rest) > 0 {
		l.client.Write(rest)
	}
	return true
}

// answer notes a frame of the server. It reports whether it is the first of a reply, and returns the
// fault that affects that or its request.
func (s *streams) answer(f frame) (answers bool, fault *Fault) {
	switch f.kind() {
	case frameData, frameHeaders, frameReset:
	default:
		return false, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.open[f.stream()]
	if st == nil {
		return false, nil
	}
	if answers = st.open; answers {
		fault = st.fault
		st.open, st.fault = false, nil
	}
	if f.ends() {
		delete(s.open, f.stream())
	}
	return answers, fault
}

// reply returns first and what the server sends after it until the stream ends, or nothing comes on
// it for a moment. Frames of other streams are among them, since header fields have an order.
func (s *streams) reply(first frame) []frame {
	all := []frame{first}
	if first.ends() {
		return all
	}
	l, buf := s.l, make([]byte, 64<<10)
	defer l.server.SetReadDeadline(time.Time{})
	for end := time.Now().Add(quiet); ; {
		f, _, ok := l.replies.next()
		if !ok {
			l.server.SetReadDeadline(end)
			n, err := l.server.Read(buf)
			l.replies.add(buf[:n])
			if err != nil {
				return all
			}
			continue
		}
		all = append(all, f)
		if f.stream() != first.stream() {
			continue
		}
		end = time.Now().Add(quiet)
		if f.ends() {
			return all
		}
	}
}

// breakReply delivers a reply, the first of whose frames are from its stream, as the fault has it,
// and ends the connection. Half a reply has half of the content, and one that is garbage has
// garbage for content: a client of HTTP/2 hands neither a part of a frame nor bytes that are no
// frame to its caller.
func (s *streams) breakReply(kind Kind, reply []frame) bool {
	l, id, total := s.l, reply[0].stream(), 0
	for _, f := range reply {
		if f.stream() == id {
			total += len(f.content())
		}
	}
	var b []byte
	switch {
	case kind == DropReply:
	case kind == HalfReply && total == 0:
		b = bytes.Join(plain(reply), nil)
		b = b[:len(b)/2]
	case kind == HalfReply:
		b = half(reply, total/2)
	case kind == GarbageReply && total == 0:
		b = garbage
	case kind == GarbageReply:
		for _, f := range reply {
			if f.stream() == id {
				spoil(f.content())
			}
		}
		b = bytes.Join(plain(reply), nil)
	}
	if !l.p.flow(l, true) || !l.p.delay() {
		return false
	}
	if len(b) > 0 {
		l.client.Write(b)
	}
	l.cut()
	return false
}

func plain(all []frame) [][]byte {
	b := make([][]byte, len(all))
	for i, f := range all {
		b[i] = f
	}
	return b
}

// half returns the frames of a reply up to the nth byte of the content.
func half(reply []frame, n int) (b []byte) {
	for _, f := range reply {
		if f.kind() != frameData || f.stream() != reply[0].stream() {
			b = append(b, f...)
			continue
		}
		if len(f.content()) > n {
			return append(b, f.shortened(n)...)
		}
		b = append(b, f...)
		n -= len(f.content())
	}
	return b
}

// spoil replaces what is in b by garbage.
func spoil(b []byte) {
	for i := range b {
		b[i] = garbage[i%len(garbage)]
	}
}
