package rueidis

import (
	"context"
	"time"
)

// Wait takes the lock as Acquire does if it is free, and otherwise joins the queue in Redis and
// returns when it is handed the lock. The queue is first come, first served across processes,
// including those that use package redisv9. The Wait of redisv9 describes what happens when a
// holder or a waiter vanishes.
//
// Joining takes one request, like taking a free lock; on a Cluster claiming the lock takes another.
// When a Locker first finds a queue, it makes two more requests and opens a connection on which it
// is notified of its turn. The connection is closed within a minute after the last waiter. If it
// fails, as it does for users who may not subscribe, waiters look up to twenty times a second
// instead.
//
// If ctx ends while Wait is in the queue, its place, or the lock if it has been granted by then,
// is given up in the background. The error is [errors.ErrUnsupported] for names with a } but
// without a hash tag on a Cluster.
func (l *Locker) Wait(ctx context.Context, key, token string, ttl time.Duration) (deadline time.Time, err error) {
	return l.locks.Wait(ctx, key, token, ttl)
}

// serverOf returns a value that stands for the server of a lock. On a Cluster it is one of 16
// ranges of slots, since a client does not export which node has which slots. Otherwise it is nil.
func (l *Locker) serverOf(lock string) any {
	if l.alone {
		return nil
	}
	const slotsInRange = 16384 / 16
	c := l.client.B().Arbitrary("GET").Keys(lock).Build()
	return c.Slot() / slotsInRange
}
