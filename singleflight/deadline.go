package singleflight

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// deadlineContext is what context.WithDeadline returns, but without a timer until Done is called. Most Loads
// are one read of the cache, and neither a cache in memory nor a client that only looks at the deadline calls
// Done. (A timer that is started on one goroutine after the other was measured to cost six times as much as
// all the rest of such a Load.)
type deadlineContext struct {
	parent   context.Context // its deadline is not before this one's
	deadline time.Time

	asked   *breaker    // the backend that the request with this context is to, if any
	guarded atomic.Bool // see Loader.gaveUp

	mu    sync.Mutex
	timed context.Context // made by the first Done, and from then on the one to ask
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

// isOver reports whether cancel was called.
func (c *deadlineContext) isOver() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over
}

func (c *deadlineContext) Deadline() (time.Time, bool) { return c.deadline, true }

func (c *deadlineContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.timed != nil:
	case c.over: // and this remains the reason when the deadline has passed
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
		ctx = c.timed // contexts derived from c find it this way and need no goroutine
	}
	c.mu.Unlock()
	return ctx.Value(key)
}
