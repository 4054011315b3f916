package postgres

import (
	"context"
	"slices"
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
	undo.Start(ctx, undo.Work{Owner: l, Window: undo.Longest, Attempt: func(ctx context.Context) (bool, error) {
		err := l.leave(ctx, key, "", nonces)
		return err == nil && isSure || isClosed(err), err
	}})
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
