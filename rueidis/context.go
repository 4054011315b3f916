package rueidis

import (
	"context"
	"sync/atomic"
	"time"
)

// callContext is the context that a command gets. It has the values of the caller's context and
// does not end with it. If it did, rueidis would give up more than this request: the connection
// that it dials for all callers, or waits on. And it would return before the reply, for which later
// calls with the same token have to wait.
type callContext struct {
	context.Context
	deadline *deadline
}

func (c callContext) Deadline() (time.Time, bool) { return c.deadline.at, true }
func (c callContext) Done() <-chan struct{}       { return c.deadline.done }

func (c callContext) Err() error {
	select {
	case <-c.deadline.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// isUp reports whether the context has ended or is about to. A connection with its deadline may be
// ahead of its timer, and then its own error looks like that of another call.
func (c callContext) isUp() bool { return time.Until(c.deadline.at) < againFor }

// deadline ends the calls that are under way at a certain time. They share it, since a timer for each
// would cost as much as a quarter of the call.
type deadline struct {
	at   time.Time
	done chan struct{}
}

type deadlines struct {
	timeout time.Duration
	present atomic.Pointer[deadline]
}

// context returns a context that ends after d.timeout, or up to twice as long.
func (d *deadlines) context(caller context.Context) callContext {
	for {
		present := d.present.Load()
		if present != nil && time.Until(present.at) > d.timeout {
			return callContext{caller, present}
		}
		next := &deadline{time.Now().Add(2 * d.timeout), make(chan struct{})}
		if d.present.CompareAndSwap(present, next) {
			time.AfterFunc(2*d.timeout, func() { close(next.done) })
		}
	}
}
