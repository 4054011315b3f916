package singleflight

import (
	"context"
	"errors"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/lazyctx"
)

// This file has the step of the lock: one attempt to take it. wait.go has what follows if another
// process has it.

// terms are those on which a load calls the source.
type terms struct {
	lease   *locker.Lease // nil: without the lock, because of why
	why     error
	how     storing
	since   time.Time // the load shares a failure elsewhere after that; zero: none
	version uint64    // of the load in the cache; 0: it keeps none
}

// lock returns the terms on which a load goes on, or what it has found, or the error that ends it.
// readErr is why the cache could not be read.
func (l *Loader[V]) lock(ctx context.Context, key string, m *member[V], readErr error) (
	t terms, found looked[V], err error) {
	switch {
	case readErr != nil:
		// The lock would be of no use: a process that is refused it could not see the value.
		t, err = l.withoutLock(ctx, key, readErr, afterReadError(readErr))
		return t, found, err
	case l.unstored.has(key):
		// Others would wait in vain for a value that the cache does not take.
		return terms{why: errUnstored, how: addIfPossible}, found, nil
	}
	began := time.Now()
	m.awaitStart()
	lease, err := l.tryLock(ctx, key)
	if errors.Is(err, locker.ErrHeld) {
		m.leave()
		return l.waitForValue(ctx, key, began)
	}
	t, err = l.withLock(ctx, key, began, lease, err)
	return t, found, err
}

// withLock returns the terms of a load under the lock that tryLock returned, or without it if that
// failed. The load shares a failure elsewhere after since.
func (l *Loader[V]) withLock(ctx context.Context, key string, since time.Time, lease *locker.Lease, err error) (
	terms, error) {
	if err != nil {
		return l.withoutLock(ctx, key, err, addIfPossible)
	}
	return terms{lease: lease, how: set, since: since}, nil
}

// withoutLock returns the terms of a load without the lock, because of an error of a backend.
func (l *Loader[V]) withoutLock(ctx context.Context, key string, cause error, how storing) (terms, error) {
	return terms{why: cause, how: how}, l.refuse(ctx, key, cause)
}

// refuse returns the error that ends a load because of cause, or nil if the source is called all
// the same.
func (l *Loader[V]) refuse(ctx context.Context, key string, cause error) error {
	if err := ctx.Err(); err != nil {
		return err // all callers have left
	}
	if l.failClosed || isInvalid(cause) || errors.Is(cause, locker.ErrClosed) {
		return l.loadError(key, cause)
	}
	return nil
}

// tryLock makes one attempt to take the lock. An error other than locker.ErrHeld and
// locker.ErrClosed is the backend's, unless it is due to an invalid option (isInvalid) or to the
// end of ctx.
func (l *Loader[V]) tryLock(ctx context.Context, key string) (*locker.Lease, error) {
	if !l.lockBreaker.allows(key) {
		return nil, l.lockBreaker.skip(key, func() { l.probeLock(ctx, key) })
	}
	began := time.Now()
	tryCtx := l.request(ctx, began, &l.lockBreaker)
	defer tryCtx.Cancel()
	lease, err := locker.TryLock(tryCtx, l.locker, l.name(key), l.lockTTL,
		locker.WithKeepAlive(), locker.WithMaxHold(l.maxHold))
	if err == nil && !l.lifetime.hold(lease) {
		l.unlock(ctx, lease)
		return nil, locker.ErrClosed
	}
	switch {
	case err == nil || errors.Is(err, locker.ErrHeld):
		l.lockBreaker.succeeded(key, began)
	case isInvalid(err):
	case tryCtx.Err() != nil && time.Since(began) < l.lockBreaker.patience():
		// It ended because its caller left, soon after it began.
	default:
		err = l.lockBreaker.failed(tryCtx, key, began, err)
	}
	return lease, err
}

// probeLock finds out whether the backend of the locks answers again.
func (l *Loader[V]) probeLock(ctx context.Context, key string) {
	if !l.lifetime.begin(nil) {
		return
	}
	defer l.lifetime.end(nil)
	began := time.Now()
	tryCtx := lazyctx.WithoutCancel(ctx, began.Add(l.backendTimeout))
	defer tryCtx.Cancel()
	lease, err := locker.TryLock(tryCtx, l.locker, l.name(key), l.lockTTL)
	if err != nil && !errors.Is(err, locker.ErrHeld) && isNoAnswer(l.lockBreaker.failed(tryCtx, key, began, err)) {
		return
	}
	l.lockBreaker.succeeded(key, began)
	if lease != nil {
		l.unlock(ctx, lease)
	}
}
