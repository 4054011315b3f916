// Package inflight lets a caller leave a client call behind when its context ends and the client
// does not honor contexts, and makes a later call for the same token wait for that one.
package inflight

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Never is the timeout of a client that has none.
const Never = time.Duration(1<<63 - 1)

// Calls are the calls that a Locker's callers have left behind. The zero value is ready to use. It
// holds an entry for a token only while such a call is under way.
type Calls struct {
	tokens atomic.Int64 // the length of left: while it is 0, Wait takes no lock
	mu     sync.Mutex
	left   map[string][]<-chan struct{} // by token; each is closed when its call returns
}

// Do runs call, an operation for token, and returns what it returns. If ctx has ended before or
// ends meanwhile, Do returns ctx's error, even if call succeeded.
//
// Unless ctx has a deadline within timeout, call runs inline: timeout is the client's own I/O
// timeout, which ends it soon enough. A timeout of 0 means that the client itself honors ctx, and
// [Never] that nothing ends the call soon, so every ctx that can end counts. Otherwise call gets a
// goroutine, which Do leaves behind when ctx ends. After ctx has ended, call must start nothing
// more: no step, dial or retry.
//
// If a call in a goroutine of its own ends with [runtime.Goexit], Do returns [ErrGoexit]. If it
// panics, Do panics with a [*Panic]; if Do has returned, the panic is not recovered.
func Do[T any](ctx context.Context, c *Calls, token string, timeout time.Duration,
	call func() (T, error)) (T, error) {
	var zero T
	if err := ctx.Err(); err != nil {
		return zero, err
	}
	var v T
	var err error
	deadline, ok := ctx.Deadline()
	if ok && timeout > 0 && time.Until(deadline) < timeout || timeout == Never && ctx.Done() != nil {
		v, err = apart(ctx, c, token, call)
	} else {
		v, err = call()
	}
	if ctxErr := ctx.Err(); ctxErr != nil {
		return zero, ctxErr
	}
	if err != nil && ok && !time.Now().Before(deadline) {
		// A client that honors deadlines may be faster than ctx's timer, and returns an error of
		// its own. To the caller both mean the same thing: ctx has ended.
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
	a := Go(call)
	select {
	case <-a.Done():
	case <-ctx.Done():
		done := a.Done()
		if c.Leave(token, done, a.Leave) {
			var zero T
			return zero, ctx.Err()
		}
	}
	return a.Result()
}

// Wait returns when no call that was left behind for token is under way, or with ctx's error.
func (c *Calls) Wait(ctx context.Context, token string) error {
	for c.tokens.Load() > 0 {
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
	return nil
}

// Leave abandons a call for token, by its function leave, as [Apart.Leave] does. If leave reports
// that the call is still under way, later calls for token wait for it; done is closed after it has
// ended.
func (c *Calls) Leave(token string, done <-chan struct{}, leave func(ended func()) bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !leave(func() { c.remove(token, done) }) {
		return false
	}
	if c.left == nil {
		c.left = make(map[string][]<-chan struct{})
	}
	c.left[token] = append(c.left[token], done)
	c.tokens.Store(int64(len(c.left)))
	return true
}

func (c *Calls) remove(token string, done <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := slices.DeleteFunc(c.left[token], func(d <-chan struct{}) bool { return d == done })
	if len(left) == 0 {
		delete(c.left, token)
	} else {
		c.left[token] = left
	}
	c.tokens.Store(int64(len(c.left)))
}
