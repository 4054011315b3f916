package redisv9

import "time"

// SetLinger sets how long l keeps a connection after its last listener. It is to be called before l
// is used.
func SetLinger(l *Locker, d time.Duration) {
	l.subs.mu.Lock()
	defer l.subs.mu.Unlock()
	l.subs.linger = d
	l.locks.SetLinger(d)
}

// Feeds returns how many subscribed connections l has.
func Feeds(l *Locker) (n int) {
	l.subs.mu.Lock()
	defer l.subs.mu.Unlock()
	for _, h := range l.subs.hubs {
		if h.InUse() {
			n++
		}
	}
	return n
}

// Channels returns how many channels l is subscribed to, or has not yet unsubscribed from.
func Channels(l *Locker) (n int) {
	l.subs.mu.Lock()
	defer l.subs.mu.Unlock()
	for _, h := range l.subs.hubs {
		n += h.Channels()
	}
	return n
}

// Waiting returns how many wait on l.
func Waiting(l *Locker) int { return l.locks.Waiting() }

// AlwaysBatch makes l send even a single call as a pipeline. It is to be called before l is used.
func AlwaysBatch(l *Locker) { l.batches.always = true }

// Queued returns how many calls of l queue for a slot.
func Queued(l *Locker) int {
	l.batches.mu.Lock()
	defer l.batches.mu.Unlock()
	return l.batches.queued
}

// Busy returns how many slots of l are in use.
func Busy(l *Locker) int {
	l.batches.mu.Lock()
	defer l.batches.mu.Unlock()
	return l.batches.busy
}

// Batches reports whether calls of l may travel together.
func Batches(l *Locker) bool { return l.batches != nil }

// Running returns how many batches of l are under way.
func Running(l *Locker) int {
	l.batches.mu.Lock()
	defer l.batches.mu.Unlock()
	return len(l.batches.running)
}
