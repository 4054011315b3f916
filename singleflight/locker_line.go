package singleflight

import (
	"context"
	"errors"
	"time"

	"github.com/golockers/locker"
)

// line is what this process does for one key: who waits, who is on the way to the backend for them, and the
// cohort tenure that is handed on. All of it is guarded by Locker.mu, which is never held during a request.
//
// A line exists as long as somebody serves it: a holder of its tenure, or else exactly one driver, which is
// a caller or a goroutine at the backend. So whoever joins a line that exists will be served.
type line struct {
	key       string
	first     *waiter
	last      *waiter
	tenure    *tenure            // nil: this process has no cohort tenure
	cancel    context.CancelFunc // ends the cohort drive that is under way, if one is
	abandoned bool               // that drive was cancelled, since nobody waits any more
	yield     bool               // the last tenure was given up for others: let them go first
	unlined   bool               // the backend keeps no line for this key
	unwatched bool               // the backend cannot watch this key
}

// tenure is a time during which this process holds the backend's lock under a private token and hands it on.
type tenure struct {
	lease  *locker.Lease // the private token's; nothing is granted beyond its deadline
	ttl    time.Duration // of the waiter that it was taken for
	began  time.Time
	passes int // -1 before the first grant

	lost      bool // the backend has said that the private token does not hold the lock
	extending int  // requests of the holder's that are under way

	holder  string    // the token that holds the lock; empty while it is handed on
	expires time.Time // of the holder
	timer   *time.Timer
	rings   time.Time // when the timer does, which may be too early, never too late
}

// waiter is one Wait in line. It hears exactly one verdict, unless it leaves the line first.
type waiter struct {
	token    string
	ttl      time.Duration
	verdict  chan verdict // room for one
	heard    verdict      // the one that was sent
	deadline time.Time    // with granted
	err      error        // with failed

	prev, next *waiter
	inLine     bool
}

type verdict uint8

const (
	none    verdict = iota
	granted         // it holds the lock
	drive           // it is alone: it is to take the lock from the backend by itself
	failed          // the backend failed
)

func (ln *line) push(w *waiter) {
	w.prev, w.inLine = ln.last, true
	if ln.last != nil {
		ln.last.next = w
	} else {
		ln.first = w
	}
	ln.last = w
}

func (ln *line) remove(w *waiter) {
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		ln.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		ln.last = w.prev
	}
	w.prev, w.next, w.inLine = nil, nil, false
}

// tell takes w out of the line with a verdict.
func (ln *line) tell(w *waiter, v verdict) {
	ln.remove(w)
	w.heard = v
	w.verdict <- v
}

// busy says whether somebody of this process waits for the lock, or has it, or is about to. The line may be
// nil.
func (ln *line) busy() bool { return ln != nil && (ln.first != nil || !ln.abandoned) }

// heldBy says whether token is the present holder in a cohort tenure of a line that may be nil.
func (ln *line) heldBy(token string, now time.Time) bool {
	return ln != nil && ln.tenure != nil && ln.tenure.holder == token && token != "" &&
		now.Before(ln.tenure.expires)
}

// driveSolo takes the lock from the backend for one caller, on its own goroutine, under its own token.
func (l *Locker) driveSolo(ctx context.Context, ln *line, token string, ttl time.Duration) (time.Time, error) {
	o := owner{ln.key, token}
	l.mu.Lock()
	l.remember(o, ttl)
	l.mu.Unlock()
	defer l.mu.Unlock()
	lease, err := l.driven(ctx, ln, token, ttl)
	if err != nil {
		if errors.Is(err, locker.ErrHeld) { // it was refused and has left the backend's line
			delete(l.own, o)
		}
		return time.Time{}, err
	}
	l.own[o] = ownHold{expires: lease.Deadline()}
	return lease.Deadline(), nil
}

// driven is fromBackend, and has the rest of the line served whatever becomes of this caller: even when the
// backend panics, and somebody recovers that. It ends with l.mu locked.
func (l *Locker) driven(ctx context.Context, ln *line, token string, ttl time.Duration) (*locker.Lease, error) {
	defer func() {
		l.mu.Lock()
		l.drove(ln)
	}()
	return l.fromBackend(ctx, ln, token, ttl)
}

