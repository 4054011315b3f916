package redislock

import (
	"container/list"
	"context"
	"crypto/rand"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/waithook"
)

const (
	margin   = 2 * time.Millisecond // a grant's deadline is early by the rounding of two times
	askAgain = time.Second          // the server of a lock may have changed while a waiter asks to look
	lateMax  = 3                    // how many grants may come too late before one is returned as it is
)

// Waiters are the waiters of one Locker.
type Waiters struct {
	Caller

	run       func(script Script, keys Keys, s *Sending, ms int64, more ...string) (any, error)
	counted   bool
	roundTrip roundTrip
	inbox     inbox
	sweeps    sweeps
	leavers   leavers
	number    atomic.Uint64 // of waiters so far
	givingUp  atomic.Int64  // waiters giving up their place in the queue

	asker     asker
	answering atomic.Int64 // answers to demands that are on their way
}

func newWaiters(c Config,
	run func(script Script, keys Keys, s *Sending, ms int64, more ...string) (any, error)) *Waiters {
	ws := &Waiters{run: run, counted: c.Counted}
	ws.Err, ws.Inline, ws.Unbounded = c.Err, c.Inline, c.Unbounded
	ws.inbox = inbox{Source: c.Source, names: c.Names, haunted: ws.leaveLater}
	return ws
}

// busy reports whether there are waiters, or were a moment ago, and so there may be a queue.
func (ws *Waiters) busy() bool { return ws.inbox.busy.Load() }

// SetLinger sets, for tests, how long a channel is kept after its last waiter. It must be called
// before there are waiters.
func (ws *Waiters) SetLinger(d time.Duration) { ws.inbox.Linger = d }

// GivingUp returns, for tests, how many places waiters are giving up.
func (ws *Waiters) GivingUp() int64 { return ws.givingUp.Load() }

// Ghosts returns, for tests, the number of ghosts.
func (ws *Waiters) Ghosts() int {
	ws.inbox.mu.Lock()
	defer ws.inbox.mu.Unlock()
	return len(ws.inbox.ghosts)
}

// waiting is one Wait that has to queue.
type waiting struct {
	keys  Keys
	ttl   time.Duration
	entry Entry
	id    string        // the entry's
	claim time.Duration // that the entry asks for while it cannot be granted the lock at once
	sent  string        // the entry as it was sent last

	isHeld bool // the lock was seen to be held by another
	joined bool // a request for a place was answered
	unsure bool // a request without an answer may yet put the entry in the queue

	// A moment on this process's clock, and what the server's clock said then or later; and the
	// ticket of that time.
	asked  time.Time // others read it under the inbox's lock
	server ServerTime
	ticket string

	unheard int    // the box's epoch in which the server did not count it; 0: none
	number  uint64 // in the order in which waiters came
	box     *box
	mail    chan Message  // the last one
	turn    chan struct{} // it may look now

	// Guarded by the inbox's lock:
	asks          *list.Element // its place in its lane; nil: it does not ask to look
	lane          *lane         // in which it asks, or asked last
	isUrgent      bool          // as it asks, or asked last
	mayLook, gone bool
	isLooking     bool          // a look is under way
	again         bool          // it must look once more after that
	isFirst       bool          // in the queue, as far as is known
	place         *list.Element // among its peers
}

// entries returns the two forms that the entry may have in the queue.
func (w *waiting) entries() [2]string { return [2]string{w.entry.String(0), w.entry.String(w.claim)} }

// told delivers a message. Only the last one counts, except that a Head does not replace another
// kind. It needs the inbox's lock.
func (w *waiting) told(m Message) {
	select {
	case last := <-w.mail:
		if m.Kind == Head {
			m = last
		}
	default:
	}
	w.mail <- m
}

