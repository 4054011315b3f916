package cohort

import (
	"container/list"
	"context"
	"errors"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/undo"
)

// tenure is the backend's lock under one private token. It begins as a claim, while it is not
// known whether the backend has granted it, is then its record's tenure, under which one holder
// comes after the other, and is a claim again when its release gets no answer.
type tenure struct {
	record *record
	token  string
	values context.Context // of the call that the lock is held for

	holder  string    // the token of the caller that has the lock; empty while it is handed on
	granted *waiter   // of the holder; nil if it did not wait in the queue
	expires time.Time // for the holder; never after until

	until   time.Time     // the backend holds the lock until then, whatever is still under way
	longest time.Duration // the longest ttl that was asked for: it may hold the lock for that long
	unsure  time.Duration // the shortest ttl of a request without an answer, which may yet arrive; 0: none

	began    time.Time
	handoffs int           // -1 before the first holder that came from the queue
	fresh    time.Duration // the ttl that the lock was taken for, until there is a holder

	requesting bool          // an Acquire or Extend is under way: they go one at a time
	turn       chan struct{} // closed at its end; made when a call waits for it

	timer *time.Timer // of a holder, to notice its end; of a doubt, to forget it
	rings time.Time   // when the timer does, which may be too early, never too late

	ear       *ear // whose mark the token has, or nil
	lingering bool // it has no holder, and lingers until expires
	resumed   bool // it was taken again after lingering, so it may linger again

	claimed   bool          // it is in record.claims
	releasing bool          // its release had no answer, and may yet arrive
	doubt     *list.Element // in shard.doubts: a request had no answer
	next      *tenure       // in record.claims

	older, newer *tenure // in shard.lingers
}

func (t *tenure) heldBy(token string, now time.Time) bool {
	return t.holder == token && token != "" && now.Before(t.expires)
}

// lasts reports whether the backend holds the lock for ttl in any case, and not for longer than
// it may.
func (t *tenure) lasts(now time.Time, ttl, maxTenure time.Duration) bool {
	left := t.until.Sub(now)
	return t.record.tenure == t && left >= ttl && left-ttl <= maxTenure
}

// awaitTurnLocked waits for the end of the request that is under way for t. It releases s.mu
// while it waits.
func (s *shard) awaitTurnLocked(ctx context.Context, t *tenure) error {
	if t.turn == nil {
		t.turn = make(chan struct{})
	}
	turn := t.turn
	s.mu.Unlock()
	defer s.mu.Lock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t *tenure) endTurn() {
	t.requesting = false
	if t.turn != nil {
		close(t.turn)
		t.turn = nil
	}
}

// requestLocked sends an Acquire (take) or an Extend for t, whose turn it is. True means that
// t.holder, or the next one if that is empty, may have the lock for ttl from the start of the
// request. It releases the shard's mutex during the request.
func (l *Locker) requestLocked(ctx context.Context, t *tenure, take bool, ttl time.Duration) (ok bool, err error) {
	r, caller := t.record, t.holder
	if t.unsure > 0 && t.unsure < ttl {
		return false, errShortened
	}
	held, start, asked := r.tenure == t, time.Now(), ttl
	if held {
		asked = addCapped(ttl, l.extra(t, start))
	}
	err = errNoReturn
	defer func() {
		ok, err = t.conclude(take, held, caller, start.Add(ttl), asked, ok, err)
		r.settle()
	}()
	ok, err = l.sendLocked(ctx, t, take, asked, start)
	if asked > ttl && errors.Is(err, locker.ErrInvalidTTL) { // its own ttl may be short enough
		start, asked = time.Now(), ttl
		ok, err = l.sendLocked(ctx, t, take, asked, start)
	}
	return ok, err
}

// extra is how much longer than its holder's ttl the lock of a tenure is extended, for callers that may
// follow the holder.
func (l *Locker) extra(t *tenure, now time.Time) (d time.Duration) {
	queued := t.record.first != nil
	if queued {
		d = max(l.maxTenure-now.Sub(t.began), 0)
	}
	if t.resumed || queued && l.canLinger(t, now) {
		d = max(d, l.linger)
	}
	return d
}

