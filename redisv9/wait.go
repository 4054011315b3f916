package redisv9

import (
	"container/list"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/redislock"
	"github.com/redis/go-redis/v9"
)

const (
	margin   = 2 * time.Millisecond // a grant's deadline is early by the rounding of two times
	askAgain = time.Second          // the server of a lock may have changed while a waiter asks to look
	lateMax  = 3                    // how many grants may come too late before one is returned as it is
)

// Wait takes the lock as Acquire does if it is free, and otherwise joins the queue in Redis and
// returns when it is handed the lock. The queue is first come, first served across processes. A
// lock whose holder vanished goes to the first in the queue a few milliseconds after it expires, and
// if that one vanished with it, to the next process about a second after that.
//
// A waiter whose process has gone is passed over. The server detects that when the process's
// connection ends. On a Cluster it cannot: each release that meets such a waiter costs a second
// (over a slow link eight round trips, up to ten seconds), and after two of them all others that do
// not answer are passed over as well. If a machine vanishes and its connection does not end, its
// waiters may be handed the lock, for their ttl, for up to 25 seconds more.
//
// Joining takes one request, like taking a free lock; on a Cluster, and with a client that is not
// go-redis's own, claiming the lock takes another. The first time that a Locker meets a queue, it
// makes two more requests and opens a connection on which it hears of its turn. The connection is
// closed within a minute after the last waiter. If it fails, as for users who may not subscribe,
// waiters look up to twenty times a second instead.
//
// If ctx ends in the queue, the place, or the lock if it has been granted meanwhile, is given up in
// the background. The error is [errors.ErrUnsupported] for names with a } but without a hash tag on
// Ring and Cluster.
func (l *Locker) Wait(ctx context.Context, key, token string, ttl time.Duration) (deadline time.Time, err error) {
	keys := l.names.Keys(key)
	ms, err := milliseconds(ttl)
	switch {
	case ctx.Err() != nil:
		return time.Time{}, ctx.Err()
	case err != nil:
		return time.Time{}, err
	case keys.Queue == "":
		return time.Time{}, errNoQueue
	}
	w := &waiting{key: key, keys: keys, ttl: ttl}
	w.entry.TTL = ms
	if l.inbox.busy.Load() {
		return l.waitInQueue(ctx, w, token)
	}
	s := newSending(ctx, token)
	acquired, err := call(l, s, func() (bool, error) {
		// The queue's script will find the holder, which may be this token. So the reply need not
		// name it, which spares go-redis an error for a nil reply.
		set := redis.NewBoolCmd(s.ctx, "set", keys.Lock, s, "px", ms, "nx")
		sent := time.Now()
		err := l.client.Process(s.ctx, set)
		s.answered = err == nil && s.sends == 1
		if err == nil {
			l.roundTrip.add(time.Since(sent))
		}
		if err == nil && !set.Val() {
			err = s.refused(l.limits.io, l.limits.io)
		}
		return err == nil && set.Val(), err
	})
	switch {
	case acquired:
		return s.first.Add(ttl), nil
	case err == nil:
		w.isHeld = true
		return l.waitInQueue(ctx, w, token)
	case l.err == nil && !s.isUnsent():
		l.giveUp(ctx, keys, s, nil, false)
	}
	return time.Time{}, err
}

var errNoQueue = fmt.Errorf("the name has a } but no hash tag, so its queue cannot be in its slot: %w",
	errors.ErrUnsupported)

// waiting is one Wait that has to stand in the queue.
type waiting struct {
	key   string
	keys  redislock.Keys
	ttl   time.Duration
	entry redislock.Entry
	id    string        // the entry's
	claim time.Duration // that the entry asks for while it cannot be granted the lock at once
	sent  string        // the entry as it was sent last

	isHeld bool // the lock was seen to be held by another
	joined bool // a request for a place was answered
	unsure bool // a request without an answer may yet put the entry in the queue

	// A moment on this process's clock, and what the server's clock said then or later; and the
	// ticket of that time.
	asked  time.Time
	server redislock.ServerTime
	ticket string

	unheard int    // the box's epoch in which the server did not count it; 0: none
	number  uint64 // in the order in which waiters came
	box     *box
	mail    chan redislock.Message // the last one
	turn    chan struct{}          // it may look now

	// Guarded by the inbox's lock:
	asks                  *list.Element // its place in its lane; nil: it does not ask to look
	lane                  *lane         // in which it asks, or asked last
	isUrgent              bool          // as it asks, or asked last
	mayLook, looked, gone bool
	isFirst               bool          // in the queue, as far as is known
	place                 *list.Element // among its peers
}

