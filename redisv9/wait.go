package redisv9

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golockers/locker/internal/redislock"
	"github.com/golockers/locker/internal/waithook"
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
	keys := l.names.Keys(key)
	ms, err := redislock.Milliseconds(ttl)
	switch {
	case ctx.Err() != nil:
		return time.Time{}, ctx.Err()
	case err != nil:
		return time.Time{}, err
	case keys.Queue == "":
		return time.Time{}, errNoQueue
	case l.waiters.Busy():
		return l.waiters.Wait(ctx, key, keys, token, ttl, false)
	}
	s := redislock.NewSending(ctx, token)
	acquired, err := redislock.Call(&l.waiters.Caller, s, func() (bool, error) {
		// The queue's script will find the holder, which may be this token. So the reply need not
		// name it, which spares go-redis an error for a nil reply.
		set := redis.NewBoolCmd(s.Ctx, "set", keys.Lock, s, "px", ms, "nx")
		sent := time.Now()
		err := l.process(s, set)
		s.Came(err)
		if err == nil {
			l.waiters.RoundTrip.Add(time.Since(sent))
		}
		if err == nil && !set.Val() {
			err = s.Refused(l.limits.io, l.limits.io)
		}
		return err == nil && set.Val(), err
	})
	switch {
	case acquired:
		return s.First().Add(ttl), nil
	case err == nil:
		waithook.Call(ctx)
		return l.waiters.Wait(ctx, key, keys, token, ttl, true)
	}
	l.waiters.GiveUp(ctx, keys, s)
	return time.Time{}, err
}

var errNoQueue = fmt.Errorf("the name has a } but no hash tag, so its queue cannot be in its slot: %w",
	errors.ErrUnsupported)

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
