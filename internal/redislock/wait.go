package redislock

// A Wait: the callers of this process stand in a line, and the first of it has an entry in the queue.

import (
	"context"
	"fmt"
	mathrand "math/rand/v2"
	"strconv"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/line"
	"github.com/golockers/locker/internal/undo"
	"github.com/golockers/locker/internal/waithook"
)

const (
	// LookAgain is the time after which a waiter looks if no message has come.
	LookAgain = 10 * time.Second

	late      = time.Millisecond       // after a lock's expiry, the rounding of its remaining time
	behind    = 25 * time.Millisecond  // after that, for each entry before it in the queue
	leastRest = 25 * time.Millisecond  // between two looks that find the lock held
	noPlace   = 250 * time.Millisecond // between two looks that could not join the queue
	permitsAt = time.Second            // between two looks for permits: no message tells that one was released as a lock
	deafFirst = 4 * time.Millisecond   // between two looks if it cannot hear, twice as long each time,
	deafLast  = 50 * time.Millisecond  // up to this, for each entry up to its own,
	deafMost  = 500 * time.Millisecond // up to this; but
	deafEach  = 3 * time.Millisecond   // for each line of the process
)

// place is what the first of a line hands on to the next: the process's entry in the queue.
type place struct {
	entry    string // "": it has none
	isSent   bool   // it may be in the queue
	ticket   string // of the entry, or of one that it replaces
	follower string // the entry of the next one, when this one has the lock; "": none was made
	due      time.Time
	wake     chan struct{} // there is news

	// Guarded by the inbox's lock:
	offered string    // the entry that was last offered a lock; "": none, or it is known
	lookAt  time.Time // zero: no message has come
}

// waiter is a Wait that has its turn in the line.
type waiter struct {
	*place
	locks  *Locks
	keys   Keys
	token  string
	ms     int64
	turn   *line.Place[string, place]
	isHeld bool // the lock was seen to be held by another
	unsure bool // a request without an answer may yet arrive
	looks  int
	deaf   int
}

// found is the reply to a look.
type found struct {
	number    int // of the lock that was taken; 0: none; -1: its holder may only keep it
	left      time.Duration
	rank      int64
	ticket    string // "": there is no place in the queue
	listeners int64
}

// look runs [Look]. It joins the queue if more has an entry.
func (l *Locks) look(s *Sending, keys Keys, ms int64, more ...string) (f found, err error) {
	reply, err := l.run(Look, keys, s, ms, more...)
	s.came(err)
	if err != nil {
		return f, err
	}
	list, _ := reply.([]any)
	if len(list) == 5 {
		number, ok1 := list[0].(int64)
		left, ok2 := list[1].(int64)
		rank, ok3 := list[2].(int64)
		ticket, ok4 := list[3].(string)
		listeners, ok5 := list[4].(int64)
		if ok1 && ok2 && ok3 && ok4 && ok5 && number >= -1 && number <= int64(keys.locks()) {
			return found{int(number), remaining(left), rank, ticket, listeners}, nil
		}
	}
	return f, fmt.Errorf("unexpected reply to a look at a lock: %v", reply)
}

// remaining converts PTTL's reply, and cuts what is longer than a waiter waits without a look.
func remaining(ms int64) time.Duration {
	switch {
	case ms == -1: // it has no expiry
		return LookAgain
	case ms < 0: // there is no lock
		return 0
	}
	return time.Duration(min(ms, LookAgain.Milliseconds())) * time.Millisecond
}

