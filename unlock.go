package locker

// How a lease ends with Unlock, and the extension for WithMinHold.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golockers/locker/internal/lazyctx"
)

const (
	// unlockTimeout bounds the requests of an Unlock, whatever its context.
	unlockTimeout = 5 * time.Second

	// unlockDelay bounds the time before that, in which an Unlock waits for an extension, or for
	// another Unlock, to end.
	unlockDelay = 5 * time.Second
)

var errUnlocking = errors.New("another Unlock of this lease is under way")

// Unlock releases the lock. Within the time of [WithMinHold] it instead leaves the lock to expire
// at the end of that time. Unlock can be deferred: it keeps the values of ctx but not its
// cancellation. It takes at most 5 seconds, plus up to one I/O timeout of the client if the client
// cannot be interrupted. Before that it waits up to 5 more seconds for an extension that is under
// way: for one by the keep-alive if the client cannot be interrupted, and for any other only within
// the time of WithMinHold.
//
// The error is [ErrNotHeld] if the lease was lost: work under the lock may have overlapped with
// another holder's. Its text gives the reason for the loss, as [Lease.Err] does. It is joined with
// the backend's error if what might be left of the lock could not be released either. Any other
// error means that the lock may or may not have been released. Unlock may then be called again;
// otherwise the lock ends with its ttl. Once the backend has answered an Unlock, every further one
// returns ErrNotHeld. An Unlock that is called while another is under way first waits for it.
func (l *Lease) Unlock(ctx context.Context) error {
	if l == nil || l.locker == nil {
		return noLease("unlock")
	}
	return l.unlockWithin(ctx, false)
}

// release is Unlock for a cleanup, and ends with ctx. It reports whether the token certainly no
// longer holds the lock.
func (l *Lease) release(ctx context.Context) (free bool) {
	_ = l.unlockWithin(ctx, true)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state == done
}

// unlockWithin unlocks on a context that has the values of ctx, and that ends with ctx if
// endsWithCtx.
func (l *Lease) unlockWithin(ctx context.Context, endsWithCtx bool) error {
	b, err := l.beginUnlock()
	if err != nil {
		return l.wrap("unlock", err)
	}
	before := b.before
	after := before // if the Locker panics, Unlock may be called again
	if before == held {
		after = unknown
	}
	ended := false
	defer func() {
		if !ended {
			l.endUnlock(after)
			l.obs.report(ctx, UnlockFailed, l.wrap("unlock", errNoReturn))
		}
	}()

	var late <-chan time.Time
	if b.extending != nil || !b.minHold.IsZero() {
		timer := time.NewTimer(unlockDelay)
		defer timer.Stop()
		late = timer.C
	}
	now := b.now
	if b.extending != nil {
		select {
		case <-b.extending:
		case <-late:
		}
		now = time.Now()
	}
	kept := !b.minHold.IsZero() && now.Before(b.minHold)
	var ok bool
	switch {
	case before == refused:
	case kept:
		ok, err = l.extendToMinHold(ctx, b.minHold, late)
	default:
		own := l.releaseContext(ctx, endsWithCtx, before, now.Add(unlockTimeout))
		defer own.Cancel()
		ok, err = l.locker.Release(own, l.key, l.token)
	}

	after = done
	switch {
	case before == expired && err != nil:
		after = expired
		err = fmt.Errorf("%w; %w", l.lossErrNow(), err)
	case before == expired, before == refused: // the caller must know, even if the backend kept the lock until now
		err = l.lossErrNow()
	case err != nil:
		after = unknown
	case !ok && (before == held || kept):
		err = errRefused
	}
	l.endUnlock(after)
	ended = true

	switch { // released now, or by an earlier Unlock whose reply was lost
	case err == nil && kept:
		l.obs.report(ctx, Detached, nil)
	case err == nil:
		l.obs.report(ctx, Unlocked, nil)
	default:
		err = l.wrap("unlock", err)
		l.obs.report(ctx, UnlockFailed, err)
	}
	return err
}

