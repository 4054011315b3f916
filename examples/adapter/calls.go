package locks

import (
	"context"
	"slices"
	"sync"
	"time"
)

// calls are the calls that their callers have abandoned, by token. Copy this file if your client
// library does not end calls when their contexts end. The adapter in this directory does not need it.
type calls struct {
	mu   sync.Mutex
	left map[string][]<-chan struct{} // each is closed when its call has ended
}

// leaving runs call, an operation for token, after the abandoned calls for token have ended. If ctx
// ends first, it abandons call and returns ctx's error. call gets a context with ctx's values that
// ends after limit. It must check ctx before each step but the first.
func leaving[T any](ctx context.Context, c *calls, token string, limit time.Duration,
	call func(own context.Context) (T, error)) (v T, err error) {
	if err := c.wait(ctx, token); err != nil {
		return v, err
	}
	type result struct {
		v   T
		err error
	}
	done, ended := make(chan result, 1), make(chan struct{})
	go func() {
		defer close(ended)
		own, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
		defer cancel()
		v, err := call(own)
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		if ctx.Err() == nil { // a late success is an error
			return r.v, r.err
		}
	case <-ctx.Done():
		c.leave(token, ended)
	}
	return v, ctx.Err()
}

// wait waits until no abandoned call for token is running. If ctx ends first, it returns ctx's error.
func (c *calls) wait(ctx context.Context, token string) error {
	c.mu.Lock()
	left := slices.Clone(c.left[token])
	c.mu.Unlock()
	for _, ended := range left {
		select {
		case <-ended:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// leave remembers an abandoned call until it has ended.
func (c *calls) leave(token string, ended <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left == nil {
		c.left = make(map[string][]<-chan struct{})
	}
	c.left[token] = append(c.left[token], ended)
	go func() {
		<-ended
		c.mu.Lock()
		defer c.mu.Unlock()
		others := slices.DeleteFunc(c.left[token], func(e <-chan struct{}) bool { return e == ended })
		if c.left[token] = others; len(others) == 0 {
			delete(c.left, token)
		}
	}()
}
