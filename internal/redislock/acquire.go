package redislock

import (
	"context"

	"github.com/golockers/locker/internal/demand"
)

// attempt is the outcome of one attempt to acquire a lock.
type attempt struct {
	acquired bool
	isKept   bool // it was refused by the token of a process that may only keep the lock

	mark string // of that token, if it is known
}

// refusedBy returns the outcome of an attempt that was refused by a lock's value.
func refusedBy(holder string) attempt {
	mark := demand.Mark(holder)
	return attempt{isKept: mark != "", mark: mark}
}

// attempted is the outcome of an attempt that was not refused.
func attempted(acquired bool, err error) (attempt, error) { return attempt{acquired: acquired}, err }

// maxAsked is how often an Acquire asks for a lock that is given up for it each time and then taken
// by another token.
const maxAsked = 3

// askAfter asks the process that may only keep a lock to give it up, after it has refused an
// attempt a, made by s. It reports whether the lock may be free now, and so another attempt is to
// be made. asked is how many attempts of the same call have asked before.
func (ws *Waiters) askAfter(ctx context.Context, keys Keys, s *Sending, a attempt, asked int) (
	isFree bool, err error) {
	// Only if its request was sent once, there is certainly none that another attempt must wait for.
	if s.Sends() > 1 || asked == maxAsked {
		return false, nil
	}
	return ws.Ask(ctx, keys, a.mark)
}
