package locker

// One acquisition: its attempts, its errors, and how what it may have taken is released.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golockers/locker/internal/undo"
)

// acquisition is one call of Lock, TryLock or Do. It ends with the deadline set or with an error,
// and in that case with a cleanup under way if the lock may have been taken after all. Its token
// is used until the first error.
type acquisition struct {
	locker Locker
	key    string
	token  string
	ttl    time.Duration
	opts   options
	obs    *observation // nil: not observed

	refused  bool  // the lock was found to be held: giving up reports ErrHeld
	failure  error // of the last attempt
	deadline time.Time
}

// try makes a single attempt.
func (a *acquisition) try(ctx context.Context) error {
	acquired, err := a.attempt(ctx)
	if err == nil && !acquired {
		return ErrHeld
	}
	return err
}

// sleep reports whether it slept for all of d, before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// wait waits in the best way that the Locker has.
func (a *acquisition) wait(ctx context.Context) error {
	if l, ok := a.locker.(Waiter); ok {
		err := a.queue(ctx, l)
		if !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
	}
	return a.poll(ctx)
}

// queue waits in the queue that the backend keeps.
func (a *acquisition) queue(ctx context.Context, l Waiter) error {
	deadline, err := l.Wait(ctx, a.key, a.token, a.ttl)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return err
	case errors.Is(err, ErrHeld): // it has left the queue: nothing to clean up
		return a.giveUp(ctx, err)
	case err != nil:
		a.cleanUpAfter(ctx, err)
		return a.giveUp(ctx, err)
	}
	return a.won(ctx, deadline)
}

// attempt makes one Acquire.
func (a *acquisition) attempt(ctx context.Context) (acquired bool, err error) {
	start := time.Now()
	acquired, err = a.locker.Acquire(ctx, a.key, a.token, a.ttl)
	a.failure = err
	switch {
	case err != nil:
		a.cleanUpAfter(ctx, err)
		return false, a.giveUp(ctx, err)
	case !acquired:
		a.refused = true
		return false, nil
	}
	err = a.won(ctx, start.Add(a.ttl))
	return err == nil, err
}

// won checks that a lock that was just taken is still of use.
func (a *acquisition) won(ctx context.Context, deadline time.Time) error {
	if a.opts.minHold > a.ttl {
		if err := a.tryMinHold(ctx); err != nil {
			a.cleanUp(ctx, nil)
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		a.cleanUp(ctx, nil)
		return a.giveUp(ctx, err)
	}
	if time.Until(deadline) <= 0 {
		a.cleanUp(ctx, nil)
		// Not ErrNotHeld: nothing has been done yet that may have overlapped with another holder.
		return fmt.Errorf("the reply came after the ttl of %v had passed", a.ttl)
	}
	a.deadline = deadline
	return nil
}

// tryMinHold returns an error if the backend cannot express a MinHold longer than the ttl, while
// nothing has been done under the lock yet. To find out, it makes an extension for a token that does
// not hold the lock, and ignores every other outcome.
func (a *acquisition) tryMinHold(ctx context.Context) error {
	_, err := a.locker.Extend(ctx, a.key, randomToken(), a.opts.minHold)
	if errors.Is(err, ErrInvalidTTL) {
		return fmt.Errorf("WithMinHold(%v): %w", a.opts.minHold, err)
	}
	return nil
}

// giveUp completes an error: it adds ctx's error if ctx has ended, and ErrHeld if the lock was
// refused before.
func (a *acquisition) giveUp(ctx context.Context, err error) error {
	ctxErr := ctx.Err()
	if ctxErr == nil {
		return err
	}
	if !errors.Is(err, ctxErr) {
		err = fmt.Errorf("%w: %w", ctxErr, err)
	}
	if a.refused && !errors.Is(err, ErrHeld) {
		err = fmt.Errorf("%w: %w", err, ErrHeld)
	}
	return err
}

// cleanUpAfter is cleanUp, unless err means that the request was impossible or did nothing.
func (a *acquisition) cleanUpAfter(ctx context.Context, err error) {
	if !isInvalid(err) && !undo.IsNeedless(err) {
		a.cleanUp(ctx, err)
	}
}

// isInvalid reports whether err means that nothing happened, since a request with these arguments
// was impossible.
func isInvalid(err error) bool {
	return errors.Is(err, ErrInvalidTTL) || errors.Is(err, ErrInvalidKey) || errors.Is(err, ErrInvalidToken) ||
		errors.Is(err, ErrInvalidLocker)
}

// cleanUp releases a token that may hold the lock without a lease: its acquisition ended with an
// error, or too late. The request that took the lock may still be under way when the first Release
// arrives, so only one that reports true ends it, or one after that request was answered, as cause
// may know. Later ones are made in the background.
func (a *acquisition) cleanUp(ctx context.Context, cause error) {
	l, key, token, obs := a.locker, a.key, a.token, a.obs
	gaveUp := func(err error) { obs.cleanup(NotCleanedUp, err) }
	if !undo.Try(ctx, undo.Work{Owner: l, Window: a.ttl, GaveUp: gaveUp, Attempt: func(ctx context.Context) (bool, error) {
		answered := undo.IsAnswered(cause)
		released, err := l.Release(ctx, key, token)
		if released {
			obs.cleanup(CleanedUp, nil)
		}
		return released || err == nil && answered, err
	}}) {
		gaveUp(errTooMany)
	}
}

var errTooMany = errors.New("too many cleanups are under way")
