package redigo

import (
	"fmt"

	"github.com/gomodule/redigo/redis"
)

// seeded is the least number that a counter of fencing numbers may have, a time in 2001: it starts
// at the server's time in microseconds. If it has less, an INCR has made it after a loss.
const seeded = 1e15

// fence returns the next fencing number if token holds the lock, and 0 otherwise.
func (o *operation) fence(token string) (uint64, error) {
	number, isHolder, err := o.count(token)
	if number < seeded {
		number = 0
	}
	for range maxRepeats {
		if err != nil || number > 0 {
			break
		}
		number, isHolder, err = o.seed(token)
	}
	switch {
	case err != nil:
		return 0, err
	case number == 0:
		return 0, errChanged
	case !isHolder:
		return 0, nil
	}
	return number, nil
}

// count increments the counter after some other commands, and reports whether token holds the lock
// at that moment: a later holder gets a greater number. If a watched key has changed, the number is
// 0.
func (o *operation) count(token string, before ...command) (number uint64, isHolder bool, err error) {
	results, err := o.multi(o.timed(append(before, command{"INCR", o.counter()}, command{"GET", o.key})...)...)
	if err != nil || results == nil {
		return 0, false, err
	}
	now, err := o.time(results[len(results)-1])
	if err != nil {
		return 0, false, err
	}
	n, err := redis.Int64(results[len(before)], nil)
	if err != nil {
		return 0, false, fmt.Errorf("INCR: %w", err)
	}
	number = uint64(max(n, 0)) // negative: it was created by other means
	held, exists, err := get(results[len(before)+1])
	return number, exists && !held.expired(now) && held.ownedBy(token), err
}

// seed is count, but first sets a counter that was lost to the time, which was read after the
// loss and is therefore greater than all numbers that were returned before it. (If the server's
// clock is before 2001, each number is one more than the last, or the time.) Of several that do
// so at once only one may succeed: each changes the mark that all of them watch. They do not
// watch the counter, which others may be incrementing.
func (o *operation) seed(token string) (number uint64, isHolder bool, err error) {
	mark := o.l.book + "seed"
	replies, err := o.do(o.timed(command{"WATCH", mark}, command{"GET", o.counter()})...)
	if err != nil {
		return 0, false, err
	}
	now, err := o.time(replies[len(replies)-1])
	if err != nil {
		return 0, false, err
	}
	last, err := redis.Int64(replies[1], nil)
	if err != nil && err != redis.ErrNil {
		return 0, false, fmt.Errorf("GET: %w", err)
	}
	if last >= seeded {
		number, isHolder, err = o.count(token)
		if number < seeded { // the counter was lost again since
			number = 0
		}
		return number, isHolder, err
	}
	return o.count(token,
		command{"GETSET", o.counter(), max(last, now-1)}, // SET, of a counter only
		command{"SETEX", mark, 60, now}, command{"DEL", mark})
}

func (o *operation) counter() string { return o.l.book + "fence" }
