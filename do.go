package locker

// The functions that run others while they hold a lock.

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/golockers/locker/internal/leasectx"
)

// Do runs fn while holding the lock of key. It waits for the lock as [Lock] does, keeps it alive
// until fn returns (see [WithKeepAlive] and [WithMaxHold]), and unlocks it however fn ends: by a
// return, a panic or [runtime.Goexit]. If several processes call Do, all of them run fn, one after
// the other. To run it in only one of them, use [TryDo].
//
// The context of fn is that of [Lease.Context]: it is canceled with the cause [ErrNotHeld] when
// the lock is lost, and [FromContext] returns its lease. The error of Do joins fn's error and
// Unlock's. The latter is ErrNotHeld if the lock was lost: what fn did may then have overlapped
// with another holder. If the lock cannot be taken, fn does not run and the error is that of Lock,
// never ErrNotHeld.
//
// To leave the lock behind, fn calls Detach on the lease that [FromContext] returns. Do then does
// not unlock it, and returns fn's error.
func Do(ctx context.Context, l Locker, key string, ttl time.Duration, fn func(context.Context) error,
	opts ...Option) error {
	if fn == nil {
		return wrap("do", key, errNilFunc)
	}
	o := apply(opts)
	o.keepAlive = true
	lease, err := lock(ctx, "do", l, key, ttl, o, true, false)
	if err != nil {
		return err
	}
	return run(ctx, Leases{lease}, fn)
}

// TryDo runs fn as [Do] does if the lock is free. If another token holds the lock, or is next in
// the queue for it, TryDo returns (false, nil). ran reports whether fn was called; if it was not, a
// non-nil error is that of [TryLock].
//
// The lock is free again when fn has returned, so another process that tries a moment later runs fn
// again. To run fn once in a period, use [WithMinHold]. If fn could hang, use [WithMaxHold]: without
// it the others would be refused for as long as fn does not return.
func TryDo(ctx context.Context, l Locker, key string, ttl time.Duration, fn func(context.Context) error,
	opts ...Option) (ran bool, err error) {
	const op = "try do"
	if fn == nil {
		return false, wrap(op, key, errNilFunc)
	}
	o := apply(opts)
	o.keepAlive = true
	lease, err := lock(ctx, op, l, key, ttl, o, false, false)
	switch {
	case errors.Is(err, ErrHeld):
		return false, nil
	case err != nil:
		return false, err
	}
	return true, run(ctx, Leases{lease}, fn)
}

// ResumeDo takes over a lock that another process has left behind, as [Resume] does, and runs fn
// under it as [Do] does. If Resume fails, ResumeDo returns its error and does not call fn.
func ResumeDo(ctx context.Context, l Locker, key, token string, ttl time.Duration, fn func(context.Context) error,
	opts ...Option) error {
	const op = "resume and do"
	if fn == nil {
		return wrap(op, key, errNilFunc)
	}
	o := apply(opts)
	o.keepAlive = true
	lease, err := resume(ctx, op, l, key, token, ttl, o)
	if err != nil {
		return err
	}
	return run(ctx, Leases{lease}, fn)
}

var errNilFunc = errors.New("nil function")

// run calls fn under leases and unlocks those that fn has not detached, however it ends.
func run(ctx context.Context, leases Leases, fn func(context.Context) error) (err error) {
	fnCtx, cancel := leases.Context(ctx)
	defer func() {
		cancel()
		switch unlockErr := leases.unlock(ctx, (*Lease).unlockUnlessDetached); {
		case err == nil:
			err = unlockErr
		case unlockErr != nil:
			err = fmt.Errorf("%w; %w", err, unlockErr)
		}
	}()
	return fn(fnCtx)
}

// FromContext returns the lease that ctx carries, or nil if it carries none. The context of the
// function of [Do], [TryDo] or [ResumeDo] carries its lease, and so do contexts from
// [Lease.Context]. Those of [DoAll] and [Leases.Context] carry all their leases, of which
// FromContext returns the first. If leases are nested, it returns the innermost.
//
// While one of these leases is held, [Lock], [Do], [TryDo], [LockAll] and [DoAll] with such a
// context return [ErrDeadlock] for its key on the same Locker: the same value, observed or not, of a
// type that can be compared. A Locker that wraps it, such as a cohort, is another one. A goroutine that is to wait for
// that lock needs a context that is not derived from this one.
func FromContext(ctx context.Context) *Lease {
	if c := carriedBy(ctx); c != nil {
		return c.leases[0]
	}
	return nil
}

// leaseContext is a context that ends with the loss of a lease. It carries leases, or none.
type leaseContext struct {
	context.Context // ends with the caller's context, and with the loss of a lease
	cancel          context.CancelCauseFunc
	leases          Leases
}

// Value implements [context.Context].
func (c *leaseContext) Value(key any) any {
	if key == (leasectx.Key{}) && len(c.leases) > 0 {
		return c
	}
	return c.Context.Value(key)
}

// Carries implements [leasectx.Carrier].
func (c *leaseContext) Carries(l any, key string) bool {
	inner, _, _ := reveal(l.(Locker))
	return isCarried(c, inner, key, "")
}

func carriedBy(ctx context.Context) *leaseContext {
	c, _ := ctx.Value(leasectx.Key{}).(*leaseContext)
	return c
}

// isCarried reports whether ctx carries a lease that holds the lock of key on l, under another
// token: a caller that waits for the lock with ctx would wait for itself.
func isCarried(ctx context.Context, l Locker, key, token string) bool {
	for c := carriedBy(ctx); c != nil; c = carriedBy(c.Context) {
		for _, lease := range c.leases {
			if lease.Key() == key && lease.Token() != token && isSame(lease.locker, l) && lease.isHeldNow() {
				return true
			}
		}
	}
	return false
}

// isSame reports whether two Lockers are the same one. Those that cannot be compared are not.
func isSame(a, b Locker) bool {
	return reflect.TypeOf(a) == reflect.TypeOf(b) && reflect.ValueOf(a).Comparable() && a == b
}

// Context returns a copy of ctx that is canceled with the cause [ErrNotHeld] when the lease is
// lost, at the same moment that [Lease.Lost] is closed. Unlock and Detach do not cancel it. Call
// the CancelFunc when the context is no longer needed. The context carries the lease; see
// [FromContext].
func (l *Lease) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	return Leases{l}.Context(ctx)
}
