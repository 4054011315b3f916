package locker

// The functions that take a lock and return a lease. wait.go and poll.go have how they wait.

import (
	"context"
	"fmt"
	"time"

	"github.com/golockers/locker/internal/misuse"
)

// TryLock makes one attempt to take the lock of key for ttl. If another token holds the lock, or is
// next in the queue for it, the error is [ErrHeld]. Invalid arguments are [ErrInvalidKey],
// [ErrInvalidTTL] or [ErrInvalidToken].
//
// Any other error, from the backend or from ctx, means that the outcome is unknown. TryLock then
// releases the lock, once before it returns (for at most 100 milliseconds), and then in the background
// until it is certain that the token does not hold it, for at most ttl or a minute. If the backend does
// not answer for that long, the lock ends with its ttl, and so it does beyond 256 of these cleanups for
// a Locker at a time and 4,096 in the process. An
// Observer hears of both: see [NotCleanedUp]. An answer that arrives after ttl has passed counts as
// such an error.
//
// ctx bounds the attempt, not the lease. If the backend hangs, TryLock may return up to one I/O
// timeout of the client after ctx has ended, unless ctx's deadline is nearer than that timeout.
// Errors wrap ctx.Err, not its cause.
func TryLock(ctx context.Context, l Locker, key string, ttl time.Duration, opts ...Option) (*Lease, error) {
	return lock(ctx, "try lock", l, key, ttl, apply(opts), false, true)
}

// Lock takes the lock of key for ttl, and waits for it for as long as ctx allows. Callers that wait
// for a lock of the same Locker are served in the order in which they came. On a [Waiter] their
// process takes its turn in the backend's queue. Elsewhere the first of them polls (see
// [WithBackoff]) and the others make no request; on a [Watcher] a release wakes it, and once the
// subscription is live it polls less often. A subscription that fails or hangs does not delay Lock.
//
// The errors are those of [TryLock], with one difference: if ctx ends after the lock was found to be
// held, the error wraps both ctx's error and [ErrHeld]. A backend error is immediately that of all
// callers that wait. To survive a server restart, use [WithRetry].
//
// If ctx carries a lease of the same lock (see [FromContext]), Lock would wait for its own caller.
// It returns [ErrDeadlock] instead.
func Lock(ctx context.Context, l Locker, key string, ttl time.Duration, opts ...Option) (*Lease, error) {
	return lock(ctx, "lock", l, key, ttl, apply(opts), true, false)
}

// Resume takes over a lock that token holds, left by another process or by an earlier run of this
// one, and extends it to ttl. If token does not hold the lock, the error is [ErrNotHeld]. After a
// backend error the lock may or may not have been extended, or may yet be. Resume may be called
// again, but not with a longer ttl: the earlier request may yet arrive and shorten the lock to
// its own ttl. Only [WithKeepAlive] and [WithMaxHold] apply, and the latter counts from now.
func Resume(ctx context.Context, l Locker, key, token string, ttl time.Duration, opts ...Option) (*Lease, error) {
	return resume(ctx, "resume", l, key, token, ttl, apply(opts))
}

func resume(ctx context.Context, op string, l Locker, key, token string, ttl time.Duration, o options) (*Lease, error) {
	l, observer, err := reveal(l)
	if err == nil {
		err = check(ctx, l, key, token, ttl, &options{})
	}
	if err != nil {
		return nil, wrap(op, key, err)
	}
	_, obs := observe(ctx, observer, key)
	returned := false
	defer obs.endUnless(&returned)
	start := time.Now()
	extended, err := l.Extend(ctx, key, token, ttl)
	returned = true
	deadline := start.Add(ttl)
	switch {
	case err != nil:
	case !extended:
		err = ErrNotHeld
	case !time.Now().Before(deadline):
		err = fmt.Errorf("the reply came after the ttl of %v had passed: %w", ttl, ErrNotHeld)
	}
	if err != nil {
		err = wrap(op, key, err)
		obs.end(err)
		return nil, err
	}
	obs.hold()
	o.minHold = 0
	return newLease(ctx, obs, l, key, token, ttl, deadline, o), nil
}

// lock checks the arguments, acquires the lock and makes the lease. Only a caller that waits, or
// that would mistake itself for another process, is refused a lock that ctx carries.
func lock(ctx context.Context, op string, l Locker, key string, ttl time.Duration, o options,
	wait, carried bool) (*Lease, error) {
	if owned, ok := l.(*observed); ok && o.owner == "" {
		o.owner = owned.owner
	}
	l, observer, err := reveal(l)
	a := acquisition{locker: l, key: key, token: o.newToken(), ttl: ttl, opts: o}
	if err == nil {
		err = check(ctx, l, key, a.token, ttl, &o)
	}
	if err == nil && !carried && isCarried(ctx, l, key, a.token) {
		err = ErrDeadlock
	}
	if err != nil {
		return nil, wrap(op, key, err)
	}
	acquireCtx, obs := observe(ctx, observer, key)
	a.obs = obs
	returned := false
	defer obs.endUnless(&returned)
	if wait {
		err = a.persist(acquireCtx)
	} else {
		err = a.try(acquireCtx)
	}
	returned = true
	if err != nil {
		err = wrap(op, key, err)
		obs.end(err)
		return nil, err
	}
	reported := false
	defer func() {
		if !reported { // the Observer has panicked: there will be no lease
			a.cleanUp(ctx, nil)
		}
	}()
	obs.hold()
	reported = true
	return newLease(ctx, obs, l, key, a.token, ttl, a.deadline, o), nil
}

var errNilLocker = misuse.New("nil Locker")

const maxName = 1024 // bytes, of a key and of a token

// check returns what is wrong with the arguments, or ctx's error. A Locker relies on it.
func check(ctx context.Context, l Locker, key, token string, ttl time.Duration, o *options) error {
	if err := checkKey(l, key); err != nil {
		return err
	}
	if err := o.check(); err != nil {
		return err
	}
	switch {
	case token == "":
		return fmt.Errorf("%w: empty", ErrInvalidToken)
	case len(token) > maxName:
		return fmt.Errorf("%w: %d bytes, more than %d", ErrInvalidToken, len(token), maxName)
	}
	if err := checkTTL(ttl); err != nil {
		return err
	}
	return ctx.Err()
}

func checkKey(l Locker, key string) error {
	switch {
	case l == nil:
		return errNilLocker
	case key == "":
		return fmt.Errorf("%w: empty", ErrInvalidKey)
	case len(key) > maxName:
		return fmt.Errorf("%w: %d bytes, more than %d", ErrInvalidKey, len(key), maxName)
	}
	return nil
}

func checkTTL(ttl time.Duration) error {
	if ttl < time.Millisecond {
		return fmt.Errorf("%w: %v is less than a millisecond", ErrInvalidTTL, ttl)
	}
	return nil
}

// wrap gives every error of this package its form. A key that is too long is cut.
func wrap(op, key string, err error) error {
	if len(key) > maxName {
		return fmt.Errorf("locker: %s %q…: %w", op, key[:32], err)
	}
	return fmt.Errorf("locker: %s %q: %w", op, key, err)
}
