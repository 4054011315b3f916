package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/pubsub"
	"github.com/golockers/locker/internal/waithook"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

const (
	lookAgain  = 5 * time.Second       // a waiter looks at least this often,
	lookOften  = 50 * time.Millisecond // and this often if it cannot hear of its turn
	stagger    = 20 * time.Millisecond // between the looks of waiters after the lock has expired
	maxStagger = time.Second
	outage     = 5 * time.Second // how long a waiter tries to reach the server again
	retryOften = 5 * time.Millisecond
	retryLeast = 320 * time.Millisecond // with pauses that grow from one to the other

	// A deadline counts from the request for a place if less than this part of the ttl has passed
	// since then. Otherwise the waiter reads the row, which gives a later deadline.
	soon = 8
)

// waiter is one Wait that has to queue.
type waiter struct {
	l          *Locker
	key, token string
	ttl        pgtype.Interval
	sub        *pubsub.Subscription
	told       chan struct{}

	joinedAs *backend // in whose name it last asked for a place; nil is the request's own connection

	sending sync.Mutex // held while a request is under way, also one that was left behind
	sent    bool       // a request has reached a connection
	unsure  bool       // a request without an answer may yet take the lock, or put the token in the queue
	late    []string   // the nonces of such requests to join the queue, the latest maxLate

	mu    sync.Mutex
	news  news
	nonce string    // of the last request for a place
	asked time.Time // before that request
}

// news is what a waiter was told since the last read.
type news struct {
	left  time.Duration // of the holder's time, if the waiter is the head of the queue; 0: nothing
	look  bool          // the lock may be the waiter's now
	nonce string        // proves that the lock was handed over
}

// Message and Missed implement [pubsub.Listener].
func (w *waiter) Message(string) {}
func (w *waiter) Missed()        { w.tell(news{look: true}) }

func (w *waiter) tell(n news) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n.left > 0 {
		w.news.left = n.left
	}
	w.news.look = w.news.look || n.look
	if n.nonce == w.nonce {
		w.news.nonce = n.nonce
	}
	select {
	case w.told <- struct{}{}:
	default:
	}
}

// read returns the latest news. If the lock was handed to the waiter's present place, granted is a
// time before that. Otherwise it is zero. The proof is the nonce in the message, which only the
// table contained until the lock was handed over.
func (w *waiter) read() (n news, granted time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n = w.news
	w.news = news{}
	if n.nonce != "" && n.nonce == w.nonce {
		granted = w.asked
	}
	return n, granted
}

// ask returns the nonce for a request for a place. After that, messages about an earlier place are
// only hints.
func (w *waiter) ask() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nonce, w.asked = w.l.name+"/"+rand.Text(), time.Now()
	return w.nonce
}

// Wait takes the lock as Acquire does if it is free, and otherwise joins the queue in the lock's
// row and returns when it is handed the lock. The queue is first come, first served across
// processes. A lock whose holder vanished goes to the first in the queue some milliseconds after it
// expires, and if that one vanished with it, to another waiter within five seconds.
//
// A waiter whose process has gone is passed over. The server knows that it has gone when the
// process's connection has ended. If a machine vanishes and its connection does not end, its
// waiters may be handed the lock, for their ttl, until the server's TCP keepalives notice (two
// hours by default). A lock that has expired is not left for such waiters for more than ten
// seconds.
//
// If the server cannot be reached, a waiter tries again for five seconds.
//
// Joining takes one request, like taking a free lock. A waiter that has waited for longer than an
// eighth of its ttl takes another to learn how long it holds the lock. Waiters are notified on the
// connection that [Locker.Watch] describes. If it fails, they look up to twenty times a second
// instead.
//
// If ctx ends while Wait is in the queue, its place, or the lock if it has been granted by then, is
// given up in the background. Behind a pooler the error is [errors.ErrUnsupported].
func (l *Locker) Wait(ctx context.Context, key, token string, ttl time.Duration) (deadline time.Time, err error) {
	us, err := microsecondsOf(ttl)
	switch {
	case ctx.Err() != nil:
		return time.Time{}, ctx.Err()
	case err != nil:
		return time.Time{}, err
	case l.path.Load() == pooler:
		return time.Time{}, errPooler
	}
	l.ghosts.forget(key, token)
	w := &waiter{l: l, key: key, token: token, ttl: us}
	// While there is a connection that listens, there may be a queue. If there is one otherwise, it
	// joins that.
	isHeld := false
	if l.self.Load() == nil {
		p, err := w.acquire(ctx)
		switch {
		case err != nil:
			return time.Time{}, w.giveUp(ctx, err, false)
		case p.mine:
			l.sweepLocksLater()
			return p.asked.Add(ttl), nil
		}
		isHeld = true
		waithook.Call(ctx)
	}
	if err := l.checkPath(ctx); err != nil {
		if isHeld && ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", err, locker.ErrHeld)
		}
		return time.Time{}, err
	}
	// It joins the queue before the subscription is live, so that its place is that of its request.
	w.told = make(chan struct{}, 1)
	name := nameOf(key, token)
	l.waiting.add(name, w)
	defer l.waiting.remove(name, w)
	w.sub = l.hub.Join(waitChannel, w)
	defer w.sub.Close()
	return w.wait(ctx, ttl, isHeld)
}

// giveUp leaves the queue after an error, and returns that.
func (w *waiter) giveUp(ctx context.Context, err error, isHeld bool) error {
	if w.l.err == nil {
		w.leave(ctx)
	}
	if isHeld && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", err, locker.ErrHeld)
	}
	return err
}

