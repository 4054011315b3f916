package locker

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// keepAlive extends a lease in the background. Between two extensions it is a timer and nothing else. Its
// fields are guarded by the lease's mu.
type keepAlive struct {
	values context.Context // of the acquisition; its end does not end the keep-alive
	until  time.Time       // no extension begins then or later; zero: no limit
	timer  *time.Timer     // begins the next extension

	// Of the extension that is under way:
	cancel context.CancelFunc
	ended  chan struct{} // closed at its end; nil when none is under way
}

func (l *Lease) startKeepAlive(ctx context.Context, maxHold time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keep = &keepAlive{values: context.WithoutCancel(ctx)}
	if maxHold > 0 {
		l.keep.until = time.Now().Add(maxHold)
	}
	l.keep.timer = time.AfterFunc(l.third(), l.extendInTime)
}

// extendInTime is one extension of the keep-alive.
func (l *Lease) extendInTime() {
	k := l.keep
	l.mu.Lock()
	if k.ended != nil || !k.until.IsZero() && !time.Now().Before(k.until) {
		l.mu.Unlock()
		return
	}
	ctx, cancel := context.WithCancel(k.values)
	defer cancel()
	k.cancel, k.ended = cancel, make(chan struct{})
	l.mu.Unlock()

	err := ErrNotHeld // unless Extend returns: it may end its goroutine
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		close(k.ended)
		k.ended = nil
		switch {
		case l.state != held || errors.Is(err, ErrNotHeld):
		case err == nil:
			k.timer.Reset(l.third())
		default:
			k.timer.Reset(max(time.Until(l.deadline)/10, time.Millisecond))
		}
	}()
	err = l.extend(ctx, 0)
}

// reschedule has the next extension come a third of the present ttl, or of what is left, from now.
func (l *Lease) reschedule() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.keep; k != nil && l.state == held {
		k.timer.Reset(l.third())
	}
}

// third is how long keep-alive rests after an extension: a third of the ttl, or of the time left where that
// is less, and a little jitter less, so that leases which began together do not stay in step. It needs l.mu.
func (l *Lease) third() time.Duration {
	d := max(min(l.ttl, time.Until(l.deadline)), 0)
	return d/3 - rand.N(d/30+1)
}
