package cohort

import "github.com/golockers/locker"

// Entries is how many keys a Locker keeps anything for.
func Entries(l *Locker) int {
	n := 0
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		n += len(s.records)
		s.mu.Unlock()
	}
	return n
}

// Doubts is how many requests without an answer a Locker remembers.
func Doubts(l *Locker) int {
	n := 0
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		n += s.doubts.Len()
		s.mu.Unlock()
	}
	return n
}

// Room is how many records the maps of a Locker have had room for since they were made.
func Room(l *Locker) int {
	n := 0
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		n += s.peak
		s.mu.Unlock()
	}
	return n
}

// Inner is the Locker that a Locker wraps.
func Inner(l *Locker) locker.Locker { return l.inner }
