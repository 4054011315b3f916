package singleflight

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/golockers/locker"
)

const (
	// answerTime is how long a backend may take to answer. A healthy one needs a thousandth of that, and
	// when it hangs, callers with a deadline of some seconds should still get the source's value.
	answerTime = 2 * time.Second

	// Between two looks at the cache, when nothing wakes a waiter: from firstPoll doubling up to lastPoll.
	firstPoll = 5 * time.Millisecond
	lastPoll  = 50 * time.Millisecond

	// safetyPoll is the same where releases wake it: the holder may have vanished, which wakes nobody.
	safetyPoll = time.Second
)

// load is what the first caller in this process does for all.
func (l *Loader[V]) load(ctx context.Context, key string) (V, error) {
	v, ok, err := l.read(ctx, key)
	if ok {
		return v, nil
	}
	if s, isStaler := l.cache.(Staler[V]); isStaler && err == nil {
		v, ok, err = l.ask(ctx, key, s.Stale)
		if ok {
			l.refresh(ctx, key)
			return v, nil
		}
	}
	if err != nil {
		return l.loadWithoutCache(ctx, key, err)
	}
	lease, err := l.tryLock(ctx, key)
	if errors.Is(err, locker.ErrHeld) {
		return l.waitForValue(ctx, key)
	}
	return l.loadWithLock(ctx, key, lease, err)
}

// loadWithLock loads under the lock that tryLock returned, or without it when that failed.
func (l *Loader[V]) loadWithLock(ctx context.Context, key string, lease *locker.Lease, err error) (V, error) {
	if err != nil {
		return l.loadWithout(ctx, key, err, addIfPossible)
	}
	defer l.unlock(ctx, lease) // on every way out, a panic of the source included
	v, ok, err := l.read(ctx, key)
	if ok {
		return v, nil
	}
	how := set
	if err != nil {
		if refused := l.refuse(ctx, key, err); refused != nil {
			return v, refused
		}
		how = afterReadError(err)
	}
	v, forgotten, err := l.callSource(ctx, key)
	switch {
	case err != nil || forgotten:
	case isHeld(lease):
		l.store(ctx, key, v, how, lease.Deadline())
	case how == set:
		l.store(ctx, key, v, add, time.Time{})
	}
	return v, err
}

// loadWithoutCache loads when the cache cannot be read. Nothing is gained by the lock then: who does not
// get it could not see the value.
func (l *Loader[V]) loadWithoutCache(ctx context.Context, key string, err error) (V, error) {
	return l.loadWithout(ctx, key, err, afterReadError(err))
}

// loadWithout loads without the lock, because of an error of a backend.
func (l *Loader[V]) loadWithout(ctx context.Context, key string, cause error, how storing) (v V, err error) {
	if err := l.refuse(ctx, key, cause); err != nil {
		return v, err
	}
	return l.loadAlone(ctx, key, how)
}

// loadAlone loads without the lock.
func (l *Loader[V]) loadAlone(ctx context.Context, key string, how storing) (V, error) {
	v, forgotten, err := l.callSource(ctx, key)
	if err == nil && !forgotten {
		l.store(ctx, key, v, how, time.Time{})
	}
	return v, err
}

// refuse returns the error that ends a load because of cause, or nil when the source is to be called all
// the same.
func (l *Loader[V]) refuse(ctx context.Context, key string, cause error) error {
	if err := ctx.Err(); err != nil {
		return err // everybody has left
	}
	if l.failClosed || isInvalid(cause) {
		return loadError(key, cause)
	}
	return nil
}

