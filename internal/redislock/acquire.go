package redislock

import (
	"context"

	"github.com/golockers/locker/internal/demand"
)

// attempt is the outcome of one attempt to acquire a lock.
type attempt struct {
	acquired bool
	isKept   bool // it was refused by a token whose process may keep the lock without using it

	mark string // of that token, if it is known
}

// refusedBy returns the outcome of an attempt that was refused by a lock's value.
func refusedBy(holder string) attempt {
	mark := demand.Mark(holder)
	return attempt{isKept: mark != "", mark: mark}
}

// attempted is the outcome of an attempt that was not refused.
func attempted(acquired bool, err error) (attempt, error) { return attempt{acquired: acquired}, err }

// maxAsked limits how often an Acquire asks for a lock if another token takes the lock each time
// after it was given up.
const maxAsked = 3

// askAfter asks the owner of the lock that refused attempt a, made by s, to give the lock up if it
// is not in use. It reports whether the lock may be free now, so that another attempt has to be
// made. asked is how many attempts of the same call have asked before.
func (locks *Locks) askAfter(ctx context.Context, keys Keys, s *Sending, a attempt, asked int) (
	isFree bool, err error) {
	// If the request was sent more than once, an earlier copy may yet arrive, so there must be no
	// other attempt.
	if s.Sends() > 1 || asked == maxAsked {
		return false, nil
	}
	return locks.Ask(ctx, keys, a.mark)
}
