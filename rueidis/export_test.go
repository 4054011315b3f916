package rueidis

import "time"

// SetLinger sets how long l keeps a connection after its last listener. It is to be called before l
// is used.
func SetLinger(l *Locker, d time.Duration) {
	l.hub.SetLinger(d)
	l.locks.SetLinger(d)
}

// SetCallTimeout sets how long, at least, l waits for a reply. It is to be called before l is used.
func SetCallTimeout(l *Locker, d time.Duration) { l.deadlines.timeout = d }

// IsConnected reports whether l has a subscribed connection, or tries to have one.
func IsConnected(l *Locker) bool { return l.hub.InUse() }

// Waiting returns how many wait on l.
func Waiting(l *Locker) int { return l.locks.Waiting() }