// told takes a message, of which only the last counts, but a Head says less than any other. The
// inbox's lock is held.
func (w *waiting) told(m redislock.Message) {
	select {
	case last := <-w.mail:
		if m.Kind == redislock.Head {
			m = last
		}
	default:
	}
	w.mail <- m
}

// waitInQueue joins the queue and waits for its turn.
func (l *Locker) waitInQueue(ctx context.Context, w *waiting, token string) (time.Time, error) {
	if l.err != nil {
		return time.Time{}, l.err
	}
	w.entry.Nonce, w.entry.Token = rand.Text(), redislock.EncodeToken(token)
	w.id, w.claim = w.entry.ID(), l.roundTrip.claim()
	w.number = l.waiters.Add(1)
	w.mail, w.turn = make(chan redislock.Message, 1), make(chan struct{}, 1)
	// It joins before the channel is subscribed to: its place in the queue is that of its request.
	l.inbox.enter(ctx, w)
	defer l.inbox.leave(w)

	var pace redislock.Pace
	next := time.NewTimer(redislock.LookAgain) // when to look, if nothing is heard
	defer next.Stop()
	var s *sending // the last request
	var hears bool // when it was sent
	for late, look := 0, true; ; {
		for look {
			look = false
			live, epoch := w.box.hears()
			hears = live && w.unheard != epoch
			s = newSending(ctx, token)
			place, err := l.look(s, w, hears)
			l.inbox.looked(w)
			switch {
			case err != nil:
				if w.joined || !s.isUnsent() && !s.isForeign(err) {
					l.giveUp(ctx, w.keys, s, w, w.unsure)
				}
				if w.isHeld && ctx.Err() != nil {
					err = fmt.Errorf("%w: %w", err, locker.ErrHeld)
				}
				return time.Time{}, err
			case place.Acquired:
				l.served(w, s)
				return s.first.Add(w.ttl), nil
			}
			if place.IsNew && w.joined { // its place was lost, as may be those of others
				l.inbox.mistrust(w)
			}
			w.isHeld, w.joined, w.unsure = true, true, w.unsure || !s.answered
			w.asked, w.server, w.ticket = s.first, place.Time, place.Ticket
			next.Reset(pace.After(place, hears))
			l.inbox.placed(w, place.Left, place.Rank)
			if place.Unheard { // it is subscribed to another server, behind a proxy for instance
				w.unheard, look = epoch, true
			}
		}
		select {
		case m := <-w.mail:
			switch {
			case m.Kind == redislock.Head && m.Ticket == w.ticket:
				l.inbox.placed(w, m.Left, 0)
				if hears {
					next.Reset(pace.Told(m.Left))
				}
			case m.Kind == redislock.Granted && w.isTrue(m):
				// When it comes too late, the lock is gone, or about to go. With a ttl that is too
				// short for this server, that would go on for ever.
				late++
				deadline := w.asked.Add(time.Duration(m.Time-w.server) + w.ttl - margin)
				if ctx.Err() == nil && (time.Now().Before(deadline) || late > lateMax) {
					l.served(w, s)
					return deadline, nil
				}
				look = true
			case m.Kind == redislock.Dropped:
				l.inbox.ask(w) // many may have been dropped at once
			default:
				// A claim, or a grant that it has lost since: the server has said after it that the
				// lock is another's.
				look = true
			}
		case <-w.turn:
			look = true
		case <-next.C:
			l.inbox.ask(w)
			next.Reset(askAgain)
		case <-ctx.Done():
			l.giveUp(ctx, w.keys, s, w, w.unsure)
			return time.Time{}, fmt.Errorf("%w: %w", ctx.Err(), locker.ErrHeld)
		}
	}
}

// look takes the lock if it is free or was granted, and otherwise puts the entry in the queue if it
// is not there.
func (l *Locker) look(s *sending, w *waiting, hears bool) (redislock.Place, error) {
	claim := w.claim
	if hears && l.counted {
		claim = 0
	}
	entry, former := w.entry.String(claim), w.sent
	if former == entry {
		former = ""
	}
	w.sent = entry
	return call(l, s, func() (redislock.Place, error) {
		reply, err := l.run(redislock.Look, w.keys, s, w.entry.TTL, entry, former)
		s.answered = err == nil && s.sends == 1
		if err != nil {
			return redislock.Place{}, err
		}
		return redislock.ParsePlace(reply)
	})
}

// isTrue reports whether a grant is of use. If it came before the last answer, the lock was another's after it. The
// time from that answer to the grant cannot be longer than what has passed here since it was asked for: the server's
// clock was set, or it is another server's, and how old the grant is cannot be told.
func (w *waiting) isTrue(m redislock.Message) bool {
	since := time.Duration(m.Time - w.server)
	return m.Ticket == w.ticket && since >= 0 && since <= time.Since(w.asked)+margin
}