// waitFor takes a lock if it is free, and otherwise waits. It returns the lock's number among those
// of keys.
func (l *Locks) waitFor(ctx context.Context, keys Keys, token string, ttl time.Duration) (
	number int, deadline time.Time, err error) {
	ms, err := milliseconds(ttl)
	switch {
	case ctx.Err() != nil:
		return 0, time.Time{}, ctx.Err()
	case err != nil:
		return 0, time.Time{}, err
	case l.Err != nil:
		return 0, time.Time{}, l.Err
	case keys.Queue == "":
		return 0, time.Time{}, errNoQueue
	}
	s := NewSending(ctx, token)
	if err := l.doubts.stop(ctx, keys, s.Token); err != nil {
		return 0, time.Time{}, err
	}
	if !l.inbox.busy.Load() {
		number, err = Call(&l.Caller, s, func() (number int, err error) {
			if keys.permits != nil {
				var f found
				f, err = l.look(s, keys, ms)
				number = max(f.number, 0)
			} else {
				number, err = l.takeLock(s, keys.Lock, ms)
			}
			if err == nil && number == 0 {
				err = s.Refused(l.timeout, l.timeout)
			}
			return number, err
		})
		switch {
		case err != nil && s.isUnsent():
			return 0, time.Time{}, s.noCleanup(err)
		case err != nil: // the request may have taken the lock, or may yet take it
			l.undo(ctx, keys, s.Token, ttl, s)
			return 0, time.Time{}, err
		case number > 0:
			if s.Sends() > 1 {
				l.doubts.note(keys, s.Token)
			}
			return number, s.first.Add(ttl), nil
		}
	}
	return l.wait(ctx, keys, token, ttl, ms, s.Sends() > 0)
}

// takeLock takes a lock if it is free, and returns 1 or 0. A refused waiter runs the queue's script,
// which finds the holder, and that may be this token. So the reply need not name it.
func (l *Locks) takeLock(s *Sending, lock string, ms int64) (number int, err error) {
	sent := time.Now()
	wasFree, err := l.requests.Set(s, lock, ms)
	s.came(err)
	if err == nil {
		l.roundTrip.add(time.Since(sent))
	}
	if err == nil && wasFree {
		number = 1
	}
	return number, err
}

// wait waits for a turn in the line, and then for the lock. isHeld means that the lock was seen to be
// held by another token.
func (l *Locks) wait(ctx context.Context, keys Keys, token string, ttl time.Duration, ms int64, isHeld bool) (
	number int, deadline time.Time, err error) {
	l.inbox.enter(ctx)
	defer l.inbox.leave()
	turn := l.lines.JoinN(keys.Queue, keys.locks())
	if isHeld {
		turn.Refuse()
		waithook.Call(ctx)
	}
	select {
	case <-turn.Turn():
	default:
		waithook.Call(ctx)
		select {
		case <-turn.Turn():
			if err := turn.Err(); err != nil {
				return 0, time.Time{}, err
			}
		case <-ctx.Done():
			isHeld = isHeld || turn.Refused()
			if turn.Leave() { // its turn came just now
				w := &waiter{place: turn.State(), locks: l, keys: keys, token: EncodeToken(token)}
				w.vacate(ctx)
			}
			return 0, time.Time{}, heldError(ctx.Err(), isHeld)
		}
	}
	w := &waiter{place: turn.State(), locks: l, keys: keys, token: EncodeToken(token), ms: ms, turn: turn,
		isHeld: isHeld || turn.Refused()}
	if w.wake == nil {
		w.wake = make(chan struct{}, 1)
	}
	number, sent, err := w.wait(ctx)
	switch {
	case err == nil:
		if turn.Leave() {
			w.vacate(ctx)
		}
		return number, sent.Add(ttl), nil
	case w.unsure: // a late request must not take the successor's turn
		old := w.renew("")
		if ctx.Err() != nil {
			turn.Leave()
		} else {
			turn.Fail(undo.Needless(err))
		}
		l.undo(ctx, keys, w.token, ttl, nil, old...)
	case ctx.Err() != nil:
		if turn.Leave() {
			w.vacate(ctx)
		}
	default:
		turn.Fail(undo.Needless(err)) // of the others, which have asked for nothing
		w.vacate(ctx)
	}
	return 0, time.Time{}, heldError(err, w.isHeld && ctx.Err() != nil)
}

func heldError(err error, isHeld bool) error {
	if isHeld {
		return fmt.Errorf("%w: %w", err, locker.ErrHeld)
	}
	return err
}

// vacate gives up the entry, which nobody in the line will use any more. It leaves alone the lock that
// the waiter's token may have.
func (w *waiter) vacate(ctx context.Context) {
	if old := w.renew(""); len(old) > 0 {
		w.locks.undo(ctx, w.keys, "", attemptFor, new(Sending), old...)
	}
}

// renew replaces the entry by another one, or by none, and returns those that may be in the queue. A
// message for one of them is passed on from here on.
func (w *waiter) renew(entry string) (old []string) {
	for _, e := range []string{w.entry, w.follower} {
		if e != "" && e != entry {
			w.locks.inbox.forget(w.place, e)
			if w.isSent {
				old = append(old, e)
			}
		}
	}
	w.entry, w.follower, w.isSent, w.due = entry, "", entry != "", time.Time{}
	return old
}

