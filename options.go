package locker

// The options of an acquisition.

import (
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"time"

	"github.com/golockers/locker/internal/owner"
)

// Option configures an acquisition: [Lock], [TryLock], [Do], [TryDo], [LockAll], [DoAll], [Resume],
// [ResumeDo] or one by a [Keyed].
type Option func(*options)

type options struct {
	token     string
	hasToken  bool
	owner     string  // begins the token; empty: no label
	backoff   Backoff // nil: the default for the way in which Lock waits
	retry     bool
	keepAlive bool
	minHold   time.Duration
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

// Backoff returns the delay after the given attempt, counted from 1, was refused. Zero or less
// means no delay.
type Backoff func(attempt int) time.Duration

// WithBackoff sets the delay between the attempts of a caller that waits for a lock. The default,
// used if b is nil, starts at 1 to 2 milliseconds and doubles up to 25 to 50. On a [Watcher], once
// the subscription is live, the default starts again at 50 to 100 milliseconds and doubles up to
// 0.5 to 1 second. On a [Waiter] there is no polling and WithBackoff has no effect.
//
// Of the callers in a process that wait for the same lock only the first makes attempts, with its
// own backoff, and the others wait for it. If their Locker cannot be the key of a map, such as a
// struct that contains a function, each of them polls by itself.
func WithBackoff(b Backoff) Option { return func(o *options) { o.backoff = b } }

// WithRetry makes [Lock], [Do], [LockAll] and [DoAll] retry after backend errors, such as those
// of a server that restarts, until they have the lock or ctx ends. The delay between two tries
// grows from 25 to 50 milliseconds up to 0.5 to 1 second, and starts again after a try that took
// more than a second. When ctx ends, the error wraps ctx's error and the last backend error. All
// backend errors are retried, even one that persists, such as that of a wrong password, so give ctx
// a deadline. Invalid arguments are not retried. The callers of a process who retry for the same
// lock of the same Locker take turns: one tries at a time, and after a second the next one.
//
// Each try has a new token, so WithRetry cannot be combined with [WithToken], and a new place in
// the queue. WithRetry has no effect on [TryLock], [TryDo], [Resume] and [ResumeDo].
func WithRetry() Option { return func(o *options) { o.retry = true } }

// WithKeepAlive extends the lock in the background, every third of its ttl, until it is unlocked,
// detached or lost. [Do], [TryDo], [DoAll], [ResumeDo] and [Keyed] always do this. A failed
// extension is repeated until the lease's deadline. The keep-alive does not end with the context
// that acquired the lock.
func WithKeepAlive() Option { return func(o *options) { o.keepAlive = true } }

// WithMinHold keeps the lock for at least d from when it was acquired. An earlier Unlock does not
// release the lock but extends it until then. If the holder dies, the lock still ends with its ttl.
//
// This makes a job run once in a period. All replicas start it at about the same time with
// [TryDo]. One of them runs it, whatever the outcome, and the others are refused, even those that
// come after it has ended, and even if it was stopped because its process is shut down. Choose a d
// that is longer than the replicas may be apart, and shorter than the period: for a nightly job an
// hour is a good choice.
//
// If the extension fails, Unlock retries it for as long as an Unlock may take and then returns the
// error. The lock is not released even then, but it ends with its ttl. If d is too long for the
// backend, the acquisition returns [ErrInvalidTTL]. To find out, it makes one more request if d is
// longer than ttl; over a Locker that does not pass that request on, such as a cohort's, Unlock
// returns the error instead. WithMinHold has no effect if d <= 0, and none on [Resume] and
// [ResumeDo].
func WithMinHold(d time.Duration) Option { return func(o *options) { o.minHold = d } }

// WithMaxHold stops the keep-alive once the lock has been held for d, so that a holder that hangs
// blocks the others for at most d and one ttl. The default, used if d <= 0, is no limit: a function
// of [TryDo] that never returns then keeps all other replicas from running theirs, and nothing says
// so. Set it wherever a job could hang, to several times what it usually takes.
//
// When the lock ends, the context of the function is canceled with the cause [ErrNotHeld]. A function
// that does not heed its context runs on beside the next holder. An Observer gets [Overdue] when the
// keep-alive has stopped, and Lost when the lock ends.
func WithMaxHold(d time.Duration) Option { return func(o *options) { o.maxHold = d } }

// WithOwner makes the token begin with label and a slash, so that the token shows who holds the
// lock, for instance in [Info] and in the backend's own tools. The rest of the token is random as
// usual. A label is up to 900 bytes of UTF-8 without control characters; with any other the
// acquisition returns [ErrInvalidToken]. WithOwner has no effect if label is empty, and none
// beside [WithToken]. [Owned] does it for all acquisitions.
func WithOwner(label string) Option { return func(o *options) { o.owner = label } }

// WithToken sets the token of one acquisition, 1 to 1,024 bytes. The default is at least 128 random
// bits.
//
// The token is the owner: two acquisitions with the same token do not exclude each other, so do not
// use the name of a host or of a worker. Anyone who knows the token can extend or release the lock.
// After an acquisition that ended with an error, use a new token: the old one is released in the
// background for some seconds, and for longer while the backend does not answer.
func WithToken(token string) Option {
	return func(o *options) { o.token, o.hasToken = token, true }
}

// check returns an error if the options contradict each other, or one of them is invalid in itself.
func (o *options) check() error {
	switch {
	case o.hasToken && o.retry:
		return errors.New("WithRetry needs a new token for each try, so it cannot be combined with WithToken")
	case o.hasToken || o.owner == "":
		return nil
	}
	if err := owner.Check(o.owner); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidToken, err)
	}
	return nil
}

// exponential returns a Backoff that starts at first/2 to first and doubles up to limit/2 to limit.
func exponential(first, limit time.Duration) Backoff {
	return func(attempt int) time.Duration {
		d := limit
		if attempt < 32 { // beyond that the limit was reached long ago, and a shift could overflow
			d = min(first<<max(attempt-1, 0), limit)
		}
		return d/2 + mathrand.N(d/2+1)
	}
}

var (
	pollBackoff   = exponential(2*time.Millisecond, 50*time.Millisecond)
	safetyBackoff = exponential(100*time.Millisecond, time.Second)
	retryBackoff  = exponential(50*time.Millisecond, time.Second)
)
