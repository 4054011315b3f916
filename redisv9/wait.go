package redisv9

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// Wait takes the lock as Acquire does if it is free, and otherwise joins the queue in Redis and
// returns when it is handed the lock. The queue is first come, first served across processes. A
// lock whose holder vanished goes to the first in the queue a few milliseconds after it expires,
// and if that one vanished with it, to the next process about a second after that.
//
// A waiter whose process has gone is passed over. The server detects that when the process's
// connection ends. On a Cluster it cannot: each release that meets such a waiter costs a second
// (over a slow link eight round trips, up to ten seconds), and after two of them all others that do
// not answer are passed over as well. If a machine vanishes and its connection does not end, its
// waiters may be handed the lock, for their ttl, for up to 25 seconds more.
//
// Joining takes one request, like taking a free lock; on a Cluster, and with a client that is not
// go-redis's own, claiming the lock takes another. The first time that a Locker meets a queue, it
// makes two more requests and opens a connection on which it is notified of its turn. The
// connection is closed within a minute after the last waiter. If it fails, as it does for users
// who may not subscribe, waiters look up to twenty times a second instead.
//
// If ctx ends while Wait is in the queue, its place, or the lock if it has been granted by then,
// is given up in the background. The error is [errors.ErrUnsupported] for names with a } but
// without a hash tag on Ring and Cluster.
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