// wait joins the queue and waits for its turn. ms is ttl in milliseconds, and isHeld means that the
// lock was seen to be held by another token.
func (ws *Waiters) wait(ctx context.Context, keys Keys, token string, ttl time.Duration,
	ms int64, isHeld bool) (permit int, deadline time.Time, err error) {
	w := &waiting{keys: keys, ttl: ttl, isHeld: isHeld, isLooking: true}
	w.entry = Entry{Nonce: rand.Text(), TTL: ms, Token: EncodeToken(token)}
	if keys.permits != nil {
		w.entry.Permits = len(keys.permits.locks)
	}
	w.id, w.claim = w.entry.ID(), ws.roundTrip.claim()
	w.number = ws.number.Add(1)
	w.mail, w.turn = make(chan Message, 1), make(chan struct{}, 1)
	// It joins before the subscription is live, so that its place in the queue is that of its
	// request.
	ws.inbox.enter(ctx, w)
	defer ws.inbox.leave(w)

	var pace Pace
	next := time.NewTimer(LookAgain) // when to look, if no message comes
	defer next.Stop()
	var s *Sending // the last request
	var hears bool // when it was sent
	for late, look := 0, true; ; {
		for look {
			look = false
			ws.inbox.looks(ctx, w)
			live, epoch := w.box.hears()
			hears = live && w.unheard != epoch
			s = NewSending(ctx, token)
			place, err := ws.look(s, w, hears)
			ws.inbox.looked(w)
			switch {
			case err != nil:
				if w.joined || !s.isUnsent() && !s.isForeign(err) {
					ws.giveUp(ctx, s, w, true)
				}
				if w.isHeld && ctx.Err() != nil {
					err = fmt.Errorf("%w: %w", err, locker.ErrHeld)
				}
				return 0, time.Time{}, err
			case place.Acquired:
				ws.served(w, s)
				return place.Permit, s.first.Add(w.ttl), nil
			}
			if place.IsNew && w.joined { // its place was lost, and those of others may be lost as well
				ws.inbox.mistrust(w, s.first)
			}
			if !w.isHeld {
				waithook.Call(ctx)
			}
			w.isHeld, w.joined, w.unsure = true, true, w.unsure || !s.answered
			w.server, w.ticket = place.Time, place.Ticket
			isForemost := ws.inbox.placed(w, s.first, place.Left, place.Rank)
			next.Reset(pace.After(place, hears, isForemost))
			if place.Unheard { // it is subscribed to another server, behind a proxy for instance
				w.unheard, look = epoch, true
			}
		}
		select {
		case m := <-w.mail:
			switch {
			case m.Kind == Head && m.Ticket == w.ticket:
				ws.inbox.leads(w, m.Left)
				if hears {
					next.Reset(pace.Told(m.Left))
				}
			case m.Kind == Granted && w.isTrue(m):
				// If it comes too late, the lock has expired or is about to. With a ttl that is too
				// short for this server that would never end.
				late++
				deadline := w.asked.Add(time.Duration(m.Time-w.server) + w.ttl - margin)
				if ctx.Err() == nil && (time.Now().Before(deadline) || late > lateMax) {
					ws.served(w, s)
					return m.Permit, deadline, nil
				}
				look = true
			case m.Kind == Dropped:
				ws.inbox.ask(w) // many may have been dropped at once
			default:
				// A claim, or a grant that it has lost since: a later reply showed another holder.
				look = true
			}
		case <-w.turn:
			look = true
		case <-next.C:
			ws.inbox.ask(w)
			next.Reset(askAgain)
		case <-ctx.Done():
			ws.giveUp(ctx, s, w, false)
			return 0, time.Time{}, fmt.Errorf("%w: %w", ctx.Err(), locker.ErrHeld)
		}
	}
}

// look takes the lock if it is free or was granted, and otherwise puts the entry in the queue,
// unless it is there already.
func (ws *Waiters) look(s *Sending, w *waiting, hears bool) (Place, error) {
	claim := w.claim
	if hears && ws.counted {
		claim = 0
	}
	entry, former := w.entry.String(claim), w.sent
	if former == entry {
		former = ""
	}
	w.sent = entry
	return Call(&ws.Caller, s, func() (Place, error) {
		reply, err := ws.run(w.keys.of(Look, PermitsLook), w.keys, s, w.entry.TTL, entry, former)
		s.came(err)
		if err != nil {
			return Place{}, err
		}
		return ParsePlace(reply, w.entry.Permits)
	})
}

// isTrue reports whether a grant can be relied on. If it is older than the last reply to a look,
// another token has held the lock since. If more time has passed on the server between that reply
// and the grant than here since the look, the server's clock was set or is another server's, and
// the age of the grant is unknown.
func (w *waiting) isTrue(m Message) bool {
	since := time.Duration(m.Time - w.server)
	return m.Ticket == w.ticket && (m.Permit > 0) == (w.entry.Permits > 0) && m.Permit <= w.entry.Permits &&
		since >= 0 && since <= time.Since(w.asked)+margin
}
