package locker

import (
	"math/rand/v2"
	"time"
)

// Option adjusts [Lock], [TryLock], [Do] or [Resume].
type Option func(*options)

type options struct {
	token     string
	hasToken  bool
	backoff   Backoff // nil: the default of the way in which Lock waits
	keepAlive bool
	maxHold   time.Duration
}

func apply(opts []Option) options {
	if len(opts) == 0 {
		return options{}
	}
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// Backoff says how long a waiter rests after its attempt-th refusal, counted from 1. A duration of 0 or
// less is no rest. A nil Backoff stands for the default.
type Backoff func(attempt int) time.Duration

// WithBackoff sets how long [Lock] and [Do] rest between attempts when nothing wakes the waiter: always on
// a plain [Locker], and between safety polls on a [Watcher]. It has no meaning where a [Waiter]'s line is
// used. Without it a waiter rests between 1 and 2 ms at first, doubling up to between 25 and 50 ms; on a
// Watcher between 50 and 100 ms at first, doubling up to between 0.5 and 1 s.
func WithBackoff(b Backoff) Option { return func(o *options) { o.backoff = b } }

// WithKeepAlive extends the lock in the background, every third of its ttl, until it is unlocked, detached
// or lost. [Do] always does. A single failed extension is not loss: keep-alive tries again until the
// lease's deadline. It does not end with the context that acquired the lock.
func WithKeepAlive() Option { return func(o *options) { o.keepAlive = true } }

// WithMaxHold stops the keep-alive this long after the lock was acquired: a holder that hangs then blocks
// others no longer than this and one ttl more. 0 or less is no limit, and so is the default.
func WithMaxHold(d time.Duration) Option { return func(o *options) { o.maxHold = d } }

// WithToken uses the caller's own token, of 1 to 1,024 bytes, for one acquisition; otherwise it is 128
// random bits or more. The token is the owner: two acquisitions with equal tokens do not exclude each other,
// so the name of a host or a worker is not one. Who knows the token can extend and release the lock. After
// an acquisition that ended in an error the token is released in the background for some seconds, so take a
// new one.
func WithToken(token string) Option {
	return func(o *options) { o.token, o.hasToken = token, true }
}

// exponential rests between first/2 and first at first, doubling up to between limit/2 and limit.
func exponential(first, limit time.Duration) Backoff {
	return func(attempt int) time.Duration {
		d := limit
		if attempt < 32 { // beyond that a shift could overflow, and the limit was reached long ago
			d = min(first<<max(attempt-1, 0), limit)
		}
		return d/2 + rand.N(d/2+1)
	}
}

var (
	pollBackoff   = exponential(2*time.Millisecond, 50*time.Millisecond)
	safetyBackoff = exponential(100*time.Millisecond, time.Second)
)