// driveCohort takes the lock from the backend for whoever is in line, and grants it to the first.
func (l *Locker) driveCohort(ctx context.Context, ln *line, ttl time.Duration) {
	lease, err := l.fromBackend(ctx, ln, "", addCapped(ttl, l.maxTenure))
	l.mu.Lock()
	defer l.mu.Unlock()
	ended := ctx.Err() != nil
	ln.cancel()
	ln.cancel, ln.abandoned = nil, false
	switch {
	case err == nil:
		ln.tenure = &tenure{lease: lease, ttl: ttl, began: time.Now(), passes: -1}
		l.handOn(context.Background(), ln, "")
		return
	case ended: // everybody had left; somebody may have come since
	case errors.Is(err, locker.ErrInvalidTTL): // its own ttl may be short enough where the cohort's is not
		if ln.first != nil {
			ln.tell(ln.first, drive)
			return // it drives now
		}
	default:
		for ln.first != nil {
			ln.first.err = err
			ln.tell(ln.first, failed)
		}
	}
	l.drove(ln)
}

// fromBackend waits for the wrapped lock, under a new token if token is empty.
func (l *Locker) fromBackend(ctx context.Context, ln *line, token string, ttl time.Duration) (*locker.Lease, error) {
	l.mu.Lock()
	rest := l.rest(ln)
	ln.yield = false
	l.mu.Unlock()
	if err := giveWay(ctx, rest); err != nil {
		return nil, l.fail("wait", ln.key, errors.Join(err, locker.ErrHeld))
	}
	var opts []locker.Option
	if token != "" {
		opts = append(opts, locker.WithToken(token))
	}
	lease, err := locker.Lock(ctx, l.probed, ln.key, ttl, opts...)
	if err != nil {
		// What names the operation and the key is said by our own caller.
		if inner := errors.Unwrap(err); inner != nil {
			err = inner
		}
		return nil, err
	}
	return lease, nil
}

// drove ends a drive, or a tenure: whoever waits now has another drive started. It needs l.mu.
func (l *Locker) drove(ln *line) {
	switch {
	case ln.first == nil:
		delete(l.lines, ln.key)
	case ln.first == ln.last:
		ln.tell(ln.first, drive)
	default:
		var ctx context.Context
		ctx, ln.cancel = context.WithCancel(context.Background())
		go l.driveCohort(ctx, ln, ln.first.ttl)
	}
}

// leave is what a waiter does whose context has ended. What it was about to be given goes to the next.
func (l *Locker) leave(ln *line, w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case w.inLine:
		ln.remove(w)
		if ln.first == nil && ln.cancel != nil {
			ln.abandoned = true
			ln.cancel()
		}
	case w.heard == drive:
		l.drove(ln)
	case w.heard == granted:
		go func() { // it may take a request, for which the caller does not wait
			l.mu.Lock()
			defer l.mu.Unlock()
			if ln.heldBy(w.token, time.Now()) {
				l.handOn(context.Background(), ln, "")
			}
		}()
	}
}

// handOn passes the tenure's lock to the first in line, or, when its time is up or nobody waits, gives it up
// on the backend. The result is that of a Release by from, the token that held the lock so far, if any. It
// needs l.mu, which it lets go of during a request.
func (l *Locker) handOn(ctx context.Context, ln *line, from string) (released bool, err error) {
	t := ln.tenure
	t.holder = ""
	var fresh time.Duration // the backend's lock was taken or extended just now, for a waiter with this ttl
	if t.passes < 0 {
		fresh = t.ttl
	}
	for {
		w := ln.first
		now := time.Now()
		// An extension of the last holder's that is under way may yet shorten the backend's lock.
		if w == nil || t.lost || t.extending > 0 || t.passes >= l.maxPasses ||
			t.passes >= 0 && now.Sub(t.began) >= l.maxTenure {
			return l.giveUp(ctx, ln, from)
		}
		deadline := t.lease.Deadline()
		if deadline.Sub(now) >= w.ttl || w.ttl <= fresh {
			t.passes++
			t.holder, t.expires = w.token, earlier(now.Add(w.ttl), deadline)
			w.deadline = t.expires
			l.watchHolder(ln, now)
			ln.tell(w, granted)
			return true, nil
		}
		if err := l.extend(ctx, t, addCapped(w.ttl, max(l.maxTenure-now.Sub(t.began), 0))); err != nil {
			return l.giveUp(ctx, ln, from)
		}
		fresh = w.ttl
	}
}

