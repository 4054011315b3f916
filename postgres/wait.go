package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/line"
	"github.com/golockers/locker/internal/undo"
	"github.com/golockers/locker/internal/waithook"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

const (
	lookAgain  = 5 * time.Second       // the first of a line looks at least this often,
	lookOften  = 50 * time.Millisecond // and this often if it cannot hear of its turn
	stagger    = 20 * time.Millisecond // between the looks of processes after the lock has expired
	maxStagger = time.Second
	outage     = 5 * time.Second // how long a waiter tries to reach the server again
	retryOften = 5 * time.Millisecond
	retryLeast = 320 * time.Millisecond // with pauses that grow from one to the other

	// A deadline counts from the request for a place if less than this part of the ttl has passed
	// since then. Otherwise the waiter reads the row, which gives a later deadline.
	soon = 8
)

// Wait takes the lock as Acquire does if it is free, and otherwise joins the queue in the lock's
// row and returns when it is handed the lock. The waiters of a Locker are served in order, and have
// one place in the queue together: the first of them stands there, and the others wait without
// requests. Lockers take turns. A lock whose holder vanished goes to the first in the queue some
// milliseconds after it expires, and if that one vanished with it, to another within five seconds.
//
// A process that has gone is passed over. The server knows that when the process's connection has
// ended. If a machine vanishes and its connection does not end, it may be handed the lock, for the
// ttl of its waiter, until the server's TCP keepalives notice (two hours by default). A lock that has
// expired is not left for such processes for more than ten seconds.
//
// If the server cannot be reached, the first waiter tries again for five seconds. Its error is then
// the error of all.
//
// Joining takes one request, like taking a free lock. A waiter that has waited for longer than an
// eighth of its ttl takes another to learn how long it holds the lock. Waiters are notified on the
// connection that [Locker.Watch] describes. If it fails, the first looks up to twenty times a second
// instead.
//
// If ctx ends while Wait is in the queue, its place goes to the next waiter of the Locker, or is
// given up before Wait returns. If that takes longer than a tenth of a second, it goes on in the
// background, for up to a minute or until the pool is closed. Behind a pooler the error is
// [errors.ErrUnsupported].
func (l *Locker) Wait(ctx context.Context, key, token string, ttl time.Duration) (deadline time.Time, err error) {
	us, err := microsecondsOf(ttl)
	switch {
	case ctx.Err() != nil:
		return time.Time{}, ctx.Err()
	case err != nil:
		return time.Time{}, err
	case l.err != nil:
		return time.Time{}, l.err
	case l.path.Load() == pooler:
		return time.Time{}, errPooler
	}
	turn := l.lines.Join(key)
	w := &waiter{l: l, key: key, token: token, ttl: us, turn: turn}
	defer func() { // also after a panic
		if turn.Leave() {
			w.end(ctx, *turn.State())
		}
	}()
	select {
	case <-turn.Turn():
	default:
		waithook.Call(ctx)
		select {
		case <-turn.Turn():
		case <-ctx.Done():
			return time.Time{}, w.left(ctx)
		}
	}
	if err := turn.Err(); err != nil {
		return time.Time{}, err
	}
	deadline, err = w.first(ctx, ttl)
	switch {
	case err == nil:
		l.sweepLocksLater()
		return deadline, nil
	case ctx.Err() != nil:
		return time.Time{}, w.left(ctx)
	}
	p := *turn.State()
	turn.Fail(undo.Needless(err))
	w.end(ctx, p)
	return time.Time{}, err
}

// waiter is one Wait.
type waiter struct {
	l          *Locker
	key, token string
	ttl        pgtype.Interval
	turn       *line.Place[string, *place]
}

// left returns the error of a waiter whose context has ended.
func (w *waiter) left(ctx context.Context) error {
	if w.turn.Refused() {
		return fmt.Errorf("%w: %w", ctx.Err(), locker.ErrHeld)
	}
	return ctx.Err()
}

// refused notes that the lock is held.
func (w *waiter) refused(ctx context.Context) {
	w.turn.Refuse()
	waithook.Call(ctx)
}

// first takes the lock for the first waiter of a line.
func (w *waiter) first(ctx context.Context, ttl time.Duration) (time.Time, error) {
	p := *w.turn.State()
	if p == nil {
		p = &place{key: w.key, told: make(chan struct{}, 1)}
		*w.turn.State() = p
	}
	// While there is a connection that listens, there may be a queue. If there is one otherwise, it
	// joins that.
	if p.sub == nil && w.l.self.Load() == nil {
		s, err := w.acquire(ctx, p)
		if err != nil {
			return time.Time{}, err
		}
		if s.mine {
			return w.served(ctx, p, s.asked.Add(ttl))
		}
		w.refused(ctx)
	}
	if err := w.l.checkPath(ctx); err != nil {
		return time.Time{}, err
	}
	if p.sub == nil {
		// It joins the queue before the subscription is live, so that its place is that of its request.
		w.l.places.add(p)
		p.sub = w.l.hub.Join(waitChannel, p)
	}
	return w.stand(ctx, p, ttl)
}

