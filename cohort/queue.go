package cohort

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/golockers/locker"
)

// queue holds the waiters of a record.
type queue struct {
	first, last *waiter
	spare       *waiter // a list of waiters that are over, for other Waits to use
	spares      int     // its length
}

// waiter is one Wait in the queue. It learns its outcome exactly once, unless it leaves the queue
// first.
type waiter struct {
	ctx   context.Context
	token string
	ttl   time.Duration

	told     chan struct{} // room for one; each Wait that uses this waiter leaves it empty
	deadline time.Time     // it holds the lock until then
	err      error         // or the backend failed

	prev, next *waiter
	left       bool        // it is no longer in the queue
	drives     bool        // a drive began for it, and refers to it
	over       atomic.Bool // it got the lock, and its Wait no longer refers to it
}

// maxSpares limits the spare waiters of a record. Callers that ask for the lock again right after
// they have released it need few. The end of a tenure drops them: from a sync.Pool, or from a record
// that a doubt keeps, a channel made in one bubble of testing/synctest could get into another, which
// is a fatal error.
const maxSpares = 8

func (q *queue) newWaiter(ctx context.Context, token string, ttl time.Duration) *waiter {
	w := q.spare
	if w != nil {
		q.spare, w.next = w.next, nil
		q.spares--
	} else {
		w = &waiter{told: make(chan struct{}, 1)}
	}
	w.ctx, w.token, w.ttl = ctx, token, ttl
	return w
}

// reuse keeps w for another Wait if nothing refers to it anymore. It does nothing if w is nil.
func (q *queue) reuse(w *waiter) {
	if w == nil || w.drives || q.spares >= maxSpares || !w.over.Load() {
		return
	}
	w.ctx, w.token, w.left = nil, "", false
	w.over.Store(false)
	w.next, q.spare = q.spare, w
	q.spares++
}

func (q *queue) dropSpares() { q.spare, q.spares = nil, 0 }

// awaitTold waits until w is told its outcome, and reports false if w's context ends first.
func (w *waiter) awaitTold() bool {
	done := w.ctx.Done()
	if done == nil { // a receive costs less than a select
		<-w.told
		return true
	}
	select {
	case <-w.told:
		return true
	case <-done:
		return false
	}
}

func (q *queue) push(w *waiter) {
	w.prev = q.last
	if q.last != nil {
		q.last.next = w
	} else {
		q.first = w
	}
	q.last = w
}

func (q *queue) remove(w *waiter) {
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		q.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		q.last = w.prev
	}
	w.prev, w.next, w.left = nil, nil, true
}

// tell takes w out of the queue and wakes it, after w.deadline or w.err has been set.
func (q *queue) tell(w *waiter) {
	q.remove(w)
	w.told <- struct{}{}
}

// leave is for a waiter whose context has ended. If it has been given the lock, the next one gets it.
func (l *Locker) leave(r *record, w *waiter) {
	s := r.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	if !w.left {
		r.remove(w)
		if r.first == nil && r.abandon != nil {
			r.abandoned = true
			r.abandon()
		}
		return
	}
	if t := r.tenure; t != nil && t.heldBy(w.token, time.Now()) {
		go func() { // this may make a request, for which the caller does not wait
			s.mu.Lock()
			defer s.mu.Unlock()
			if r.tenure == t && t.heldBy(w.token, time.Now()) {
				l.passOnLocked(t)
			}
		}()
	}
}

// leftQueue is the error of a Wait whose context has ended in the queue.
func leftQueue(ctx context.Context) error {
	return fmt.Errorf("%w: %w", ctx.Err(), locker.ErrHeld)
}
