package locker

import (
	"context"
	"sync"
	"time"
)

// grace is a context with the values of another, not its cancellation, and a deadline of its own. It is
// what Unlock releases on. Unlike a [context.WithTimeout] it costs a single allocation until somebody asks
// for Done, which keeps an uncontended Unlock cheap.
type grace struct {
	values   context.Context
	deadline time.Time

	mu    sync.Mutex
	err   error         // why it has ended; set once
	done  chan struct{} // made by the first Done
	timer *time.Timer   // ends it at the deadline; made with done
}

func newGrace(values context.Context, d time.Duration) *grace {
	return &grace{values: values, deadline: time.Now().Add(d)}
}

func (g *grace) Deadline() (time.Time, bool) { return g.deadline, true }

// Value hides the cancellation of the context that has the values: [context.Cause] finds it by a value.
func (g *grace) Value(key any) any { return context.WithoutCancel(g.values).Value(key) }

func (g *grace) Done() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.done == nil {
		g.done = make(chan struct{})
		if g.err != nil {
			close(g.done)
		} else {
			g.timer = time.AfterFunc(time.Until(g.deadline), func() { g.end(context.DeadlineExceeded) })
		}
	}
	return g.done
}

func (g *grace) Err() error {
	if !time.Now().Before(g.deadline) {
		g.end(context.DeadlineExceeded)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// cancel ends the context and lets go of its timer.
func (g *grace) cancel() { g.end(context.Canceled) }

func (g *grace) end(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return
	}
	g.err = err
	if g.done != nil {
		g.timer.Stop()
		close(g.done)
	}
}
