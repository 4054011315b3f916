// Package lazyctx provides a context with a deadline that costs one allocation until Done is
// called. [context.WithDeadline] costs several and starts a timer. That is more than the rest of an
// uncontended unlock costs, or of a read from a cache in memory, and neither calls Done.
package lazyctx

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Context is a context with a deadline. Its owner calls Cancel when it is no longer needed. It
// must not be copied.
type Context struct {
	parent   context.Context
	deadline time.Time

	mu       sync.Mutex // guards the following, but what is atomic may be loaded without it
	state    atomic.Uint32
	detached bool                  // only the parent's values count; never changes
	over     bool                  // Cancel was called
	timed    atomic.Pointer[timed] // see timedLocked

	// What the first Done of a detached context makes:
	done  chan struct{}
	timer *time.Timer // nil when done is closed
}

type timed struct {
	context.Context
	stop context.CancelFunc
}

// The values of Context.state.
const (
	running     uint32 = iota
	parentEnded        // for the parent's reason
	expired
	cancelled
)

// WithDeadline returns a context that ends with parent, at the deadline, or when it is canceled.
func WithDeadline(parent context.Context, deadline time.Time) *Context {
	if d, ok := parent.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	return &Context{parent: parent, deadline: deadline}
}

// Init initializes a zero Context that is part of another value, as [WithDeadline] does. The
// deadline must not be after parent's.
func (c *Context) Init(parent context.Context, deadline time.Time) {
	c.parent, c.deadline = parent, deadline
}

// InitWithoutCancel initializes a zero Context that is part of another value, as [WithoutCancel]
// does.
func (c *Context) InitWithoutCancel(parent context.Context, deadline time.Time) {
	c.parent, c.detached, c.deadline = parent, true, deadline
}

// WithoutCancel returns a context with the values of parent that ends at the deadline or when it is
// canceled.
func WithoutCancel(parent context.Context, deadline time.Time) *Context {
	return &Context{parent: parent, detached: true, deadline: deadline}
}

// Deadline implements [context.Context].
func (c *Context) Deadline() (time.Time, bool) { return c.deadline, true }

// IsDetached reports whether only the deadline, or Cancel, can end the context.
func (c *Context) IsDetached() bool { return c.detached }

// Done implements [context.Context].
func (c *Context) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.detached {
		return c.timedLocked().Done()
	}
	if c.done == nil {
		c.done = make(chan struct{})
		if c.look() == running {
			c.timer = time.AfterFunc(time.Until(c.deadline), c.expire)
		} else {
			close(c.done)
		}
	}
	return c.done
}

// expire ends a detached context, whatever the clock says by now.
func (c *Context) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state.Load() == running {
		c.endLocked(expired)
	}
}

// AfterFunc lets contexts that are derived from a detached one learn, without a goroutine, that it
// has ended. It makes a context of package context, which Done can do without: the channel and the
// timer of Done take a third of the time.
func (c *Context) AfterFunc(f func()) (stop func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return context.AfterFunc(c.timedLocked(), f)
}

// timedLocked returns a context of package context that ends when c does. Once a context that is not
// detached has one, its methods use that.
func (c *Context) timedLocked() context.Context {
	if made := c.timed.Load(); made != nil {
		return made.Context
	}
	var t timed
	switch c.look() {
	case cancelled: // even if the parent has ended since
		t.Context, t.stop = context.WithCancel(context.WithoutCancel(c.parent))
		t.stop()
	case expired:
		t.Context, t.stop = context.WithDeadline(context.WithoutCancel(c.parent), time.Time{})
	default:
		t.Context, t.stop = context.WithDeadline(c.base(), c.deadline)
	}
	c.timed.Store(&t)
	return t.Context
}

// Err implements [context.Context].
func (c *Context) Err() error {
	if c.isOpen() && time.Until(c.deadline) > 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.timed.Load(); t != nil && !c.detached {
		return t.Err()
	}
	switch c.look() {
	case parentEnded:
		return c.parent.Err()
	case expired:
		return context.DeadlineExceeded
	case cancelled:
		return context.Canceled
	}
	return nil
}

// ErrAt returns ctx.Err(). now is a reading of the clock that the caller has just made, which spares
// a [Context] another one.
func ErrAt(ctx context.Context, now time.Time) error {
	if c, ok := ctx.(*Context); ok && c.isOpen() && now.Before(c.deadline) {
		return nil
	}
	return ctx.Err()
}

// isOpen reports whether c has not ended, except that its deadline may have passed unnoticed. A
// false result may be wrong. It does not need c.mu.
func (c *Context) isOpen() bool {
	return c.state.Load() == running && (c.detached || c.timed.Load() == nil && c.parent.Err() == nil)
}

// look notes why c has ended, if it has, and returns its state. It needs c.mu, and a nil timed
// unless c is detached.
func (c *Context) look() uint32 {
	switch {
	case c.state.Load() != running:
	case !c.detached && c.parent.Err() != nil:
		c.state.Store(parentEnded)
	case time.Until(c.deadline) <= 0:
		c.endLocked(expired)
	}
	return c.state.Load()
}

func (c *Context) endLocked(s uint32) {
	c.state.Store(s)
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
		close(c.done)
	}
}

// Cancel ends the context and frees its timer. If the parent or the deadline has ended the
// context before that, but none of its methods has been called since, Err still returns
// [context.Canceled]: finding out would cost as much as everything else.
func (c *Context) Cancel() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	t := c.timed.Load()
	if c.state.Load() == running && (t == nil || c.detached) {
		c.endLocked(cancelled)
	}
	if t != nil {
		t.stop() // last, since what waits for it may call Err at once, which takes no lock
	}
}

// IsOver reports whether Cancel was called.
func (c *Context) IsOver() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over
}

// Value implements [context.Context].
func (c *Context) Value(key any) any {
	if t := c.timed.Load(); t != nil && !c.detached {
		return t.Value(key) // derived contexts find it, and then need no goroutine
	}
	if c.state.Load() > parentEnded { // for a reason of its own: context.Cause must not find the parent's
		return context.WithoutCancel(c.parent).Value(key)
	}
	return c.base().Value(key) // contexts derived from a detached one use its AfterFunc
}

// base returns the context from which c derives.
func (c *Context) base() context.Context {
	if c.detached {
		return context.WithoutCancel(c.parent)
	}
	return c.parent
}
