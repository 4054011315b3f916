package postgres

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/golockers/locker/internal/undo"
)

const (
	// patience is how long a Wait that has ended tries to take its place with it before it returns.
	patience = 100 * time.Millisecond

	// maxLeaves is how many requests that give up places are under way at a time, so that those of
	// holders do not wait behind them for a connection.
	maxLeaves = 2
)

// end gives up the place in the queue of a line that has ended, and the lock if it was handed to it.
func (w *waiter) end(ctx context.Context, p *place) {
	if p == nil {
		return
	}
	if p.sub != nil {
		w.l.places.remove(p)
		p.sub.Close()
	}
	nonces, isSure := p.abandon()
	if len(nonces) == 0 {
		return
	}
	short, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if w.l.leave(short, w.key, w.token, nonces) != nil || !isSure {
		w.l.undo(ctx, w.key, nonces, isSure)
	}
}

// undo gives up the places with these nonces, and the lock if it was handed to one of them, in the
// background. If a request that had no answer may yet make such a place, one attempt is not enough.
func (l *Locker) undo(ctx context.Context, key string, nonces []string, isSure bool) {
	if isSure {
		l.left.add(l, left{key, nonces})
		return
	}
	undo.Start(ctx, undo.Work{Owner: l, Window: undo.Longest, Attempt: func(ctx context.Context) (bool, error) {
		err := l.leave(ctx, key, "", nonces)
		return isClosed(err), err
	}})
}

// maxLeft is how many places wait to be given up. Any beyond that end with their ttl.
const maxLeft = 1 << 16

// left is a place that nobody waits in.
type left struct {
	key    string
	nonces []string
}

// lefts are the places of a Locker that are given up one after the other, as a single work: a process
// whose waiters for thousands of locks end together has as many.
type lefts struct {
	mu        sync.Mutex
	list      []left // first come, first served
	isRunning bool
	advanced  bool // a place was given up since the work began
}

func (q *lefts) add(l *Locker, p left) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.list) < maxLeft {
		q.list = append(q.list, p)
	}
	q.startLocked(l)
}

func (q *lefts) startLocked(l *Locker) {
	if q.isRunning || len(q.list) == 0 {
		return
	}
	q.isRunning, q.advanced = true, false
	if !undo.Start(context.Background(), undo.Work{
		Owner: l, Window: undo.Longest,
		Attempt: func(ctx context.Context) (bool, error) { return q.next(ctx, l) },
		GaveUp:  func(error) { q.ended(l, false) },
	}) {
		time.AfterFunc(undo.Late, func() { q.ended(l, true) }) // others are under way, for a minute at most
	}
}

// next gives up places until there are none, or until that fails.
func (q *lefts) next(ctx context.Context, l *Locker) (done bool, err error) {
	for {
		q.mu.Lock()
		if len(q.list) == 0 {
			q.list, q.isRunning = nil, false
			q.mu.Unlock()
			return true, nil
		}
		p := q.list[0]
		q.mu.Unlock()
		err := l.leave(ctx, p.key, "", p.nonces)
		if err != nil && !isClosed(err) {
			return false, err
		}
		q.mu.Lock()
		q.list, q.advanced = q.list[1:], true
		q.mu.Unlock()
	}
}

// ended is called when a work ends before the places do. Unless it has given up any or never began, the
// rest end with their ttl.
func (q *lefts) ended(l *Locker, goesOn bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.isRunning = false
	if !q.advanced && !goesOn {
		q.list = nil
	}
	q.startLocked(l)
}

// leave removes the places with these nonces from the queue, and releases the lock if it was handed
// to one of them. It waits for calls for the token that were left behind.
func (l *Locker) leave(ctx context.Context, key, token string, nonces []string) error {
	select {
	case l.leaves <- struct{}{}:
		defer func() { <-l.leaves }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for _, sql := range []string{l.sql.leave, l.sql.releaseGranted} {
		_, err := call(ctx, l, token, func(r *request) (int64, error) { return r.exec(sql, []byte(key), nonces) })
		if err != nil {
			return err
		}
	}
	return nil
}

// abandon returns the nonces with which the process may have a place, or be handed the lock, and
// forgets them. isSure reports whether each of their requests had an answer.
func (p *place) abandon() (nonces []string, isSure bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	nonces, isSure = p.noncesLocked(), len(p.late) == 0
	p.last, p.late = "", nil
	return nonces, isSure
}

// noncesLocked returns the nonces with which the process may have a place, or be handed the lock.
func (p *place) noncesLocked() []string {
	nonces := slices.Clone(p.late)
	if p.last != "" {
		nonces = append(nonces, p.last)
	}
	return nonces
}
