package rueidis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/golockers/locker/internal/redislock"
	"github.com/golockers/locker/internal/waithook"
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
	keys := l.names.Keys(key)
	ms, err := redislock.Milliseconds(ttl)
	switch {
	case ctx.Err() != nil:
		return time.Time{}, ctx.Err()
	case err != nil:
		return time.Time{}, err
	case l.waiters.Err != nil:
		return time.Time{}, l.waiters.Err
	case keys.Queue == "":
		return time.Time{}, errNoQueue
	case l.waiters.Busy():
		return l.waiters.Wait(ctx, key, keys, token, ttl, false)
	}
	s := redislock.NewSending(ctx, token)
	acquired, err := redislock.Call(&l.waiters.Caller, s, func() (bool, error) {
		// The queue's script will find the holder, which may be this token.
		sent := time.Now()
		reply, err := l.do(s, l.command([]string{"SET"}, []string{keys.Lock},
			s.Token, "PX", strconv.FormatInt(ms, 10), "NX"))
		s.Came(err)
		if err == nil {
			l.waiters.RoundTrip.Add(time.Since(sent))
		}
		if err == nil && reply == nil {
			err = s.Refused(replyTimeout, replyTimeout)
		}
		return err == nil && reply != nil, err
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
