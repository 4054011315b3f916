package semaphore

// Size returns how many keys and tokens s remembers.
func (s *Semaphore) Size() (rooms, tokens int) {
	l := s.permits
	l.mu.Lock()
	defer l.mu.Unlock()
	l.known.mu.Lock()
	defer l.known.mu.Unlock()
	return len(l.rooms), len(l.known.of)
}