func (w *waiter) wait(ctx context.Context, ttl time.Duration, isHeld bool) (time.Time, error) {
	live := w.sub.Done()
	next := time.NewTimer(lookAgain)
	defer next.Stop()
	joins := true // it is not in the queue, as far as is known
	for {
		p, err := w.retry(ctx, &joins)
		switch {
		case err != nil:
			return time.Time{}, w.giveUp(ctx, err, isHeld)
		case p.mine:
			if p.place > 0 { // its owner has called Acquire as well
				_, _ = w.l.change(ctx, w.l.sql.leave, w.key, w.token)
			}
			w.l.sweepLocksLater()
			w.served(p.granted)
			return p.asked.Add(min(p.left, ttl)), nil
		}
		if !isHeld {
			isHeld = true
			waithook.Call(ctx)
		}
		next.Reset(w.pause(p.left, p.place))
		for look := false; !look; {
			select {
			case <-w.told:
				n, granted := w.read()
				if !granted.IsZero() && time.Since(granted) < ttl/soon && ctx.Err() == nil {
					w.l.sweepLocksLater()
					w.served(n.nonce)
					return granted.Add(ttl), nil
				}
				if look = n.look; !look && n.left > 0 {
					next.Reset(w.pause(n.left, 1))
				}
			case <-live: // its place may now be in the name of the connection that listens
				live = nil
				look = w.joinedAs == nil || w.joinedAs != w.l.self.Load()
				next.Reset(w.pause(p.left-time.Since(p.asked), p.place))
			case <-next.C:
				look = true
			case <-ctx.Done():
				return time.Time{}, w.giveUp(ctx, ctx.Err(), true)
			}
		}
	}
}

// pause returns how long to wait for news, given the rest of the holder's time.
func (w *waiter) pause(left time.Duration, place int) time.Duration {
	if w.l.self.Load() == nil || w.sub.Err() != nil {
		return lookOften
	}
	late := time.Millisecond + min(time.Duration(max(place-1, 0))*stagger, maxStagger)
	return min(max(left, 0)+late, lookAgain)
}

// place is what a look returns.
type place struct {
	mine, held bool
	asked      time.Time     // before the request
	left       time.Duration // of the holder's time
	place      int           // in the queue; 0: none
	listed     bool          // in the name of the present backend
	granted    string        // the nonce of the waiter that was last handed the lock
}

// retry looks, and looks again if the connection broke, since the pool may have several broken
// connections, or the server may be restarting.
func (w *waiter) retry(ctx context.Context, joins *bool) (p place, err error) {
	begun := time.Now()
	for rest := retryOften; ; rest = min(4*rest, retryLeast) {
		err = nil
		if !*joins {
			p, err = w.see(ctx)
		}
		if err == nil && (*joins || !p.mine && !(p.held && p.listed)) {
			*joins = true // until it certainly is in the queue
			p, err = w.join(ctx)
		}
		if err == nil {
			*joins = false
			return p, nil
		}
		if isRefused(err) || errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begun) > outage || !sleep(ctx, rest) {
			return p, err
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
func (w *waiter) acquire(ctx context.Context) (place, error) {
	return w.send(ctx, func(r *request) (p place, err error) {
		p.asked, w.sent = time.Now(), true
		changed, err := r.exec(w.l.sql.acquireAlone, []byte(w.key), []byte(w.token), w.ttl)
		p.mine = changed > 0
		w.unsure = err != nil && !isRefused(err)
		return p, err
	})
}

// see looks at the lock without changing it.
func (w *waiter) see(ctx context.Context) (place, error) {
	pid, start := w.l.self.Load().args()
	return w.send(ctx, func(r *request) (p place, err error) {
		p.asked = time.Now()
		err = r.query(func(rows pgx.Rows) error {
			var standby bool
			var us int64
			err := rows.Scan(&standby, &p.mine, &p.held, &us, &p.place, &p.listed, &p.granted)
			if err == nil && standby { // what it sees may be long over
				err = errStandby
			}
			p.left = fromMicroseconds(us)
			return err
		}, w.l.sql.look, []byte(w.key), []byte(w.token), pid, start)
		return p, err
	})
}

// join takes the lock or a place in the queue.
func (w *waiter) join(ctx context.Context) (place, error) {
	w.joinedAs = w.l.self.Load()
	pid, start := w.joinedAs.args()
	return w.send(ctx, func(r *request) (p place, err error) {
		p.asked, w.sent = time.Now(), true
		nonce := w.ask()
		err = r.query(func(rows pgx.Rows) error {
			var us int64
			err := rows.Scan(&p.mine, &us, &p.place, &p.granted, nil, nil)
			p.left = fromMicroseconds(us)
			return err
		}, w.l.sql.join, []byte(w.key), []byte(w.token), w.ttl, pid, start, nonce)
		if err != nil && !isRefused(err) {
			w.unsure = true
			w.late = append(w.late[max(0, len(w.late)-maxLate+1):], nonce)
		}
		return p, err
	})
}

func (w *waiter) send(ctx context.Context, do func(*request) (place, error)) (place, error) {
	return call(ctx, w.l, w.token, func(r *request) (place, error) {
		w.sending.Lock()
		defer w.sending.Unlock()
		return do(r)
	})
}

// served keeps ghosts of the requests to join that had no answer and may yet put the token in the
// queue again. The waiter was served through the place with the given nonce.
func (w *waiter) served(nonce string) {
	for _, late := range w.late {
		if late != nonce {
			w.l.ghosts.addLate(late, &ghost{key: w.key, token: w.token, nonce: late})
		}
	}
}

// args returns a backend as arguments of a statement, or nils.
func (b *backend) args() (pid *int32, start *time.Time) {
	if b == nil {
		return nil, nil
	}
	return &b.pid, &b.start
}
