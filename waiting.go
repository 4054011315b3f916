package locker

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// waiter is one acquisition: it ends with the deadline set, or with an error, and in that case with a
// clean-up started if the lock may have been taken nevertheless. Its token is used until the first error.
type waiter struct {
	locker Locker
	key    string
	token  string
	ttl    time.Duration
	opts   options

	refused  bool // an attempt was refused: giving up reports ErrHeld, too
	deadline time.Time
}

// try is a single attempt.
func (w *waiter) try(ctx context.Context) error {
	acquired, err := w.attempt(ctx)
	if err == nil && !acquired {
		return ErrHeld
	}
	return err
}

// wait takes the best way that the Locker has.
func (w *waiter) wait(ctx context.Context) error {
	if l, ok := w.locker.(Waiter); ok {
		err := w.inLine(ctx, l)
		if !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
	}
	acquired, err := w.attempt(ctx)
	if acquired || err != nil {
		return err
	}
	if l, ok := w.locker.(Watcher); ok {
		err := w.watching(ctx, l)
		if !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
	}
	return w.polling(ctx, pollBackoff, nil)
}

// inLine waits where the backend keeps the line.
func (w *waiter) inLine(ctx context.Context, l Waiter) error {
	deadline, err := l.Wait(ctx, w.key, w.token, w.ttl)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return err
	case errors.Is(err, ErrHeld): // it was in line and has left it: nothing to clean up
		return w.giveUp(ctx, err)
	case err != nil:
		w.cleanUpAfter(ctx, err)
		return w.giveUp(ctx, err)
	}
	return w.won(ctx, deadline)
}

// watching subscribes, tries again, since a release before that woke nobody, and sleeps until woken.
func (w *waiter) watching(ctx context.Context, l Watcher) error {
	watchCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	woken, err := l.Watch(watchCtx, w.key)
	if err != nil {
		return w.giveUp(ctx, err)
	}
	acquired, err := w.attempt(ctx)
	if acquired || err != nil {
		return err
	}
	return w.polling(ctx, safetyBackoff, woken)
}

// polling tries again after each rest, or when woken.
func (w *waiter) polling(ctx context.Context, backoff Backoff, woken <-chan struct{}) error {
	if w.opts.backoff != nil {
		backoff = w.opts.backoff
	}
	for attempt := 1; ; attempt++ {
		if err := sleep(ctx, backoff(attempt), woken); err != nil {
			return w.giveUp(ctx, err)
		}
		acquired, err := w.attempt(ctx)
		if acquired || err != nil {
			return err
		}
	}
}

// attempt is one Acquire.
func (w *waiter) attempt(ctx context.Context) (acquired bool, err error) {
	start := time.Now()
	acquired, err = w.locker.Acquire(ctx, w.key, w.token, w.ttl)
	switch {
	case err != nil:
		w.cleanUpAfter(ctx, err)
		return false, w.giveUp(ctx, err)
	case !acquired:
		w.refused = true
		return false, nil
	}
	err = w.won(ctx, start.Add(w.ttl))
	return err == nil, err
}

// won checks that a lock that was just taken is still of use.
func (w *waiter) won(ctx context.Context, deadline time.Time) error {
	if err := ctx.Err(); err != nil {
		w.cleanUp(ctx)
		return w.giveUp(ctx, err)
	}
	if !time.Now().Before(deadline) {
		w.cleanUp(ctx)
		// Not ErrNotHeld: nobody has done anything yet that may have overlapped with another holder.
		return fmt.Errorf("the ttl of %v had passed when the reply came", w.ttl)
	}
	w.deadline = deadline
	return nil
}

// giveUp completes an error: it reports ctx's error if ctx has ended, and ErrHeld if that is why we waited.
func (w *waiter) giveUp(ctx context.Context, err error) error {
	ctxErr := ctx.Err()
	if ctxErr == nil {
		return err
	}
	if !errors.Is(err, ctxErr) {
		err = fmt.Errorf("%w: %w", ctxErr, err)
	}
	if w.refused && !errors.Is(err, ErrHeld) {
		err = fmt.Errorf("%w: %w", err, ErrHeld)
	}
	return err
}

// cleanUpAfter is cleanUp, unless err says that what was asked for cannot be.
func (w *waiter) cleanUpAfter(ctx context.Context, err error) {
	if !errors.Is(err, ErrInvalidTTL) && !errors.Is(err, ErrInvalidKey) && !errors.Is(err, ErrInvalidToken) {
		w.cleanUp(ctx)
	}
}

func (w *waiter) cleanUp(ctx context.Context) { cleanUp(ctx, w.locker, w.key, w.token, w.ttl) }
