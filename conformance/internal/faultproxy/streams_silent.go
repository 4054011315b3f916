package faultproxy

// Multiplexes reports whether a connected client sends several requests at the same time on one
// connection, as HTTP/2 allows.
func (p *Proxy) Multiplexes() bool { return len(p.multiplexed()) > 0 }

func (p *Proxy) multiplexed() (all []*streams) {
	for l := range p.Connected() {
		if speaks := l.speaks.Load(); speaks != nil {
			if s, ok := (*speaks).(*streams); ok {
				all = append(all, s)
			}
		}
	}
	return all
}

// Silence keeps from the clients what the server sends on the streams of HTTP/2 that are open, until
// Heal. New streams work. It returns how many are silent.
func (p *Proxy) Silence() (n int) {
	for _, s := range p.multiplexed() {
		n += s.silence(true)
	}
	return n
}

// silence makes the streams that are open silent and returns their number, or ends that. What the
// server sends meanwhile is delivered before the next frame after it.
func (s *streams) silence(on bool) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mute = nil
	if on {
		s.mute = make(map[uint32]bool)
		for id := range s.open {
			s.mute[id] = true
		}
	}
	return len(s.mute)
}

func (s *streams) silent() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mute) > 0
}

// muted reports whether a frame is to be kept: the content on a silent stream. Header fields cannot
// be kept, since their compression has an order; if they end a stream, the silence is over.
func (s *streams) muted(f frame) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.mute[f.stream()] {
		return false
	}
	if f.kind() != frameData && f.ends() {
		s.mute = nil
	}
	return f.kind() == frameData
}
