package rueidis

import (
	"context"
	"time"
)

// Wait takes the lock as Acquire does if it is free, and otherwise waits in the queue in Redis, as the
// Wait of redisv9 does, whose documentation says what happens when a holder or a waiter vanishes.
// Processes that use either package share the queue.
//
// Messages arrive on a connection of the client's blocking pool, one of BlockingPoolSize, which is
// opened for the first waiter and given back a second or two after the last. If there is none, or
// the user may not subscribe, the process looks up to twenty times a second instead.
//
// If ctx ends, Wait leaves the queue before it returns, or in the background if that takes more than
// a tenth of a second. The error is [errors.ErrUnsupported] for names with a } but without a hash
// tag on a Cluster.
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