// waitForValue is for a process that was refused the lock. It waits for the value and not for the lock, so
// that all who wait have it as soon as it is there. It tries the lock again whenever it may be free.
func (l *Loader[V]) waitForValue(ctx context.Context, key string) (V, error) {
	tooLong := time.Now().Add(l.maxWait)
	watchCtx, unwatch := context.WithCancel(ctx)
	defer unwatch()
	woken := l.watch(watchCtx, unwatch, key)

	for attempt := 0; ; attempt++ {
		// A release before the subscription was live woke nobody, so there is an attempt before the first rest.
		if attempt > 0 || woken != nil {
			lease, err := l.tryLock(ctx, key)
			if !errors.Is(err, locker.ErrHeld) {
				unwatch() // the source may take long
				return l.loadWithLock(ctx, key, lease, err)
			}
		}

		rest := safetyPoll + rand.N(safetyPoll/2)
		if woken == nil {
			rest = min(firstPoll<<min(attempt, 10), lastPoll)
			rest += rand.N(rest/2) - rest/4
		}
		left := time.Until(tooLong)
		timer := time.NewTimer(min(rest, left))
		waited := false
		select {
		case <-woken:
		case <-timer.C:
			waited = left <= rest
		case <-ctx.Done():
		}
		timer.Stop()
		if err := ctx.Err(); err != nil {
			var zero V
			return zero, err
		}

		v, ok, err := l.read(ctx, key)
		switch {
		case ok:
			return v, nil
		case err != nil:
			unwatch()
			return l.loadWithoutCache(ctx, key, err)
		case waited:
			unwatch()
			// Somebody holds the lock, and may store a value that is newer.
			return l.loadAlone(ctx, key, add)
		}
	}
}

// watch returns a channel that releases of key's lock wake, or nil when there is none: then the waiter
// polls, and in doing so learns what else may be the matter with the backend. unwatch ends ctx.
func (l *Loader[V]) watch(ctx context.Context, unwatch func(), key string) <-chan struct{} {
	w, ok := l.locker.(locker.Watcher)
	if !ok {
		return nil
	}
	timer := time.AfterFunc(answerTime, unwatch)
	woken, err := w.Watch(ctx, key)
	if !timer.Stop() || err != nil {
		return nil
	}
	return woken
}

// tryLock tries the lock once. An error that is not locker.ErrHeld is the backend's, but for a mistake in
// an option (isInvalid) or the end of ctx.
func (l *Loader[V]) tryLock(ctx context.Context, key string) (*locker.Lease, error) {
	if err := l.lockOutage.during(key); err != nil {
		return nil, err
	}
	tryCtx := withDeadline(ctx, time.Now().Add(answerTime))
	defer tryCtx.cancel()
	lease, err := locker.TryLock(tryCtx, answering{l.locker}, key, l.lockTTL,
		locker.WithKeepAlive(), locker.WithMaxHold(l.maxHold))
	switch {
	case err == nil || errors.Is(err, locker.ErrHeld):
		l.lockOutage.succeeded()
	case ctx.Err() == nil && !isInvalid(err):
		l.lockOutage.failed(key, err)
	}
	return lease, err
}

func isInvalid(err error) bool {
	return errors.Is(err, locker.ErrInvalidTTL) || errors.Is(err, locker.ErrInvalidKey)
}

// unlock releases the lock. An error changes nothing for the callers: the value is theirs, and the lock was
// lost or ends with its ttl. It is tried once more then, in the background; and so it is at first when the lock
// is known to be lost, since nobody waits for the release, and the backend may well be down.
func (l *Loader[V]) unlock(ctx context.Context, lease *locker.Lease) {
	if isHeld(lease) {
		if err := lease.Unlock(ctx); err == nil || errors.Is(err, locker.ErrNotHeld) {
			return
		}
	}
	go lease.Unlock(ctx)
}

// answering is a Locker whose Release, too, waits no longer than for any other answer: Unlock would wait for a
// backend that hangs longer than callers with a deadline of some seconds can.
type answering struct{ locker.Locker }

func (l answering) Release(ctx context.Context, key, token string) (bool, error) {
	// Unlock's own context ends later, and nobody cancels it: to hang on to it would take a goroutine.
	releaseCtx := withDeadline(context.WithoutCancel(ctx), time.Now().Add(answerTime))
	defer releaseCtx.cancel()
	return l.Locker.Release(releaseCtx, key, token)
}

// isHeld says that lease is not known to be lost.
func isHeld(lease *locker.Lease) bool {
	select {
	case <-lease.Lost():
		return false
	default:
		return time.Now().Before(lease.Deadline())
	}
}