// sendLocked makes one request for ttl, which starts now, and updates what is known about the
// backend.
func (l *Locker) sendLocked(ctx context.Context, t *tenure, take bool, ttl time.Duration, start time.Time) (
	ok bool, err error) {
	r, s := t.record, t.record.shard
	if end := start.Add(ttl); r.tenure == t && end.Before(t.until) {
		t.until = end // from now on, since it may arrive at any moment
		if t.holder != "" && end.Before(t.expires) {
			t.expires = end
			l.watch(t, start)
		}
	}
	acquiring := 0
	if t.claimed {
		acquiring = 1
	}
	t.longest = max(t.longest, ttl)
	t.requesting = true
	r.requesting++
	r.acquiring += acquiring
	s.mu.Unlock()
	err = errNoReturn
	defer func() {
		s.mu.Lock()
		r.acquiring -= acquiring
		r.requesting--
		t.endTurn()
		switch {
		case err != nil:
			if !refusesArguments(err) && (t.unsure == 0 || ttl < t.unsure) {
				t.unsure = ttl
			}
		case ok && t.unsure > 0:
			t.until = start.Add(min(ttl, t.unsure))
		case ok:
			t.until = start.Add(ttl)
		}
	}()
	if take {
		return l.inner.Acquire(ctx, r.key, t.token, ttl)
	}
	return l.inner.Extend(ctx, r.key, t.token, ttl)
}

// conclude updates t after a request for caller, and returns the caller's result. The tenure may
// have ended in the meantime, or have been forgotten.
func (t *tenure) conclude(take, held bool, caller string, deadline time.Time, asked time.Duration, ok bool,
	err error) (bool, error) {
	r := t.record
	switch {
	case held && r.tenure == t:
		switch {
		case err == nil && !ok:
			r.lose(t)
		case t.holder == "": // the lock is being handed on
		case err == nil: // even if the holder's time is up by now: no other caller has got the lock
			t.expires = deadline
			fallthrough
		default:
			r.locker.watch(t, time.Now())
		}
		return ok, err

	case !held && t.claimed:
		switch {
		case err != nil && !refusesArguments(err):
			r.remember(t)
		case err != nil || !ok:
			if t.unsure == 0 { // otherwise an earlier request may yet arrive
				r.forget(t)
			}
		case !time.Now().Before(t.until): // it is for the caller to notice that
			t.expires = t.until
			r.remember(t)
		default:
			t.expires = deadline
			t.begin(t.until, asked)
			r.install(t)
		}
		return ok, err

	case take && (ok || err != nil && !refusesArguments(err)):
		// It may have taken the lock again after the release.
		t.holder = caller
		r.remember(t)
		if err == nil {
			err = errOvertaken
		}
	}
	return false, err
}

// begin is called when the backend has granted t a ttl that ends at until.
func (t *tenure) begin(until time.Time, ttl time.Duration) {
	t.until = until
	t.longest = max(t.longest, ttl)
	t.began = until.Add(-ttl)
	if t.holder == "" {
		t.handoffs, t.fresh = -1, ttl
	}
}

// handoffLocked passes the lock of r.tenure to the first in the queue. If the tenure's time is up
// or the queue is empty, it lets the lock linger or gives it up on the backend. The result is that of
// a Release by from, the token that had the lock. It releases the shard's mutex during a request.
func (l *Locker) handoffLocked(ctx context.Context, t *tenure, from string, now time.Time) (
	released bool, err error) {
	r, fresh := t.record, t.fresh
	r.reuse(t.granted)
	t.holder, t.granted, t.fresh = "", nil, 0
	for {
		w := r.first
		switch {
		case w == nil && from != "" && l.canLinger(t, now):
			l.keep(t, now)
			return true, nil
		case w == nil || !l.mayHandOn(t, now):
			return l.giveUpLocked(ctx, t, from)
		case t.until.Sub(now) >= w.ttl || w.ttl <= fresh:
			t.handoffs++
			t.holder, t.values = w.token, w.ctx
			t.expires = earlier(now.Add(w.ttl), t.until)
			w.deadline, t.granted = t.expires, w
			r.tell(w)
			l.watch(t, now)
			return true, nil
		}
		extended, err := l.prolongLocked(ctx, t, w.ttl)
		switch {
		case r.tenure != t: // the backend has lost it
			return false, nil
		case err != nil || !extended:
			return l.giveUpLocked(ctx, t, from)
		}
		fresh, now = w.ttl, time.Now()
	}
}

