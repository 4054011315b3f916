package cohort

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// maxUnwanted limits the tenure of a lock that no other process is known to want, in multiples of
// the slack. A demand may be lost, for instance if the other process is not permitted to publish.
const maxUnwanted = 20

// A lock lingers while the backend holds it under the private token of a tenure that has no holder
// and no request under way. The record's queue is then empty. All locks linger for the same time,
// so the list of a shard is in the order in which they are given up, and one timer for the first of
// them is enough.

// lingers is the list of a shard's tenures that linger, the oldest first.
type lingers struct {
	first, last *tenure
	armed       bool // a timer fires by the time the oldest has lingered long enough
}

func (l *lingers) add(t *tenure) {
	t.lingering, t.older, t.newer = true, l.last, nil
	if l.last == nil {
		l.first = t
	} else {
		l.last.newer = t
	}
	l.last = t
}

// remove removes t, if it lingers.
func (l *lingers) remove(t *tenure) {
	if !t.lingering {
		return
	}
	if t.older == nil {
		l.first = t.newer
	} else {
		t.older.newer = t.newer
	}
	if t.newer == nil {
		l.last = t.older
	} else {
		t.newer.older = t.older
	}
	t.lingering, t.older, t.newer = false, nil, nil
}

// parting is the release of a lock that has lingered. Attempts of this process wait until it has
// ended. Before that they would be refused by a token that no caller uses.
type parting struct {
	token   string
	done    chan struct{}     // closed when the release has ended
	err     error             // of the release, set before done is closed
	answers []func(free bool) // to the demands that came in the meantime
}

// maxAnswers limits the demands that wait for one parting. Further demands are refused.
const maxAnswers = 256

func (p *parting) answerLater(answer func(free bool)) {
	if len(p.answers) >= maxAnswers {
		answer(false)
		return
	}
	p.answers = append(p.answers, answer)
}

// canLinger reports whether this Locker may keep the lock of t, or continue to hand it on, because
// no other process wants it.
func (l *Locker) canLinger(t *tenure, now time.Time) bool {
	return l.linger > 0 && l.maxTenure > 0 && !l.closed.Load() &&
		t.ear != nil && t.ear.Live() && !t.record.wanted &&
		t.handoffs < l.maxHandoffs && now.Sub(t.began)/maxUnwanted < l.slack() &&
		now.Before(t.until) && !t.requesting && t.unsure == 0 && !t.releasing
}

// keep makes the lock of t linger.
func (l *Locker) keep(t *tenure, now time.Time) {
	s := t.record.shard
	t.holder, t.values = "", context.Background() // no caller will make the release
	t.expires = now.Add(l.linger)
	s.lingers.add(t)
	if !s.lingers.armed {
		s.lingers.armed = true
		time.AfterFunc(l.linger, func() { l.sweepLingering(s) })
	}
	if t.until.Before(t.expires) {
		s.sweepLater()
	}
}

// lingering returns the record's tenure if it lingers, and otherwise nil.
func (r *record) lingering() *tenure {
	if t := r.tenure; t != nil && t.lingering {
		return t
	}
	return nil
}

// resumeLocked gives a lock that lingers to a caller of this process, without a request if the
// backend holds it for long enough. If ok is false without an error, the backend has lost the lock
// or its time is up. If an Acquire gets an error, its caller has to release token, as after an
// error of the backend. The caller of a Wait has nothing to release. resumeLocked releases the
// shard's mutex during a request.
func (l *Locker) resumeLocked(ctx context.Context, t *tenure, token string, ttl time.Duration,
	isWait bool) (deadline time.Time, ok bool, err error) {
	now := time.Now()
	if !now.Before(t.until) { // the backend may hold it for a little longer
		l.partLater(t, "")
		return time.Time{}, false, nil
	}
	t.record.shard.lingers.remove(t)
	t.holder, t.values = token, ctx
	t.handoffs++
	t.expires = earlier(now.Add(ttl), t.until)
	if t.lasts(now, ttl, l.slack()) {
		l.attend(t, now)
		return t.expires, true, nil
	}
	t.resumed = true
	ok, err = l.requestLocked(ctx, t, false, ttl)
	r := t.record
	switch {
	case err == nil || r.tenure != t:
	case refusesArguments(err):
		l.passOnLocked(t)
	case isWait:
		l.partLater(t, token)
	default: // like an Acquire without an answer: a Release with token has to reach the backend
		r.dropTenure()
		r.remember(t)
		r.settle()
	}
	return t.expires, ok, err
}

// resumeOrUnlock is resumeLocked for a Wait. It releases the shard's mutex if the backend panics or
// ends the goroutine.
func (l *Locker) resumeOrUnlock(ctx context.Context, t *tenure, token string, ttl time.Duration) (
	deadline time.Time, ok bool, err error) {
	returned := false
	defer func() {
		if !returned {
			t.record.shard.mu.Unlock()
		}
	}()
	deadline, ok, err = l.resumeLocked(ctx, t, token, ttl, true)
	returned = true
	return deadline, ok, err
}

