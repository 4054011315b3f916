// Package inflight lets an adapter's caller leave a client call behind, when its context ends before a
// client that does not mind contexts returns, and keeps a later call for the same token in order behind it.
package inflight

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Calls knows the calls that a Locker's callers have left behind. The zero value is ready. It holds an
// entry for a token only while such a call is under way.
type Calls struct {
	mu   sync.Mutex
	left map[string][]<-chan struct{} // by token; each is closed when its call returns
}

// Do runs call, an operation for token, and returns what it returns, or ctx's error when ctx is done first
// or meanwhile: a success that comes after the caller has gone is no success.
//
// Where ctx has no deadline nearer than timeout, call runs inline: the client's own I/O timeout, which is
// what timeout is, brings it back soon enough. A timeout of 0 says that the client itself minds ctx.
// Otherwise call gets a goroutine, which Do leaves behind when ctx ends. After ctx has ended call must
// start nothing more: no step, dial or retry.
func Do[T any](ctx context.Context, c *Calls, token string, timeout time.Duration,
	call func() (T, error)) (T, error) {
	var zero T
	if err := ctx.Err(); err != nil {
		return zero, err
	}
	var v T
	var err error
	deadline, ok := ctx.Deadline()
	if ok && time.Until(deadline) < timeout {
		v, err = apart(ctx, c, token, call)
	} else {
		v, err = call()
	}
	if ctxErr := ctx.Err(); ctxErr != nil {
		return zero, ctxErr
	}
	if err != nil && ok && !time.Now().Before(deadline) {
		// A client that minds deadlines may be faster than ctx's timer, and has words of its own for it. To
		// the caller both are the same: ctx has ended, and says so.
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
		return zero, context.DeadlineExceeded
	}
	return v, err
}

// apart runs call in a goroutine, and leaves that behind when ctx ends.
func apart[T any](ctx context.Context, c *Calls, token string, call func() (T, error)) (T, error) {
	var v T
	var err error
	done := make(chan struct{})
	go func() {
		defer c.finish(token, done)
		v, err = call()
	}()
	select {
	case <-done:
		return v, err
	case <-ctx.Done():
		c.leave(token, done)
		var zero T // v and err are the goroutine's
		return zero, ctx.Err()
	}
}

// Wait returns when no call left behind for token is under way any more, or with ctx's error.
func (c *Calls) Wait(ctx context.Context, token string) error {
	for {
		c.mu.Lock()
		var done <-chan struct{}
		if left := c.left[token]; len(left) > 0 {
			done = left[0]
		}
		c.mu.Unlock()
		if done == nil {
			return nil
		}
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *Calls) leave(token string, done <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-done: // it returned meanwhile
		return
	default:
	}
	if c.left == nil {
		c.left = make(map[string][]<-chan struct{})
	}
	c.left[token] = append(c.left[token], done)
}

func (c *Calls) finish(token string, done chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(done)
	left, ok := c.left[token]
	if !ok {
		return
	}
	left = slices.DeleteFunc(left, func(d <-chan struct{}) bool { return d == (<-chan struct{})(done) })
	if len(left) == 0 {
		delete(c.left, token)
	} else {
		c.left[token] = left
	}
}
