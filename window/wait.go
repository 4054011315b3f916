package window

import (
	"context"
	"sync"
	"time"
)

// Wait waits until one more call is allowed for key, and counts it. Callers of this Limiter that
// wait for the same key are served first come, first served. Only the first of them makes requests:
// one at once, and one whenever the call may be allowed again.
//
// When ctx ends, Wait returns ctx's error. The call was not counted, unless ctx ended during a
// request. If ctx's deadline is certain to pass before the first caller's call is allowed, that
// caller gets [context.DeadlineExceeded] immediately, while ctx.Err is still nil: a loop that goes on
// until ctx.Err is not nil would spin. If the backend fails, Wait immediately
// returns the error to all callers that wait for the key, with or without [WithFailClosed]. Each of
// them decides whether to go on. Attempts that are denied do not count, even with
// [WithDeniedCounted].
func (l *Limiter) Wait(ctx context.Context, key string) error {
	if err := l.check(key, 1); err != nil {
		return wrap("wait", key, err)
	}
	if err := l.wait(ctx, key); err != nil {
		return wrap("wait", key, err)
	}
	return nil
}

func (l *Limiter) wait(ctx context.Context, key string) error {
	q, err := l.turns.enter(ctx, key)
	if err != nil {
		return err
	}
	defer l.turns.leave(key, q)
	for {
		// If denied calls counted, two processes could deny each other forever.
		d, err := l.decide(ctx, key, 1, false)
		if err != nil && ctx.Err() == nil {
			l.turns.fail(key, q, err)
		}
		if err != nil || d.Allowed {
			return err
		}
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < d.RetryAfter {
			return context.DeadlineExceeded
		}
		timer := time.NewTimer(d.RetryAfter)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// turns holds the queues of waiting callers, by key. A key has an entry only while a caller waits.
type turns struct {
	mu     sync.Mutex
	queues map[string]*queue
}

type queue struct {
	callers int
	turn    chan struct{} // full while a caller has its turn; senders are served in order
	failed  chan struct{} // closed once the backend has failed, with err
	err     error
}

// enter returns when it is the caller's turn. The turn ends with leave.
func (t *turns) enter(ctx context.Context, key string) (*queue, error) {
	t.mu.Lock()
	if t.queues == nil {
		t.queues = make(map[string]*queue)
	}
	q := t.queues[key]
	if q == nil {
		q = &queue{turn: make(chan struct{}, 1), failed: make(chan struct{})}
		t.queues[key] = q
	}
	q.callers++
	t.mu.Unlock()
	select {
	case q.turn <- struct{}{}:
		return q, nil
	case <-q.failed:
		t.remove(key, q)
		return nil, q.err
	case <-ctx.Done():
		t.remove(key, q)
		return nil, ctx.Err()
	}
}

func (t *turns) leave(key string, q *queue) {
	<-q.turn
	t.remove(key, q)
}

// fail ends the wait of all callers in the queue. Otherwise each of them in turn would wait for a
// timeout. Later callers make a new queue.
func (t *turns) fail(key string, q *queue, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if q.err != nil {
		return // a caller that had found the queue before it failed has had its turn nevertheless
	}
	q.err = err
	close(q.failed)
	if t.queues[key] == q {
		delete(t.queues, key)
	}
}

func (t *turns) remove(key string, q *queue) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if q.callers--; q.callers == 0 && t.queues[key] == q {
		delete(t.queues, key)
	}
}
