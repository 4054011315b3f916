package locker

// How a lease is extended, and what holds while an extension has no answer.

import (
	"context"
	"errors"
	"time"

	"github.com/golockers/locker/internal/lazyctx"
)

// Extend replaces the remaining time of the lock with ttl, which may be shorter. A keep-alive
// goes on with the new ttl. The error is [ErrNotHeld] if the lease is lost, and [ErrInvalidTTL]
// if ttl is less than a millisecond or too long for the backend. After any other error the
// outcome is unknown, and the request may still take effect later: the lease is held until its
// Deadline, and Extend may be called again.
//
// If another extension is under way, such as one by the keep-alive, Extend first waits until it
// or ctx has ended.
func (l *Lease) Extend(ctx context.Context, ttl time.Duration) error {
	if l == nil || l.locker == nil {
		return noLease("extend")
	}
	if err := checkTTL(ttl); err != nil {
		return l.wrap("extend", err)
	}
	before := l.Deadline()
	outcome, err := l.extend(ctx, ttl)
	l.report(ctx, outcome, err)
	// A failed extension may have moved the deadline nearer: then the keep-alive must try in time.
	if err == nil || l.Deadline().Before(before) {
		l.reschedule()
	}
	return err
}

// extend makes one extension by ttl. If ttl is 0, it makes one of the keep-alive, by the ttl in force
// when its turn comes. The caller reports the outcome once it holds nothing that others wait for,
// since an Observer may use the lease.
func (l *Lease) extend(ctx context.Context, ttl time.Duration) (outcome EventKind, err error) {
	l.mu.Lock()
	r := l.needed()
	if r.turn == nil {
		r.turn = make(chan struct{}, 1)
	}
	l.mu.Unlock()
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return 0, l.wrap("extend", ctx.Err())
	}
	if err := ctx.Err(); err != nil {
		return 0, l.wrap("extend", err)
	}

	l.mu.Lock()
	if !l.isHeld() {
		l.mu.Unlock()
		return 0, l.wrap("extend", ErrNotHeld)
	}
	if ttl == 0 {
		ttl = l.keeping().ttl
		bounded := lazyctx.WithDeadline(ctx, time.Now().Add(l.keepAliveTimeout()))
		defer bounded.Cancel()
		ctx = bounded
	}
	next := time.Now().Add(ttl)
	if next.Before(l.deadline) {
		l.setDeadline(next)
	}
	l.mu.Unlock()

	extended, err := l.locker.Extend(ctx, l.key, l.token, ttl)
	if outcome, err = l.conclude(ttl, next, extended, err); err != nil {
		err = l.wrap("extend", err)
	}
	return outcome, err
}

// report reports the outcome of an extension, and before that a loss that it noticed.
func (l *Lease) report(ctx context.Context, outcome EventKind, err error) {
	l.mu.Lock()
	l.unlock()
	if outcome != 0 {
		l.obs.report(ctx, outcome, err)
	}
}

// conclude updates the lease after an extension by ttl, to next, and returns what to report and the
// error. It leaves a loss for unlock to report.
func (l *Lease) conclude(ttl time.Duration, next time.Time, extended bool, err error) (EventKind, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.needed()
	if l.state == held {
		r.extendErr = err
	}
	switch {
	case err != nil:
		if !errors.Is(err, ErrInvalidTTL) && (r.unsure == 0 || ttl < r.unsure) {
			r.unsure = ttl
		}
		if errors.Is(err, ErrNotHeld) || !l.isHeld() { // lost, or cut short by Unlock
			return 0, err
		}
		return ExtendFailed, err
	case !extended:
		if l.state == held {
			l.lose(refused)
		}
		return 0, ErrNotHeld
	case !l.isHeld(): // the reply came after the deadline, or after an Unlock
		return 0, ErrNotHeld
	}
	if r.unsure > 0 && r.unsure < ttl {
		next = next.Add(r.unsure - ttl)
	}
	l.setDeadline(next)
	if k := l.keeping(); k != nil {
		k.ttl = ttl
	}
	return Extended, nil
}
