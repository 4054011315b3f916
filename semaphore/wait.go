package semaphore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/undo"
	"github.com/golockers/locker/internal/waithook"
)

// headTTL is the ttl of the first waiter's lock, which is kept alive. It does not depend on the ttl
// of the permits, since this lock only determines the order. If it is lost, two waiters compete for
// a permit.
const headTTL = 5 * time.Second

// Wait implements [locker.Waiter]. Where the backend does not keep one queue for all permits, the
// caller first waits until it is the head of the queue, and then waits for a permit.
func (l *Locker) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	if err := l.check(); err != nil {
		return time.Time{}, err
	}
	if p := l.queued(key); p != nil {
		permit, deadline, err := p.Wait(ctx, token, ttl)
		if !errors.Is(err, errors.ErrUnsupported) {
			l.note(key, token, permit, ttl)
			return deadline, err
		}
	}
	start := time.Now()
	if acquired, err := l.reacquire(ctx, key, token, ttl); acquired || err != nil {
		return start.Add(ttl), err
	}
	deadline, err := l.wait(ctx, key, token, ttl)
	switch {
	case errors.Is(err, locker.ErrHeld): // if its last attempt has no answer, a cleanup is under way
		l.known.forgetNone(key, token)
	case err != nil: // a cleanup follows
		l.known.expireNone(key, token)
	}
	return deadline, err
}

func (l *Locker) wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	l.known.set(key, token, none, ttl) // until it tries a permit, there is nothing to clean up
	r := l.enter(key)
	defer l.leave(r)
	if waiter, ok := l.inner.(locker.Waiter); ok {
		q := &queue{Waiter: waiter}
		turn, err := locker.Lock(ctx, q, queueKey(key), headTTL, locker.WithToken(token), locker.WithKeepAlive())
		switch {
		case err != nil:
			return time.Time{}, bare(err)
		case q.isNone:
			turn.Detach()
		default:
			defer l.passTurn(ctx, turn, min(ttl/3, time.Second))
		}
	}
	if err := r.takeTurn(ctx); err != nil {
		return time.Time{}, err
	}
	defer r.passTurn()
	if ctx.Err() != nil {
		return time.Time{}, r.left(ctx)
	}
	h := &head{room: r, ttl: ttl, cleansUp: true, ended: make(chan struct{})}
	defer close(h.ended) // before the turn is passed, for which a cleanup need not wait
	lease, err := locker.Lock(ctx, h, key, max(ttl, time.Hour), locker.WithToken(token))
	if err != nil {
		h.cleansUp = errors.Is(err, locker.ErrHeld) // otherwise the caller of Wait does
		return time.Time{}, bare(err)
	}
	lease.Detach()
	return h.deadline, nil
}

// queue is the wrapped Waiter, for the additional lock, which the first waiter holds. If the Waiter
// has no queue for that lock, as behind a connection pooler, the callers of this process would race
// for it. So queue lets each of them through without the lock, to wait for its turn in this
// process.
type queue struct {
	locker.Waiter
	isNone bool
}

func (q *queue) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	deadline, err := q.Waiter.Wait(ctx, key, token, ttl)
	if errors.Is(err, errors.ErrUnsupported) {
		q.isNone = true
		return time.Now().Add(ttl), nil
	}
	return deadline, err
}

// UndoOwner implements [undo.Part].
func (q *queue) UndoOwner() any { return q.Waiter }

// bare returns the cause of an error of package locker, which adds the operation and the key again.
func bare(err error) error {
	if cause := errors.Unwrap(err); cause != nil {
		return cause
	}
	return err
}

// passTurn makes the next waiter the head of the queue, by releasing the additional lock. If the
// backend does not answer, the release is repeated in the background, and in the end the lock
// expires. The caller already has its permit, whose time is running. So passTurn returns after
// patience, or when ctx ends, even if the release is not done.
func (l *Locker) passTurn(ctx context.Context, turn *locker.Lease, patience time.Duration) {
	passed := make(chan struct{})
	go func() {
		defer close(passed)
		err := turn.Unlock(ctx)
		if err == nil || errors.Is(err, locker.ErrNotHeld) {
			return
		}
		undo.Start(ctx, undo.Work{Owner: l.inner, Window: headTTL, Attempt: func(ctx context.Context) (bool, error) {
			_, err := l.inner.Release(ctx, turn.Key(), turn.Token())
			return err == nil, err
		}})
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-passed:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// takeTurn waits until the caller is the first waiter of this process. If the backend keeps a
// queue, the caller already is, unless the additional lock of an earlier waiter, which is still
// present, has expired.
func (r *room) takeTurn(ctx context.Context) error {
	select {
	case r.turn <- struct{}{}: // goroutines that send on a channel are served in order
		return nil
	default:
	}
	waithook.Call(ctx)
	select {
	case r.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return r.left(ctx)
	}
}

// left returns the error of a waiter that leaves before it has tried a permit.
func (r *room) left(ctx context.Context) error {
	if r.wasFull() {
		return fmt.Errorf("%w: %w", ctx.Err(), locker.ErrHeld)
	}
	return ctx.Err()
}

func (r *room) passTurn() {
	r.mu.Lock()
	r.waits = false
	r.mu.Unlock()
	<-r.turn
}

// head is the Locker through which package locker waits for the first waiter: by polling, and on a
// Watcher also woken by the release of any permit. It requests ttl for the permit, whatever ttl it
// is called with. The caller of Wait gets the deadline, and must check whether it has passed.
type head struct {
	room     *room
	ttl      time.Duration
	deadline time.Time // of the permit

	ended    chan struct{} // closed when its Lock has ended
	cleansUp bool          // after that: whether the cleanup of that Lock makes requests
}

var _ locker.Watcher = (*head)(nil)

// Acquire tries the permits that are not known to be taken.
func (h *head) Acquire(ctx context.Context, key, token string, _ time.Duration) (bool, error) {
	r := h.room
	for k := range r.locker.n {
		i := r.locker.nth(token, k)
		version, isTaken := r.look(i)
		if isTaken {
			continue
		}
		h.deadline = time.Now().Add(h.ttl)
		acquired, err := r.locker.try(ctx, key, i, token, h.ttl)
		switch {
		case err != nil: // which says nothing about the permits
			return false, err
		case acquired:
			r.tried(false)
			return true, nil
		}
		r.refused(i, version)
	}
	r.tried(true)
	r.locker.known.set(key, token, none, h.ttl)
	return false, nil
}

func (h *head) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return h.room.locker.Extend(ctx, key, token, ttl)
}

// Release is for the cleanup after a Lock of the head. If the caller of Wait cleans up as well,
// that is enough. A second cleanup would find nothing, ask for each permit again and again, and
// release what the token acquires next.
func (h *head) Release(ctx context.Context, key, token string) (bool, error) {
	<-h.ended
	if !h.cleansUp {
		return true, nil
	}
	return h.room.locker.Release(ctx, key, token)
}

// UndoOwner implements [undo.Part]. The inner Locker makes the requests.
func (h *head) UndoOwner() any { return h.room.locker.inner }

// UndoOwner is for package locker, not for applications. Cleanups that follow acquisitions of
// unknown outcome count as cleanups of the wrapped Locker.
func (l *Locker) UndoOwner() any { return l.inner }

// Watch implements [locker.Watcher]. The subscriptions go on when ctx ends, for the next head,
// until the last waiter of this process has left.
func (h *head) Watch(ctx context.Context, _ string) (<-chan struct{}, error) {
	watcher, ok := h.room.locker.inner.(locker.Watcher)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return h.room.watch(ctx, watcher)
}
