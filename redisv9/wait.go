package redisv9

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// Wait takes the lock as Acquire does if it is free, and otherwise waits in the queue in Redis. Each
// process has one place there, whatever the number of its waiters, so processes take turns; within
// a process, first come is first served. A release offers the lock to the first place, and its
// process takes it with one more request. A lock whose holder vanished goes to the first a few
// milliseconds after it expires.
//
// A process that has gone is passed over at once if its connection has ended. Otherwise, and always
// on a Cluster, it costs the others a second (over a slow link eight round trips, up to ten
// seconds), and any number of them together cost little more.
//
// The first time that a Locker meets a queue, it opens a connection on which it is notified of its
// turns. The connection is closed within a minute after the last waiter. If it fails, as it does for
// users who may not subscribe, the process looks up to twenty times a second instead.
//
// If ctx ends, Wait leaves the queue before it returns, or in the background if that takes more than
// a tenth of a second. The error is [errors.ErrUnsupported] for names with a } but without a hash tag
// on Ring and Cluster.
func (l *Locker) Wait(ctx context.Context, key, token string, ttl time.Duration) (deadline time.Time, err error) {
	return l.locks.Wait(ctx, key, token, ttl)
}

// serverOf returns what stands for the server of a lock: on a Cluster its master, as far as is
// known, and otherwise nil. The client must have been used: then there is no request.
func (l *Locker) serverOf(lock string) any {
	c, ok := l.client.(interface {
		MasterForKey(ctx context.Context, key string) (*redis.Client, error)
	})
	if !ok {
		return nil
	}
	master, err := c.MasterForKey(context.Background(), lock)
	if err != nil {
		return nil
	}
	return master
}
