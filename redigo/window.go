package redigo

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/golockers/locker/window"
	"github.com/gomodule/redigo/redis"
)

var _ window.Enforcer = (*Locker)(nil)

// Count adds n to the count of key in the current window, for a Limiter of package window. With
// windows of a minute, the count is stored in the Redis key "!locker:window:60000:", followed by
// the number of the minute since 1970, ":" and key. One transaction increments it, sets its expiry
// and reads the server's time. If that time is in another window than the request assumed, a second
// transaction moves the count there.
//
// So Count takes 1 round trip, and 2 in the first 50 ms of a window and as the Locker's first call.
// Until a count is moved, the previous one is too high. If there is an error, n may have been counted
// in the window before the present one. A window that is shorter than a few round trips may end
// during each of four attempts, which is an error.
func (l *Locker) Count(ctx context.Context, key string, n int64, per time.Duration) (window.Counts, error) {
	return operate(ctx, l, "", key, func(o *operation) (window.Counts, error) {
		c, _, err := o.countIn(key, n, per)
		return c, err
	})
}

// CountUnder is Count, but takes n back if the rule does not allow it, in 1 more round trip. In the
// meantime, other calls may be denied because of n, so a client that keeps many calls in flight
// while it is denied gets less than the limit. If taking n back fails, CountUnder returns an error,
// and n may have been counted.
func (l *Locker) CountUnder(ctx context.Context, key string, n int64, r window.Rule) (
	c window.Counts, counted bool, err error) {
	reply, err := operate(ctx, l, "", key, func(o *operation) (reply windowReply, err error) {
		var number int64
		reply.counts, number, err = o.countIn(key, n, r.Per)
		if reply.counted = r.Used(reply.counts) <= r.Limit; err != nil || reply.counted || n == 0 {
			return reply, err
		}
		reply.counts.Current -= n
		_, err = o.multi(o.add(key, r.Per, number, -n)...)
		return reply, err
	})
	return reply.counts, reply.counted && err == nil, err
}

// windowReply is the outcome of CountUnder.
type windowReply struct {
	counts  window.Counts
	counted bool
}

// countIn counts n in the current window, and returns the window's number.
func (o *operation) countIn(key string, n int64, per time.Duration) (c window.Counts, number int64, err error) {
	clock := o.l.clock
	if !clock.client && !clock.known.Load() {
		replies, err := o.do(command{"TIME"})
		if err != nil {
			return c, 0, err
		}
		if _, err = o.time(replies[0]); err != nil {
			return c, 0, err
		}
	}
	length := per.Microseconds()
	now := clock.now() + clock.ahead.Load()
	if !clock.client {
		// An estimate that is too late would count in a window that others may count in as well.
		// The offset includes the time that earlier requests took to arrive, up to late.
		now -= late.Microseconds()
	}
	number = now / length
	var undo []command
	for range 1 + maxRepeats {
		read := len(undo)
		commands := append(undo, command{"GET", o.windowKey(key, per, number)})
		if n > 0 {
			commands = append(undo, o.add(key, per, number, n)...)
		}
		commands = append(commands, command{"GET", o.windowKey(key, per, number-1)})
		last := len(commands) - 1
		results, err := o.multi(o.timed(commands...)...)
		if err != nil {
			return c, 0, err
		}
		now, err := o.time(results[len(results)-1])
		if err != nil {
			return c, 0, err
		}
		if now/length != number {
			undo = nil
			if n > 0 {
				undo = o.add(key, per, number, -n)
			}
			number = now / length
			continue
		}
		if c.Current, err = countOf(results[read]); err != nil {
			return c, 0, err
		}
		if c.Previous, err = countOf(results[last]); err != nil {
			return c, 0, err
		}
		c.Left = time.Duration(length-now%length) * time.Microsecond
		return c, number, nil
	}
	return c, 0, fmt.Errorf("the window of %v ended during each of %d requests", per, 1+maxRepeats)
}

// add returns the commands of a transaction that adds n to a count, which lasts until the end of
// the next window.
func (o *operation) add(key string, per time.Duration, number, n int64) []command {
	k := o.windowKey(key, per, number)
	return []command{{"INCRBY", k, n}, {"EXPIRE", k, int64(2*per/time.Second) + 1}}
}

func (o *operation) windowKey(key string, per time.Duration, number int64) string {
	return o.l.book + "window:" + strconv.FormatInt(per.Milliseconds(), 10) + ":" +
		strconv.FormatInt(number, 10) + ":" + key
}

func countOf(reply any) (int64, error) {
	n, err := redis.Int64(reply, nil)
	if err != nil && err != redis.ErrNil {
		return 0, fmt.Errorf("a count: %w", err)
	}
	return max(n, 0), nil // negative if the count had expired before n was taken back
}
