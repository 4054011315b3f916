package redisv9

import "time"

// SetLinger sets how long l keeps a connection after its last listener.
func SetLinger(l *Locker, d time.Duration) {
	l.subs.mu.Lock()
	defer l.subs.mu.Unlock()
	l.subs.linger = d
}

// Feeds is how many connections l listens on.
func Feeds(l *Locker) int {
	l.subs.mu.Lock()
	defer l.subs.mu.Unlock()
	return len(l.subs.feeds)
}

// Channels is how many channels l listens to, or has not yet unsubscribed from.
func Channels(l *Locker) int {
	l.subs.mu.Lock()
	defer l.subs.mu.Unlock()
	return len(l.subs.channels)
}

// GivingUp is how many places in line l is giving up.
func GivingUp(l *Locker) int64 { return l.givingUp.Load() }