// giveUp ends the tenure on the backend, and has the line served anew. It needs l.mu, which it lets go of
// during the request.
func (l *Locker) giveUp(ctx context.Context, ln *line, from string) (released bool, err error) {
	t := ln.tenure
	ln.tenure = nil
	if t.timer != nil {
		t.timer.Stop()
	}
	private := t.lease.Token()
	l.mu.Unlock()
	defer func() { // whatever becomes of the request, the line is served
		l.mu.Lock()
		if err != nil && from != "" {
			l.own[owner{ln.key, from}] = ownHold{expires: t.lease.Deadline(), private: private}
		}
		ln.yield = ln.first != nil
		l.drove(ln)
	}()
	if from != "" {
		return l.inner.Release(ctx, ln.key, private)
	}
	err = t.lease.Unlock(ctx) // bounds itself
	if err != nil && !errors.Is(err, locker.ErrNotHeld) {
		go unlockLater(t.lease)
	}
	return false, err
}

// unlockLater repeats an Unlock of unknown outcome that nobody else repeats, with growing rests.
func unlockLater(lease *locker.Lease) {
	ends := earlier(lease.Deadline(), time.Now().Add(5*time.Second))
	for rest := 5 * time.Millisecond; time.Now().Before(ends); rest = min(2*rest, time.Second) {
		time.Sleep(rest)
		err := lease.Unlock(context.Background())
		if err == nil || errors.Is(err, locker.ErrNotHeld) {
			return
		}
	}
}

// extend extends a tenure on the backend. It needs l.mu, which it lets go of during the request.
func (l *Locker) extend(ctx context.Context, t *tenure, ttl time.Duration) error {
	l.mu.Unlock()
	defer l.mu.Lock()
	return t.lease.Extend(ctx, ttl)
}

// extendHolder extends the present holder of a cohort tenure. It needs l.mu, which it lets go of during a
// request.
func (l *Locker) extendHolder(ctx context.Context, ln *line, token string, ttl time.Duration) (bool, error) {
	t := ln.tenure
	now := time.Now()
	if t.lease.Deadline().Sub(now) < ttl {
		t.extending++
		err := l.extend(ctx, t, addCapped(ttl, l.maxTenure))
		if errors.Is(err, locker.ErrInvalidTTL) { // its own ttl may be short enough
			err = l.extend(ctx, t, ttl)
		}
		t.extending--
		switch {
		case errors.Is(err, locker.ErrNotHeld):
			l.lost(ln, t)
			return false, nil
		case err != nil:
			return false, errors.Unwrap(err)
		case ln.tenure != t || !ln.heldBy(token, time.Now()):
			return false, nil
		}
	}
	t.expires = earlier(now.Add(ttl), t.lease.Deadline())
	l.watchHolder(ln, now)
	return true, nil
}

// lost ends a tenure whose lock the backend has lost, so that it is granted to nobody. It needs l.mu.
func (l *Locker) lost(ln *line, t *tenure) {
	t.lost = true
	if ln.tenure == t && t.holder != "" {
		t.expires = time.Now()
		go l.holderExpired(ln, t)
	}
}

// watchHolder sees to it that a holder who vanishes is passed over when its ttl ends. Since holders usually
// release long before, the timer is left alone while it rings early enough. It needs l.mu.
func (l *Locker) watchHolder(ln *line, now time.Time) {
	t := ln.tenure
	switch {
	case t.timer == nil:
		t.timer = time.AfterFunc(t.expires.Sub(now), func() { l.holderExpired(ln, t) })
	case t.expires.Before(t.rings):
		t.timer.Reset(t.expires.Sub(now))
	default:
		return
	}
	t.rings = t.expires
}

func (l *Locker) holderExpired(ln *line, t *tenure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
	if ln.tenure != t || t.holder == "" { // given up, or being handed on
		return
	}
	if now := time.Now(); now.Before(t.expires) {
		l.watchHolder(ln, now)
		return
	}
	l.handOn(context.Background(), ln, "")
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