// releaseContext returns the context for a Release. Only one Unlock finds the lease held, so that one
// can use unlockCtx.
func (l *Lease) releaseContext(ctx context.Context, endsWithCtx bool, before leaseState, end time.Time) (
	own *lazyctx.Context) {
	switch {
	case endsWithCtx:
		return lazyctx.WithDeadline(ctx, end)
	case before == held:
		l.unlockCtx.InitWithoutCancel(ctx, end)
		return &l.unlockCtx
	}
	return lazyctx.WithoutCancel(ctx, end)
}

// unlocking is an Unlock that has begun.
type unlocking struct {
	before    leaseState      // of the lease
	extending <-chan struct{} // closed at the end of an extension by the keep-alive; nil if there is none
	minHold   time.Time
	now       time.Time // a reading of the clock shortly before
}

// beginUnlock ends the lease. It waits until no other Unlock is under way.
func (l *Lease) beginUnlock() (b unlocking, err error) {
	b.now = time.Now()
	l.mu.Lock()
	if l.state == held && !b.now.Before(l.deadline) {
		l.lose(expired)
		l.unlock() // reports the loss before others wait for this Unlock, as an Observer might never return
		l.mu.Lock()
		b.now = time.Now()
	}
	defer l.mu.Unlock()
	if l.state == releasing {
		timer := time.NewTimer(unlockDelay + unlockTimeout)
		defer timer.Stop()
		for l.state == releasing {
			r := l.needed()
			if r.unlocked == nil {
				r.unlocked = make(chan struct{})
			}
			unlocked := r.unlocked
			l.mu.Unlock()
			select {
			case <-unlocked:
				l.mu.Lock()
			case <-timer.C:
				l.mu.Lock()
				return b, errUnlocking
			}
		}
		b.now = time.Now()
	}
	if l.state == done || l.state == detached {
		return b, ErrNotHeld
	}
	b.before, l.state = l.state, releasing
	if l.rare != nil {
		b.minHold = l.rare.minHold
	}
	l.stopTimers()
	b.extending = l.interruptKeepAlive()
	return b, nil
}

// endUnlock sets the state after an Unlock.
func (l *Lease) endUnlock(after leaseState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = after
	if l.rare != nil && l.rare.unlocked != nil {
		close(l.rare.unlocked)
		l.rare.unlocked = nil
	}
}

// takeTurn waits until no extension is under way, or until late. Otherwise that extension might
// arrive after one that Unlock makes, and shorten the lock. It returns a function that gives the turn
// back.
func (l *Lease) takeTurn(late <-chan time.Time) (giveBack func()) {
	var turn chan struct{}
	l.mu.Lock()
	if l.rare != nil {
		turn = l.rare.turn
	}
	l.mu.Unlock()
	if turn != nil {
		select {
		case turn <- struct{}{}:
			return func() { <-turn }
		case <-late:
		}
	}
	return func() {}
}

const (
	firstExtendDelay = 10 * time.Millisecond // after an extension that failed
	maxExtendDelay   = time.Second
)

// extendToMinHold makes sure that the lock outlasts the lease. It repeats an extension without an
// answer for as long as an Unlock may take: if none arrives, the lock ends too early.
func (l *Lease) extendToMinHold(ctx context.Context, minHold time.Time, late <-chan time.Time) (
	extended bool, err error) {
	defer l.takeTurn(late)()
	own := lazyctx.WithoutCancel(ctx, time.Now().Add(unlockTimeout))
	defer own.Cancel()
	for delay := firstExtendDelay; ; delay = min(2*delay, maxExtendDelay) {
		extended, err = l.locker.Extend(own, l.key, l.token, max(time.Until(minHold), time.Millisecond))
		if err == nil || isInvalid(err) || !sleep(own, delay) {
			break
		}
	}
	if err != nil {
		err = fmt.Errorf("extending to the minimum hold: %w", err)
	}
	return extended, err
}