// prolongLocked extends t for the next holder. If the backend does not return, since it panics or
// ends the goroutine, t is given up and another tenure serves the queue.
func (l *Locker) prolongLocked(ctx context.Context, t *tenure, ttl time.Duration) (extended bool, err error) {
	r, returned := t.record, false
	defer func() {
		if !returned && r.tenure == t {
			r.dropTenure()
			l.cleanUp(t)
			r.settle()
		}
	}()
	extended, err = l.requestLocked(ctx, t, false, ttl)
	returned = true
	return extended, err
}

// passOnLocked is handoffLocked when no Release asks for it.
func (l *Locker) passOnLocked(t *tenure) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.values), releaseTimeout)
	defer cancel()
	_, _ = l.handoffLocked(ctx, t, "", time.Now())
}

// mayHandOn reports whether the tenure allows another holder, and no request under way can
// shorten its lock.
func (l *Locker) mayHandOn(t *tenure, now time.Time) bool {
	return t.handoffs < l.maxHandoffs &&
		(t.handoffs < 0 || now.Sub(t.began) < l.maxTenure || l.canLinger(t, now)) &&
		now.Before(t.until) && !t.requesting && t.unsure == 0 && !t.releasing
}

// giveUpLocked ends the tenure on the backend, after which the queue gets another one. It
// releases the shard's mutex during the request.
func (l *Locker) giveUpLocked(ctx context.Context, t *tenure, from string) (released bool, err error) {
	t.startGiveUp(from)
	return l.finishGiveUpLocked(ctx, t, from)
}

// startGiveUp is the first part of giveUpLocked. finishGiveUpLocked must follow.
func (t *tenure) startGiveUp(from string) {
	r := t.record
	r.dropTenure()
	r.wanted = false // later demands may be for the next tenure
	r.givingUp++
	if from != "" { // further operations with this token wait for the answer
		t.holder, t.releasing, t.requesting = from, true, true
		r.claim(t)
	}
}

// finishGiveUpLocked makes the request. It releases the shard's mutex meanwhile.
func (l *Locker) finishGiveUpLocked(ctx context.Context, t *tenure, from string) (released bool, err error) {
	r, s := t.record, t.record.shard
	s.mu.Unlock()
	err = errNoReturn
	defer func() { // whatever happens to the request, the queue is served
		s.mu.Lock()
		if r.givingUp--; r.givingUp == 0 && r.gaveUp != nil {
			close(r.gaveUp)
			r.gaveUp = nil
		}
		t.endTurn()
		switch {
		case err == nil:
			if t.claimed && t.doubt == nil { // otherwise an Acquire may have taken the lock again
				r.unclaim(t)
			}
		case from == "":
			l.cleanUp(t)
		default:
			r.remember(t)
		}
		r.yield = r.first != nil
		r.settle()
	}()
	return l.inner.Release(ctx, r.key, t.token)
}

const releaseTimeout = 5 * time.Second

// cleanUp repeats, in the background, a Release that had no answer and that no caller repeats.
func (l *Locker) cleanUp(t *tenure) {
	undo.Start(t.values, undo.Work{Owner: l, Window: t.longest, Attempt: func(ctx context.Context) (bool, error) {
		_, err := l.inner.Release(ctx, t.record.key, t.token)
		if err == nil {
			l.unreleased.remove(t)
		}
		return err == nil, err
	}})
}

// watch makes sure that a holder that vanishes is passed over when its ttl ends. Since holders
// usually release long before, the timer is left alone while it rings early enough.
func (l *Locker) watch(t *tenure, now time.Time) {
	switch {
	case t.timer == nil:
		t.timer = time.AfterFunc(t.expires.Sub(now), func() { l.holderExpired(t) })
	case t.expires.Before(t.rings):
		t.timer.Reset(t.expires.Sub(now))
	default:
		return
	}
	t.rings = t.expires
}

func (l *Locker) holderExpired(t *tenure) {
	r, s := t.record, t.record.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.tenure != t { // given up
		return
	}
	t.stopTimer()
	now := time.Now()
	switch {
	case t.holder == "": // it is being handed on, or lingers
	case now.Before(t.expires):
		l.watch(t, now)
	case r.expire(now):
	case t.requesting && r.first == nil: // conclude takes care of it
	default:
		l.passOnLocked(t)
	}
}

func (t *tenure) stopTimer() {
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
