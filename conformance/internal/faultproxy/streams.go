package faultproxy

import "sync"

// streams is HTTP/2 without TLS. A request begins with the first content (DATA) that the client
// sends on a stream while none is under way there, or with the header fields (HEADERS) that are all
// that it sends on a stream. So a unary call of gRPC is a request, and so is each message that
// follows an answer on a stream that stays open. All that the client sends on a stream until the
// server answers there is one request. Frames that a client sends by itself (SETTINGS, PING,
// WINDOW_UPDATE, RST_STREAM, GOAWAY, PRIORITY) are none, and neither is the end of a stream without
// content. The server answers with HEADERS, DATA or RST_STREAM on that stream.
//
// The header fields of a request that has content reach the server at once, since their compression
// has an order in the whole connection: a request is held back by its content. The other streams
// of the connection go on, as the calls on other connections would.
type streams struct {
	l       *Link
	greeted bool // the preface has been forwarded; this and sends are used by fromClient alone
	sends   frames
	late    sync.WaitGroup // delivers what is held back

	writing sync.Mutex // orders what is written to the server, and guards held of each stream

	mu   sync.Mutex
	open map[uint32]*stream // until the server ends its side, or the client resets the stream
	last uint32             // the stream that the client has opened last
	mute map[uint32]bool    // streams on which the client hears nothing

	kept []frame // of the server, on these streams; used by fromServer alone
}

type stream struct {
	exchange
	begun bool // it has had a request

	held  []frame       // the request that is held back and what follows it; nil: nothing is held
	freed chan struct{} // closed when it is delivered
}

func newStreams(l *Link) *streams { return &streams{l: l, open: make(map[uint32]*stream)} }

func (s *streams) fromClient(b []byte) bool {
	if !s.greeted {
		s.greeted = true
		if !s.l.p.flow(s.l, false) || !s.write([]byte(preface)) {
			return false
		}
		b = b[len(preface):]
	}
	s.sends.add(b)
	for {
		f, _, ok := s.sends.next()
		if !ok {
			return true
		}
		if !s.forward(f) {
			return false
		}
	}
}

// forward forwards a frame of the client.
func (s *streams) forward(f frame) bool {
	st, begins, fault := s.begin(f)
	if begins && fault != nil && fault.kind.onRequest() {
		close(fault.Hit)
		if fault.kind.holds() && f.kind() == frameData {
			s.hold(st, f, fault)
			return true
		}
		if !s.l.affects(fault, f) {
			return false
		}
	}
	if !s.l.p.flow(s.l, false) || begins && !s.l.p.delay() {
		return false
	}
	if st == nil {
		return s.write(f)
	}
	if s.follows(st, f) {
		return true
	}
	if f.kind() == frameReset && fault != nil && fault.kind.holds() {
		s.late.Go(func() { s.resets(f, fault) })
		return true
	}
	return s.write(f)
}

// begin notes a frame of the client, and returns its stream, whether it begins a request, and the
// fault that affects the request under way.
func (s *streams) begin(f frame) (st *stream, begins bool, fault *Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := f.stream()
	st = s.open[id]
	if st == nil && f.kind() == frameHeaders && id > s.last {
		st = new(stream)
		s.open[id], s.last = st, id
	}
	if st == nil { // of the connection, or of a stream that is over
		return nil, false, nil
	}
	switch f.kind() {
	case frameData, frameHeaders:
		begins = !st.open && (len(f.content()) > 0 || f.ends() && !st.begun)
	case frameReset:
		if held := st.open && st.fault != nil && st.fault.kind.holds(); !held {
			s.end(id) // the server need not answer
		}
	}
	if begins {
		st.open, st.begun = true, true
		st.fault = s.l.p.begins(f)
	}
	if st.open {
		fault = st.fault
	}
	return st, begins, fault
}

// end forgets a stream.
func (s *streams) end(id uint32) {
	if st := s.open[id]; st.open && st.fault != nil {
		st.fault.finish()
	}
	delete(s.open, id)
}

func (s *streams) write(b []byte) bool {
	s.writing.Lock()
	defer s.writing.Unlock()
	_, err := s.l.server.Write(b)
	return err == nil
}

// hold holds back the request that begins with f, and what follows it on its stream.
func (s *streams) hold(st *stream, f frame, fault *Fault) {
	s.writing.Lock()
	st.held, st.freed = []frame{f}, make(chan struct{})
	s.writing.Unlock()
	s.late.Go(func() {
		s.l.affects(fault, f)
		if s.l.p.flow(s.l, false) && s.l.p.delay() {
			s.deliver(st, fault)
		}
	})
}

// deliver delivers what is held back.
func (s *streams) deliver(st *stream, fault *Fault) {
	var reset frame
	s.writing.Lock()
	for _, f := range st.held {
		if f.kind() == frameReset {
			reset = f
			break
		}
		s.l.server.Write(f)
	}
	st.held = nil
	close(st.freed)
	s.writing.Unlock()
	if reset != nil {
		s.resets(reset, fault)
	}
}

// resets delivers the end of a request that was held back after the server has executed it: the
// client has given up, which a server may learn too late.
func (s *streams) resets(f frame, fault *Fault) {
	s.l.executed(fault)
	s.mu.Lock()
	if s.open[f.stream()] != nil {
		s.end(f.stream())
	}
	s.mu.Unlock()
	s.write(f)
}

// follows reports whether f has been added to what is held back on its stream. Header fields are
// not: it waits, since those of other streams must not overtake them.
func (s *streams) follows(st *stream, f frame) bool {
	s.writing.Lock()
	defer s.writing.Unlock()
	if st.held == nil {
		return false
	}
	if f.kind() != frameHeaders {
		st.held = append(st.held, f)
		return true
	}
	s.writing.Unlock()
	defer s.writing.Lock()
	select {
	case <-st.freed:
	case <-s.l.ended:
	case <-s.l.p.closed:
	}
	return false
}

func (s *streams) hungUp() {
	s.late.Wait()
	for _, f := range s.faults() {
		s.l.executed(f)
	}
}

func (s *streams) over() {
	for _, f := range s.faults() {
		f.finish()
	}
}

// faults returns those of all requests under way.
func (s *streams) faults() (all []*Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.open {
		if st.open && st.fault != nil {
			all = append(all, st.fault)
		}
	}
	return all
}