// stand waits in the queue.
func (w *waiter) stand(ctx context.Context, p *place, ttl time.Duration) (time.Time, error) {
	live := p.sub.Done()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	joins := len(p.nonces()) == 0 // otherwise one who has gone has left its place
	due := joins
	for {
		left, look := p.news()
		if left > 0 {
			p.due = time.Now().Add(w.pause(p, left, 1))
		}
		if look && ctx.Err() == nil {
			if asked, ok := p.served(w.token, ttl/soon); ok {
				return w.served(ctx, p, asked.Add(ttl))
			}
		}
		if look || due || joins || !time.Now().Before(p.due) {
			s, err := w.retry(ctx, p, &joins)
			switch {
			case err != nil:
				return time.Time{}, err
			case s.mine:
				return w.served(ctx, p, s.asked.Add(min(s.left, ttl)))
			}
			w.refused(ctx)
			p.due = time.Now().Add(w.pause(p, s.left, s.place))
		}
		due = false
		timer.Reset(time.Until(p.due))
		select {
		case <-p.told:
		case <-live: // its place may now be in the name of the connection that listens
			live = nil
			due = p.joinedAs == nil || p.joinedAs != w.l.self.Load()
		case <-timer.C:
			due = true
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		}
	}
}

// served ends the place of a waiter that has the lock. A request that had no answer may yet give the
// process another one.
func (w *waiter) served(ctx context.Context, p *place, deadline time.Time) (time.Time, error) {
	p.mu.Lock()
	p.last = "" // which it has no longer
	p.mu.Unlock()
	if nonces, _ := p.abandon(); len(nonces) > 0 {
		w.l.undo(ctx, w.key, nonces, false)
	}
	return deadline, nil
}

// pause returns how long to wait for news, given the rest of the holder's time.
func (w *waiter) pause(p *place, left time.Duration, place int) time.Duration {
	if w.l.self.Load() == nil || p.sub.Err() != nil {
		return lookOften
	}
	late := time.Millisecond + min(time.Duration(max(place-1, 0))*stagger, maxStagger)
	return min(max(left, 0)+late, lookAgain)
}

// sight is what a look returns.
type sight struct {
	mine, held bool
	asked      time.Time     // before the request
	left       time.Duration // of the holder's time
	place      int           // of the process in the queue; 0: none
	listed     bool          // in the name of the present backend
	granted    string        // the nonce that was last handed the lock
}

// retry looks, and looks again if the connection broke, since the pool may have several broken
// connections, or the server may be restarting. Without joins, only a look at the row may do.
func (w *waiter) retry(ctx context.Context, p *place, joins *bool) (s sight, err error) {
	begun := time.Now()
	for rest := retryOften; ; rest = min(4*rest, retryLeast) {
		p.looking()
		err = nil
		if !*joins {
			s, err = w.see(ctx, p)
		}
		// Of a lock that was handed over without a message the waiter makes sure, and one that was
		// handed to a waiter who has gone it takes over.
		if err == nil && !*joins && s.mine && p.isHeard(s.granted) {
			return s, nil
		}
		if err == nil && (*joins || s.mine || !s.held || !s.listed || slices.Contains(p.nonces(), s.granted)) {
			*joins = true // until it certainly is in the queue
			s, err = w.join(ctx, p)
		}
		if err == nil {
			*joins = false
			return s, nil
		}
		p.Missed() // for the next one, if this one leaves
		if isRefused(err) || errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begun) > outage || !sleep(ctx, rest) {
			return s, err
		}
	}
}

// sleep reports whether d has passed before the end of ctx.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

var errStandby = errors.New("the server is a standby")

// acquire takes the lock if it is free and there is no queue.
func (w *waiter) acquire(ctx context.Context, p *place) (s sight, err error) {
	return w.ask(ctx, p, func(r *request, nonce string) (s sight, err error) {
		changed, err := r.exec(w.l.sql.acquireAlone, []byte(w.key), []byte(w.token), w.ttl, nonce)
		s.mine = changed > 0
		return s, err
	})
}

// join takes the lock or a place in the queue.
func (w *waiter) join(ctx context.Context, p *place) (sight, error) {
	p.joinedAs = w.l.self.Load()
	pid, start := p.joinedAs.args()
	earlier := p.nonces()
	return w.ask(ctx, p, func(r *request, nonce string) (s sight, err error) {
		err = r.query(func(rows pgx.Rows) error {
			var us int64
			err := rows.Scan(&s.mine, &us, &s.place, &s.granted, nil, nil)
			s.left = fromMicroseconds(us)
			return err
		}, w.l.sql.join, []byte(w.key), []byte(w.token), w.ttl, nonce, earlier, pid, start)
		return s, err
	})
}

// ask makes a request that may take the lock, or a place. If it has no answer, the nonce is late.
func (w *waiter) ask(ctx context.Context, p *place, do func(*request, string) (sight, error)) (sight, error) {
	nonce := w.l.nonce()
	var sent atomic.Bool
	p.asks(nonce)
	s, err := call(ctx, w.l, w.token, func(r *request) (s sight, err error) {
		asked := time.Now()
		sent.Store(true)
		s, err = do(r, nonce)
		s.asked = asked
		return s, err
	})
	if err == nil || isRefused(err) || !sent.Load() {
		p.answered(nonce, w.token, s.asked, err == nil && s.place > 0)
	}
	return s, err
}

// see looks at the lock without changing it.
func (w *waiter) see(ctx context.Context, p *place) (sight, error) {
	pid, start := w.l.self.Load().args()
	return call(ctx, w.l, w.token, func(r *request) (s sight, err error) {
		s.asked = time.Now()
		err = r.query(func(rows pgx.Rows) error {
			var standby bool
			var us int64
			err := rows.Scan(&standby, &s.mine, &s.held, &us, &s.place, &s.listed, &s.granted)
			if err == nil && standby { // what it sees may be long over
				err = errStandby
			}
			s.left = fromMicroseconds(us)
			return err
		}, w.l.sql.look, []byte(w.key), []byte(w.token), pid, w.l.name, start)
		return s, err
	})
}
