package redislock

import (
	"context"

	"github.com/golockers/locker/internal/demand"
)

// Attempt is the outcome of one attempt to acquire a lock.
type Attempt struct {
	Acquired bool
	IsKept   bool // it was refused by the token of a process that may only keep the lock

	mark string // of that token, if it is known
}

// RefusedBy returns the outcome of an attempt that was refused by a lock's value.
func RefusedBy(holder string) Attempt {
	mark := demand.Mark(holder)
	return Attempt{IsKept: mark != "", mark: mark}
}

// maxAsked is how often Acquire asks for a lock that is given up for it each time and then taken by
// another token.
const maxAsked = 3

// Acquire makes an attempt for token, as [Call] does. If it is refused by a process that may only keep
// the lock, Acquire asks that process for it and makes another attempt.
func (ws *Waiters) Acquire(ctx context.Context, keys Keys, token string,
	attempt func(s *Sending) (Attempt, error)) (acquired bool, err error) {
	for asked := 0; ; asked++ {
		s := NewSending(ctx, token)
		a, err := Call(&ws.Caller, s, func() (Attempt, error) { return attempt(s) })
		// Only if its request was sent once, there is certainly none that another attempt must wait for.
		if err != nil || !a.IsKept || s.Sends() > 1 || asked == maxAsked {
			return a.Acquired, err
		}
		if isFree, err := ws.Ask(ctx, keys, a.mark); !isFree {
			return false, err
		}
	}
}
