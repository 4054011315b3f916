package locker

import (
	"math/rand/v2"
	"time"
)

// Option configures [Lock], [TryLock], [Do] or [Resume].
type Option func(*options)

type options struct {
	token     string
	hasToken  bool
	backoff   Backoff // nil: the default for the way in which Lock waits
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

// Backoff returns the delay after a waiter's attempt-th refusal, counted from 1. Zero or less is no delay.
type Backoff func(attempt int) time.Duration

// WithBackoff sets the delay between the attempts of [Lock] and [Do]. The default, used if b is nil, starts
// at 1 to 2 milliseconds and doubles up to 25 to 50. On a [Watcher], once the subscription is live, the default
// starts again at 50 to 100 milliseconds and doubles up to 0.5 to 1 second. On a [Waiter] there is no polling
// and WithBackoff has no effect.
func WithBackoff(b Backoff) Option { return func(o *options) { o.backoff = b } }

// WithKeepAlive extends the lock in the background, every third of its ttl, until it is unlocked, detached or
// lost. [Do] always does this. A failed extension is repeated until the lease's deadline. The keep-alive does
// not end with the context that acquired the lock.
func WithKeepAlive() Option { return func(o *options) { o.keepAlive = true } }

// WithMaxHold stops the keep-alive once the lock has been held for d, so that a holder that hangs blocks the
// others for at most d and one ttl. The default, used if d <= 0, is no limit.
func WithMaxHold(d time.Duration) Option { return func(o *options) { o.maxHold = d } }

// WithToken sets the token of one acquisition, 1 to 1,024 bytes. The default is at least 128 random bits.
//
// The token is the owner: two acquisitions with the same token do not exclude each other, so do not
// use the name of a host or of a worker. Anyone who knows the token can extend or release the lock.
// After an acquisition that ended with an error, use a new token: the old one is released in the
// background for some seconds.
func WithToken(token string) Option {
	return func(o *options) { o.token, o.hasToken = token, true }
}

// exponential returns a Backoff that starts at first/2 to first and doubles up to limit/2 to limit.
func exponential(first, limit time.Duration) Backoff {
	return func(attempt int) time.Duration {
		d := limit
		if attempt < 32 { // beyond that the limit was reached long ago, and a shift could overflow
			d = min(first<<max(attempt-1, 0), limit)
		}
		return d/2 + rand.N(d/2+1)
	}
}

var (
	pollBackoff   = exponential(2*time.Millisecond, 50*time.Millisecond)
	safetyBackoff = exponential(100*time.Millisecond, time.Second)
)
