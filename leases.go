package locker

// Several locks at once.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/golockers/locker/internal/undo"
)

// Leases are the leases of several locks, sorted by key, one for each. See [LockAll].
type Leases []*Lease

// LockAll takes the locks of all keys, each for ttl, or none of them. It waits for one after the
// other, in sorted order, so callers whose keys overlap do not deadlock. Meanwhile it keeps alive
// the locks that it has taken, so when LockAll returns, each has about two thirds of its ttl
// left, or more. A key that is named twice is taken once, since a list that is made from data often
// names one twice, such as the accounts of a transfer. An empty list is an error.
//
// The other errors are those of [Lock]. After an error LockAll releases what it had taken, in the
// background if that takes longer than half a second. That goes on for at most ttl or a minute, and
// what could not be released ends with its ttl. If one of the locks is lost while LockAll waits for the next, that
// is an error as well, but not [ErrNotHeld]; with [WithRetry] LockAll starts again, after a delay.
// The times of [WithMinHold] and [WithMaxHold] count from when all the locks are held.
func LockAll(ctx context.Context, l Locker, keys []string, ttl time.Duration, opts ...Option) (Leases, error) {
	return lockAll(ctx, "lock all", l, keys, ttl, apply(opts))
}

// DoAll is [Do] for the locks of all keys: it takes them as [LockAll] does, and runs fn while it
// holds them. The context of fn is that of [Leases.Context].
func DoAll(ctx context.Context, l Locker, keys []string, ttl time.Duration, fn func(context.Context) error,
	opts ...Option) error {
	const op = "do all"
	if fn == nil {
		return fmt.Errorf("locker: %s %.100q: %w", op, keys, errNilFunc)
	}
	o := apply(opts)
	o.keepAlive = true
	leases, err := lockAll(ctx, op, l, keys, ttl, o)
	if err != nil {
		return err
	}
	return run(ctx, leases, fn)
}

func lockAll(ctx context.Context, op string, l Locker, keys []string, ttl time.Duration, o options) (
	Leases, error) {
	if len(keys) == 0 {
		return nil, fmt.Errorf("locker: %s: no keys", op)
	}
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	behind, _, _ := reveal(l)
	for _, key := range keys {
		err := checkKey(l, key)
		if err == nil && isCarried(ctx, behind, key, o.token) {
			err = ErrDeadlock
		}
		if err != nil {
			return nil, wrap(op, key, err)
		}
	}
	for losses := 1; ; losses++ {
		leases, err := lockInTurn(ctx, op, l, keys, ttl, o)
		if err == nil || !o.retry || ctx.Err() != nil || !errors.As(err, new(*lostError)) {
			return leases, err
		}
		sleep(ctx, retryBackoff(losses)) // if ctx ends, the next try fails with its error
	}
}

// lockInTurn takes the locks of keys one after the other.
func lockInTurn(ctx context.Context, op string, l Locker, keys []string, ttl time.Duration, o options) (
	_ Leases, err error) {
	leases := make(Leases, 0, len(keys))
	defer func() {
		if len(leases) < len(keys) || err != nil { // an error, or a panic of the Locker or the Observer
			leases.abandon(ctx, ttl)
		}
	}()
	each := o
	each.keepAlive, each.maxHold = true, 0
	for _, key := range keys {
		waitCtx, cancel := leases.context(ctx, nil) // FromContext is for what holds all of them
		lease, err := lock(waitCtx, op, l, key, ttl, each, true, false)
		cancel()
		if err == nil {
			leases = append(leases, lease)
		}
		if lost := leases.firstError(); lost != nil {
			return nil, wrap(op, key, &lostError{lost})
		}
		if err != nil {
			return nil, err
		}
	}
	for _, lease := range leases {
		lease.setHold(o.minHold, o.maxHold)
		if !o.keepAlive {
			lease.endKeepAlive()
		}
	}
	return leases, nil
}

// lostError hides that it is ErrNotHeld: nothing has been done yet that may have overlapped with
// another holder.
type lostError struct{ lost error }

func (e *lostError) Error() string { return "while waiting for the lock: " + e.lost.Error() }

// firstError returns the error of the first lease that is lost.
func (ls Leases) firstError() error {
	for _, lease := range ls {
		if err := lease.Err(); err != nil {
			return err
		}
	}
	return nil
}

// Unlock releases the locks in reverse order and joins the errors of [Lease.Unlock]. An error
// does not keep it from releasing the rest. If the backend hangs, Unlock takes about twice as
// long as for one lease.
func (ls Leases) Unlock(ctx context.Context) error { return ls.unlock(ctx, (*Lease).Unlock) }

// unlock is Unlock with another method for each lease.
func (ls Leases) unlock(ctx context.Context, unlock func(*Lease, context.Context) error) error {
	errs := make([]error, len(ls))
	var rest sync.WaitGroup
	for i, lease := range slices.Backward(ls) {
		errs[i] = unlock(lease, ctx)
		if errs[i] != nil { // each of the others may take as long
			for i, lease := range ls[:i] {
				errs[i] = wrap("unlock", lease.Key(), errNoReturn)
				rest.Go(func() { errs[i] = unlock(lease, ctx) })
			}
			break
		}
	}
	rest.Wait()
	if len(ls) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// abandonTimeout is how long a failed LockAll waits for the locks to be free.
const abandonTimeout = 500 * time.Millisecond

var errUnreleased = errors.New("some of the locks could not be released")

// abandon releases locks under which nothing has been done, in the background if that takes long.
func (ls Leases) abandon(ctx context.Context, ttl time.Duration) {
	if len(ls) == 0 {
		return
	}
	for _, lease := range ls {
		lease.setHold(0, 0)
		lease.endKeepAlive()
	}
	tried := make(chan struct{})
	once := sync.OnceFunc(func() { close(tried) })
	rest := slices.Clone(ls)
	if !undo.Start(ctx, undo.Work{Owner: ls[0].locker, Window: ttl, Attempt: func(ctx context.Context) (bool, error) {
		defer once()
		if rest = rest.release(ctx); len(rest) > 0 {
			return false, errUnreleased
		}
		return true, nil
	}}) {
		return // too many: these end with their ttl
	}
	timer := time.NewTimer(abandonTimeout)
	defer timer.Stop()
	select {
	case <-tried:
	case <-timer.C:
	}
}

// release tries to release the locks in reverse order, and returns those that it could not. After
// the first of them, it tries the others at once, since each may take as long.
func (ls Leases) release(ctx context.Context) (rest Leases) {
	failed := make([]bool, len(ls))
	var others sync.WaitGroup
	for i, lease := range slices.Backward(ls) {
		if failed[i] = !lease.release(ctx); failed[i] {
			for i, lease := range ls[:i] {
				failed[i] = true // unless release returns
				others.Go(func() { failed[i] = !lease.release(ctx) })
			}
			break
		}
	}
	others.Wait()
	for i, lease := range ls {
		if failed[i] {
			rest = append(rest, lease)
		}
	}
	return rest
}

// Context is [Lease.Context] for several leases. The context is canceled when any of them is lost.
func (ls Leases) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	return ls.context(ctx, ls)
}

// context returns a copy of ctx that is canceled when any of ls is lost, and that carries leases.
func (ls Leases) context(ctx context.Context, carried Leases) (context.Context, context.CancelFunc) {
	inner, cancel := context.WithCancelCause(ctx)
	c := &leaseContext{Context: inner, cancel: cancel, leases: carried}
	for _, lease := range ls {
		lease.bind(c)
	}
	return c, func() {
		for _, lease := range ls {
			lease.unbind(c)
		}
		cancel(nil)
	}
}
