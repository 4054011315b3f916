package locker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/golockers/locker/internal/cleanup"
)

// Leases are the leases of several locks, sorted by key. See [LockAll].
type Leases []*Lease

// LockAll takes the locks of all keys, each for ttl, or none of them. It waits for one after the
// other, in sorted order, so callers whose keys overlap do not deadlock. Meanwhile it keeps alive
// the locks that it has taken, so when LockAll returns, each has about two thirds of its ttl
// left, or more. An empty list is an error, and so is a duplicate key.
//
// The other errors are those of [Lock]. After an error LockAll releases what it had taken, in the
// background if that takes longer than half a second. If one of the locks is lost while LockAll waits for the next, that is an error as well, but not
// [ErrNotHeld]; with [WithRetry] LockAll starts again. The times of [WithMinHold] and [WithMaxHold]
// count from when all the locks are held.
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
	keys = slices.Sorted(slices.Values(keys))
	behind, _, _ := reveal(l)
	for i, key := range keys {
		err := checkKey(l, key)
		switch {
		case err == nil && i > 0 && key == keys[i-1]:
			err = errors.New("duplicate key")
		case err == nil && isCarried(ctx, behind, key, o.token):
			err = ErrDeadlock
		}
		if err != nil {
			return nil, wrap(op, key, err)
		}
	}
	for {
		leases, err := lockInTurn(ctx, op, l, keys, ttl, o)
		if err == nil || !o.retry || ctx.Err() != nil || !errors.As(err, new(*lostError)) {
			return leases, err
		}
	}
}

// lockInTurn takes the locks of keys one after the other.
func lockInTurn(ctx context.Context, op string, l Locker, keys []string, ttl time.Duration, o options) (
	_ Leases, err error) {
	leases := make(Leases, 0, len(keys))
	defer func() {
		if len(leases) < len(keys) || err != nil { // an error, or a panic of the Locker
			leases.surrender(ctx)
		}
	}()
	each := o
	each.keepAlive, each.maxHold = true, 0
	for _, key := range keys {
		waitCtx, cancel := leases.Context(ctx)
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

// surrenderWait is how long an error of LockAll is held back until the locks are released.
const surrenderWait = 500 * time.Millisecond

// surrender releases locks under which nothing has been done. What takes longer than a moment goes on
// in the background, until it is certain.
func (ls Leases) surrender(ctx context.Context) {
	var releases sync.WaitGroup
	for _, lease := range slices.Backward(ls) {
		lease.setHold(0, 0)
		releases.Add(1)
		first := sync.OnceFunc(releases.Done)
		if !cleanup.Start(ctx, lease.locker, cleanup.Window, func(ctx context.Context) bool {
			defer first() // also if Unlock panics
			err := lease.Unlock(ctx)
			return err == nil || errors.Is(err, ErrNotHeld)
		}) {
			_ = lease.Unlock(ctx)
			first()
		}
	}
	all := make(chan struct{})
	go func() {
		releases.Wait()
		close(all)
	}()
	timer := time.NewTimer(surrenderWait)
	defer timer.Stop()
	select {
	case <-all:
	case <-timer.C:
	}
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
func (ls Leases) Unlock(ctx context.Context) error {
	errs := make([]error, len(ls))
	var rest sync.WaitGroup
	for i, lease := range slices.Backward(ls) {
		errs[i] = lease.Unlock(ctx)
		if errs[i] != nil { // each of the others may take as long
			for i, lease := range ls[:i] {
				rest.Go(func() { errs[i] = lease.Unlock(ctx) })
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

// Context is [Lease.Context] for several leases. The context is canceled when any of them is lost.
func (ls Leases) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	if len(ls) == 0 { // there is none to carry
		return context.WithCancel(ctx)
	}
	inner, cancel := context.WithCancelCause(ctx)
	c := &leaseContext{Context: inner, cancel: cancel, leases: ls}
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