// slack is how much longer than its holder's ttl the backend may hold the lock of a tenure.
func (l *Locker) slack() time.Duration { return max(l.maxTenure, l.linger) }

// attend makes sure that the end of a holder's time is noticed even if the backend's lock lasts
// longer.
func (l *Locker) attend(t *tenure, now time.Time) {
	if t.expires.Before(t.until) {
		l.watch(t, now)
	} else {
		t.record.shard.sweepLater()
	}
}

// sweepLingering gives up the locks that have lingered for long enough.
func (l *Locker) sweepLingering(s *shard) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lingers.armed = false // a slow backend must not delay locks that begin to linger from now on
	for t := s.lingers.first; t != nil; t = s.lingers.first {
		if left := time.Until(t.expires); left > 0 {
			if !s.lingers.armed {
				s.lingers.armed = true
				time.AfterFunc(left, func() { l.sweepLingering(s) })
			}
			return
		}
		_ = l.part(context.Background(), t)
	}
}

// part gives up a lock that lingers, and then serves the record. It makes a request even if the
// lock's time is up here, since on the backend it began later, by up to the duration of the
// request. part releases the shard's mutex during the request.
func (l *Locker) part(ctx context.Context, t *tenure) error {
	return l.finishPartingLocked(ctx, t, t.startParting(""), "")
}

// partLater is part in the background. If from is not empty, the lock was being resumed for a Wait
// with that token, which has failed.
func (l *Locker) partLater(t *tenure, from string) {
	p := t.startParting(from)
	go func() {
		s := t.record.shard
		s.mu.Lock()
		defer s.mu.Unlock()
		_ = l.finishPartingLocked(context.WithoutCancel(t.values), t, p, from)
	}()
}

// startParting ends the tenure: from now on no caller of this process gets its lock.
func (t *tenure) startParting(from string) *parting {
	p := &parting{token: t.token, done: make(chan struct{})}
	t.record.parting = p
	t.startGiveUp(from)
	return p
}

func (l *Locker) finishPartingLocked(ctx context.Context, t *tenure, p *parting, from string) (
	err error) {
	err = errNoReturn
	defer func() {
		if r := t.record; r.parting == p {
			r.parting = nil
		}
		p.err = err
		close(p.done)
		if err != nil {
			l.unreleased.add(t)
			if from != "" { // the caller of a Wait does not repeat the release
				l.cleanUp(t)
			}
		}
		for _, answer := range p.answers {
			answer(err == nil)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	_, err = l.finishGiveUpLocked(ctx, t, from)
	return err
}

// awaitPartingLocked waits until a parting has ended. It releases s.mu while it waits.
func (s *shard) awaitPartingLocked(ctx context.Context, p *parting) error {
	s.mu.Unlock()
	defer s.mu.Lock()
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close releases the locks that linger (see [WithLinger]). It takes up to five seconds. If the
// backend has not confirmed a release by then, Close returns an error that wraps the cause, and the
// lock ends with its ttl. Locks that callers hold are not affected. The Locker continues to work,
// without lingering. Close may be called more than once.
func (l *Locker) Close() error {
	if l == nil || l.linger == 0 {
		return nil
	}
	l.closed.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	var all sync.WaitGroup
	var errs [shardCount + 1]error
	failed := l.unreleased.all()
	all.Go(func() { errs[shardCount] = l.releaseAgain(ctx, failed) })
	for i := range l.shards {
		all.Go(func() { errs[i] = l.closeShard(ctx, &l.shards[i]) })
	}
	all.Wait()
	l.ears.close()
	if err := errors.Join(errs[:]...); err != nil {
		return fmt.Errorf("cohort: close: %w", err)
	}
	return nil
}

// closeShard gives up the locks of a shard that linger, and returns the first error.
func (l *Locker) closeShard(ctx context.Context, s *shard) (first error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	note := func(r *record, err error) {
		if err != nil && first == nil {
			first = fmt.Errorf("release %q: %w", r.key, err)
		}
	}
	for t := s.lingers.first; t != nil; t = s.lingers.first {
		note(t.record, l.part(ctx, t))
	}
	for { // releases that a timer or a demand has begun
		r := s.anyParting()
		if r == nil {
			return first
		}
		p := r.parting
		if err := s.awaitPartingLocked(ctx, p); err != nil {
			note(r, err)
			return first
		}
		note(r, p.err)
	}
}

func (s *shard) anyParting() *record {
	for _, r := range s.records {
		if r.parting != nil {
			return r
		}
	}
	return nil
}
