package locker

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// keepAlive extends a lease in the background. It has a context of its own: that which acquired the lock
// does not end it.
type keepAlive struct {
	ctx     context.Context
	cancel  context.CancelFunc // ends it, and an extension that is under way
	resting context.Context    // ended by cancel, too
	stop    context.CancelFunc // ends it after the extension that is under way
	maxHold time.Duration      // no extension begins later than this after the acquisition; 0: no limit
	changed chan struct{}      // room for one: the ttl may have changed
	ended   chan struct{}
}

func (l *Lease) startKeepAlive(ctx context.Context, maxHold time.Duration) {
	k := &keepAlive{maxHold: maxHold, changed: make(chan struct{}, 1), ended: make(chan struct{})}
	k.ctx, k.cancel = context.WithCancel(context.WithoutCancel(ctx))
	k.resting, k.stop = context.WithCancel(k.ctx)
	l.keep = k
	go func() {
		defer close(k.ended)
		defer k.cancel()
		l.keepAlive(k)
	}()
}

// wait returns when nothing extends any more, or when ctx ends.
func (k *keepAlive) wait(ctx context.Context) {
	select {
	case <-k.ended:
	case <-ctx.Done():
	}
}

// reschedule has the next extension come a third of the present ttl, or of what is left, from now.
func (k *keepAlive) reschedule() {
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

func (l *Lease) keepAlive(k *keepAlive) {
	began := time.Now()
	timer := time.NewTimer(l.third())
	defer timer.Stop()
	for {
		select {
		case <-k.resting.Done():
			return
		case <-k.changed:
			timer.Reset(l.third())
			continue
		case <-timer.C:
		}
		if k.maxHold > 0 && time.Since(began) >= k.maxHold {
			return
		}
		// An attempt takes half of the time that is left at most, so that there is another one.
		left := time.Until(l.Deadline())
		ctx, cancel := context.WithTimeout(k.ctx, max(left/2, time.Millisecond))
		err := l.extend(ctx, 0)
		cancel()
		switch {
		case err == nil:
			timer.Reset(l.third())
		case errors.Is(err, ErrNotHeld):
			return
		default:
			timer.Reset(max(left/10, time.Millisecond))
		}
	}
}

// third is how long keep-alive rests after an extension: a third of the ttl, or of the time left where that
// is less, and a little jitter less, so that leases which began together do not stay in step.
func (l *Lease) third() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := max(min(l.ttl, time.Until(l.deadline)), 0)
	return d/3 - rand.N(d/30+1)
}