// wait looks until it has the lock. It returns when the request was sent that took it.
func (w *waiter) wait(ctx context.Context) (number int, sent time.Time, err error) {
	timer := time.NewTimer(time.Until(w.due))
	defer timer.Stop()
	for {
		isUrgent := false
		select {
		case <-w.wake:
			isOffered, at := w.locks.inbox.news(w.place)
			if isUrgent = isOffered; isUrgent {
				w.due = time.Time{} // also for the next one, if ctx has just ended
			} else {
				if !at.IsZero() && at.Before(w.due) { // a message may be older than the last reply
					w.due = at
					timer.Reset(time.Until(at))
				}
				continue
			}
		case <-timer.C:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return 0, time.Time{}, ctx.Err()
		}
		server := w.locks.serverOf(w.keys.Lock)
		if !isUrgent && !w.locks.looking.enter(ctx, server) {
			return 0, time.Time{}, ctx.Err()
		}
		s, wasSent := &Sending{Ctx: ctx, Token: w.token}, w.isSent
		f, hears, err := w.look(s)
		if !isUrgent {
			w.locks.looking.leave(server)
		}
		switch {
		case err != nil:
			if s.isUnsent() || s.isForeign(err) {
				w.isSent = wasSent
			} else {
				w.unsure = true
			}
			return 0, time.Time{}, err
		case f.number > 0:
			follower := ""
			if f.ticket != "" {
				follower = w.follower
			}
			w.renew(follower)
			if w.ticket = f.ticket; follower != "" {
				w.due = time.Now().Add(w.pause(f, hears))
			}
			if w.unsure || s.Sends() > 1 {
				w.locks.doubts.note(w.keys, s.Token)
			}
			return f.number, s.first, nil
		}
		w.isHeld = true
		w.turn.Refuse()
		waithook.Call(ctx)
		w.unsure = w.unsure || !s.answered
		w.ticket = f.ticket
		rest := w.pause(f, hears)
		w.due = time.Now().Add(rest)
		timer.Reset(rest)
	}
}

// look takes the lock, or joins the queue. It also reports whether the waiter can rely on messages.
func (w *waiter) look(s *Sending) (f found, hears bool, err error) {
	l := w.locks
	hears, try := l.inbox.hears(s.Ctx)
	how := l.roundTrip.claim()
	if hears && l.counted {
		how += 16
	}
	if w.entry == "" {
		w.entry = l.inbox.newEntry(w.place, w.keys)
	}
	following := ""
	if w.turn.HasNext() {
		if w.follower == "" {
			w.follower = l.inbox.newEntry(w.place, w.keys)
		}
		following = w.follower
	}
	w.isSent = true
	keys, ms := w.keys, w.ms
	arguments := []string{w.entry, w.ticket, strconv.FormatInt(how, 10), following, try}
	f, err = Call(&l.Caller, s, func() (found, error) { return l.look(s, keys, ms, arguments...) })
	if err == nil && f.ticket != "" {
		l.inbox.tried(f.listeners != -2)
	}
	return f, hears && f.listeners != -2 && (f.listeners != 0 || !l.counted), err
}

// pause returns the time until the next look.
func (w *waiter) pause(f found, hears bool) time.Duration {
	rest := f.left + late + time.Duration(min(f.rank, int64(LookAgain/behind)))*behind
	if w.keys.permits != nil {
		rest = min(rest, permitsAt*time.Duration(min(f.rank+1, int64(LookAgain/permitsAt))))
	}
	if w.looks++; w.looks > 1 {
		rest = max(rest, leastRest)
	}
	rest = min(rest, LookAgain)
	if f.ticket == "" {
		rest = min(rest, noPlace)
	}
	if !hears {
		gap := min(deafFirst<<min(w.deaf, 8), deafLast) * time.Duration(min(f.rank+1, int64(deafMost/deafLast)))
		gap = max(gap, deafEach*time.Duration(w.locks.lines.Waiting()))
		rest = min(rest, gap)
		w.deaf++
	} else {
		w.deaf = 0
	}
	return rest + mathrand.N(max(late, rest/50))
}
