package locker

// When a lease is extended in the background.

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// keepAlive extends a lease in the background. Between two extensions it is only a timer: a
// waiting goroutine would have to be woken by Unlock. Its fields are guarded by the lease's mu.
type keepAlive struct {
	values context.Context // those of the acquisition's context, without its cancellation
	until  time.Time       // no extension begins then or later; zero: no limit
	isMax  bool            // until is the end of the maximum hold, and was not reported
	timer  *time.Timer     // begins the next extension
	ttl    time.Duration   // what it extends by: the last one that the user asked for

	// These describe the extension that is under way:
	cancel context.CancelFunc
	ended  chan struct{} // closed at its end; nil when none is under way
}

func (l *Lease) startKeepAlive(ctx context.Context, ttl, maxHold time.Duration) {
	l.mu.Lock()
	defer l.unlock()
	k := &keepAlive{values: context.WithoutCancel(ctx), ttl: ttl}
	l.needed().keep = k
	if maxHold > 0 {
		k.until, k.isMax = time.Now().Add(maxHold), true
	}
	k.timer = time.AfterFunc(l.third(k), l.extendInTime)
}

// keeping returns the keep-alive, or nil if there is none. It needs l.mu, unless there is one.
func (l *Lease) keeping() *keepAlive {
	if l.rare == nil {
		return nil
	}
	return l.rare.keep
}

// extendInTime makes one extension of the keep-alive, schedules the next one, and then reports.
func (l *Lease) extendInTime() {
	k := l.keeping()
	l.mu.Lock()
	l.watchObserved()
	if k.ended != nil || !k.until.IsZero() && !time.Now().Before(k.until) {
		isOverdue := k.ended == nil && k.isMax && l.isHeld()
		k.isMax = k.isMax && !isOverdue
		l.unlock()
		if isOverdue {
			l.obs.report(k.values, Overdue, nil)
		}
		return
	}
	ctx, cancel := context.WithCancel(k.values)
	k.cancel, k.ended = cancel, make(chan struct{})
	l.unlock()
	outcome, err := l.extendOnce(ctx, cancel)
	l.report(k.values, outcome, err)
}

func (l *Lease) extendOnce(ctx context.Context, cancel context.CancelFunc) (outcome EventKind, err error) {
	k := l.keeping()
	err = ErrNotHeld // unless Extend returns: it may end its goroutine with Goexit
	defer func() {
		cancel()
		l.mu.Lock()
		defer l.mu.Unlock()
		close(k.ended)
		k.ended = nil
		switch {
		case l.state != held || errors.Is(err, ErrNotHeld):
		case err == nil:
			k.timer.Reset(l.third(k))
		default:
			k.timer.Reset(max(time.Until(l.deadline)/10, time.Millisecond))
		}
	}()
	return l.extend(ctx, 0)
}

// watchObserved makes sure that the observer hears of the loss of the lease on time: the keep-alive
// may be over, and an extension may fail, hang or never return. It needs l.mu.
func (l *Lease) watchObserved() {
	if l.obs != nil {
		l.watchDeadline()
	}
}

// endKeepAlive prevents further extensions from beginning.
func (l *Lease) endKeepAlive() {
	l.mu.Lock()
	defer l.unlock()
	k := l.keeping()
	k.until, k.isMax = time.Now(), false
	k.timer.Stop()
	l.watchObserved()
}

// reschedule puts the next extension a third of the present ttl, or of the time that is left, from
// now.
func (l *Lease) reschedule() {
	l.mu.Lock()
	defer l.unlock()
	if k := l.keeping(); k != nil && l.state == held {
		k.timer.Reset(l.third(k))
	}
}

// interruptKeepAlive cancels an extension of the keep-alive that is under way and returns a channel
// that is closed when it has ended, or nil if there is none. It needs l.mu.
func (l *Lease) interruptKeepAlive() <-chan struct{} {
	k := l.keeping()
	if k == nil || k.ended == nil {
		return nil
	}
	k.cancel()
	return k.ended
}

// keepAliveTimeout bounds an extension of the keep-alive: half of the time that is left, so that
// there is time for another one. It needs l.mu.
func (l *Lease) keepAliveTimeout() time.Duration {
	return max(time.Until(l.deadline)/2, time.Millisecond)
}

// third returns the delay before the next extension: a third of the ttl, or of the time that is
// left if that is less, minus some jitter, so that leases that began together do not stay in
// step. It needs l.mu.
func (l *Lease) third(k *keepAlive) time.Duration {
	d := max(min(k.ttl, time.Until(l.deadline)), 0)
	return d/3 - rand.N(d/30+1)
}
