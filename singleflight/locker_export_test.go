package singleflight

import "time"

// Entries is how many keys and tokens a Locker keeps anything for.
func Entries(l *Locker) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.lines) + len(l.own)
}

// InCohort says whether token holds the lock of key in a cohort tenure.
func InCohort(l *Locker, key, token string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines[key].heldBy(token, time.Now())
}

// Waiting is how many keys a Locker has a line for.
func Waiting(l *Locker) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.lines)
}
