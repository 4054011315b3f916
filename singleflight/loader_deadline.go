package singleflight

import (
	"context"
	"sync"
	"time"
)

// deadlineContext is what context.WithDeadline gives, but without a timer until somebody asks for Done. Most
// Loads are one read of the cache, and neither a cache in memory nor a client that minds the deadline
// alone asks. (A timer that is started on one goroutine after the other was measured to cost six times as
// much as all the rest of such a Load.)
type deadlineContext struct {
	parent   context.Context // without a deadline of its own
	deadline time.Time

	mu    sync.Mutex
	timed context.Context // made by the first Done; then it answers everything
	stop  context.CancelFunc
	over  bool // cancel was called
}

func withDeadline(parent context.Context, deadline time.Time) *deadlineContext {
	return &deadlineContext{parent: parent, deadline: deadline}
}

func (c *deadlineContext) cancel() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	if c.stop != nil {
		c.stop()
	}
}

func (c *deadlineContext) Deadline() (time.Time, bool) { return c.deadline, true }

func (c *deadlineContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.timed != nil:
	case c.over: // and stays so when the deadline has passed as well
		c.timed, c.stop = context.WithCancel(c.parent)
		c.stop()
	default:
		c.timed, c.stop = context.WithDeadline(c.parent, c.deadline)
	}
	return c.timed.Done()
}

func (c *deadlineContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.timed != nil:
		return c.timed.Err()
	case c.parent.Err() != nil:
		return c.parent.Err()
	case c.over:
		return context.Canceled
	case !time.Now().Before(c.deadline):
		return context.DeadlineExceeded
	}
	return nil
}

func (c *deadlineContext) Value(key any) any {
	c.mu.Lock()
	ctx := c.parent
	if c.timed != nil {
		ctx = c.timed // contexts derived from c find it this way, and need no goroutine
	}
	c.mu.Unlock()
	return ctx.Value(key)
}
