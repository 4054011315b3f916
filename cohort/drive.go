package cohort

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"time"

	"github.com/golockers/locker"
)

// driveInline takes the lock from the backend for a caller that found no others waiting, on the
// caller's own goroutine.
func (l *Locker) driveInline(ctx context.Context, r *record, token string, ttl time.Duration) (
	deadline time.Time, err error) {
	t := l.newTenure(ctx, r, token)
	t.holder = token
	err = errNoReturn // unless the backend returns
	defer func() {
		r.shard.mu.Lock()
		defer r.shard.mu.Unlock()
		r.driving = false
		switch {
		case err == nil:
			t.expires = deadline
			t.begin(deadline, ttl)
			r.install(t)
			return
		case !errors.Is(err, locker.ErrHeld) && !refusesArguments(err):
			t.unsure, t.longest = ttl, ttl
			r.remember(t)
		}
		r.settle()
	}()
	return l.fromBackend(ctx, r, t.token, ttl)
}

// drive takes the lock from the backend for the queue, on a goroutine of its own: it goes on when
// the waiter that it began for leaves. Its context has the values of that one.
func (r *record) drive() {
	w := r.first
	w.drives = true
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.ctx))
	r.driving, r.abandon, r.rest = true, cancel, r.nextRest()
	go r.locker.driveQueue(ctx, r, w)
}

func (l *Locker) driveQueue(ctx context.Context, r *record, w *waiter) {
	var deadline time.Time
	ttl, err := addCapped(w.ttl, l.maxTenure), errNoReturn
	t := l.newTenure(ctx, r, w.token)
	defer func() {
		r.shard.mu.Lock()
		defer r.shard.mu.Unlock()
		abandoned := r.abandoned
		r.abandon()
		r.driving, r.abandon, r.abandoned = false, nil, false
		switch {
		case err == nil:
			t.begin(deadline, ttl)
			r.install(t)
			l.passOnLocked(t)
			return
		case abandoned: // others may have come since
		case errors.Is(err, locker.ErrInvalidTTL):
			if !w.left { // the ttl of others may be shorter
				w.err = err
				r.tell(w)
			}
		default:
			for r.first != nil {
				r.first.err = err
				r.tell(r.first)
			}
		}
		r.settle()
	}()
	deadline, err = l.fromBackend(ctx, r, t.token, ttl)
	if ttl > w.ttl && errors.Is(err, locker.ErrInvalidTTL) { // its own ttl may be short enough
		ttl = w.ttl
		deadline, err = l.fromBackend(ctx, r, t.token, ttl)
	}
}

// fromBackend waits for the wrapped lock with package locker, which knows how to wait on any
// Locker.
func (l *Locker) fromBackend(ctx context.Context, r *record, token string, ttl time.Duration) (time.Time, error) {
	if r.rest > 0 {
		timer := time.NewTimer(r.rest)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return time.Time{}, leftQueue(ctx)
		case <-timer.C:
		}
		r.rest = 0
	}
	lease, err := locker.Lock(ctx, l.observe((*driver)(r)), r.key, ttl, locker.WithToken(token))
	if err != nil {
		return time.Time{}, cause(err)
	}
	return lease.Deadline(), nil
}

// refusesArguments reports whether err means that the request was impossible, so nothing happened.
func refusesArguments(err error) bool {
	return errors.Is(err, locker.ErrInvalidTTL) || errors.Is(err, locker.ErrInvalidKey) ||
		errors.Is(err, locker.ErrInvalidToken)
}

// addCapped is a + b, or the largest Duration.
func addCapped(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// turns is what a record knows about taking turns with other processes on a backend that keeps no
// queue. On such a backend, the process that gives the lock up would take it again before others
// notice, so it rests first.
type turns struct {
	yield     bool // the last tenure was given up for others: let them go first
	unqueued  bool // the backend keeps no queue for this key
	unwatched bool // the backend cannot watch this key
	refused   bool // another process held the lock during the last drive
	alone     int  // how many rests in a row no other process has used
	skipped   int  // how many rests have been left out since the last one

	rest time.Duration // of the drive under way, which alone uses it
}

const (
	watchedRest = 4 * time.Millisecond
	polledRest  = 50 * time.Millisecond // locker.Lock's longest rest between polls
	maxSkipped  = 7
)

// nextRest returns how long the next drive rests before it asks for the lock: for as long as
// other processes need to notice that it is free. When none has used the last rests, the lock
// would only lie idle: then most of the rests are left out.
func (r *record) nextRest() time.Duration {
	if !r.yield || !r.unqueued {
		return 0
	}
	r.yield = false
	if r.refused {
		r.refused, r.alone = false, 0
	}
	if r.skipped < min(r.alone, maxSkipped) {
		r.skipped++
		return 0
	}
	r.skipped = 0
	r.alone++ // unless the drive is refused
	d := polledRest
	if !r.unwatched && locker.CanWatch(r.locker.inner) {
		d = watchedRest
	}
	return d/2 + rand.N(d/2)
}

// observed has the additional methods of a Locker from [locker.Observed].
type observed interface {
	Behind() locker.Locker                    // what is observed
	Substitute(l locker.Locker) locker.Locker // l, observed instead of it
}

// observe returns d, or d observed by what observes the wrapped Locker: a drive's acquisition is
// then reported as one, however many attempts it takes.
func (l *Locker) observe(d *driver) locker.Locker {
	if o, ok := l.inner.(observed); ok {
		return o.Substitute(d)
	}
	return d
}

// driver is the wrapped Locker as a drive uses it. It notes what the backend cannot do for the
// key, and whether another process held the lock.
type driver record

var (
	_ locker.Waiter  = (*driver)(nil)
	_ locker.Watcher = (*driver)(nil)
)

func (d *driver) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	acquired, err := d.locker.behind.Acquire(ctx, key, token, ttl)
	if err == nil && !acquired {
		d.note(&d.refused)
	}
	return acquired, err
}

func (d *driver) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return d.locker.behind.Extend(ctx, key, token, ttl)
}

func (d *driver) Release(ctx context.Context, key, token string) (bool, error) {
	return d.locker.behind.Release(ctx, key, token)
}

func (d *driver) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	deadline, err := time.Time{}, errors.ErrUnsupported
	if w, ok := d.locker.behind.(locker.Waiter); ok {
		deadline, err = w.Wait(ctx, key, token, ttl)
	}
	if errors.Is(err, errors.ErrUnsupported) {
		d.note(&d.unqueued)
	}
	return deadline, err
}

func (d *driver) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	woken, err := (<-chan struct{})(nil), errors.ErrUnsupported
	if w, ok := d.locker.behind.(locker.Watcher); ok {
		woken, err = w.Watch(ctx, key)
	}
	if errors.Is(err, errors.ErrUnsupported) {
		d.note(&d.unwatched)
	}
	return woken, err
}

// UndoOwner makes the cleanups of all keys count as the Locker's: see package undo.
func (d *driver) UndoOwner() any { return d.locker }

func (d *driver) note(what *bool) {
	d.shard.mu.Lock()
	defer d.shard.mu.Unlock()
	*what = true
}
