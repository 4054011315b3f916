// Package cleanup repeats an operation in the background until its outcome is certain: the
// release of a lock that may be held although its acquisition failed, or whose first release got
// no answer.
package cleanup

import (
	"context"
	"reflect"
	"sync"
	"time"
)

const (
	// Window is how long a cleanup goes on.
	Window = 5 * time.Second

	// MaxPerOwner is how many cleanups of one owner run at a time, so that a backend that is down
	// does not use up the cleanups of another.
	MaxPerOwner = 256

	// MaxTotal is how many cleanups run at a time in the process. It is reached only if
	// MaxTotal/MaxPerOwner backends are down, or if a program makes a new owner for each operation.
	MaxTotal = 16 * MaxPerOwner

	firstDelay = 5 * time.Millisecond
	maxDelay   = time.Second
)

// Start calls attempt in a goroutine until it reports true, with growing delays in between, for
// the shorter of window and [Window]. The context of attempt has the values of ctx and ends with
// that time.
//
// The owner is the Locker. Above [MaxPerOwner] or [MaxTotal] Start does nothing and reports
// false: the lock then ends with its ttl.
func Start(ctx context.Context, owner any, window time.Duration, attempt func(context.Context) (done bool)) bool {
	id := identity(owner)
	if !running.enter(id) {
		return false
	}
	go func() {
		defer running.leave(id)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(window, Window))
		defer cancel()
		for delay := firstDelay; !attempt(ctx); delay = min(2*delay, maxDelay) {
			timer := time.NewTimer(delay)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
			}
			if ctx.Err() != nil {
				return
			}
		}
	}()
	return true
}

// Wait returns when no cleanup of owner is running, or with ctx's error when ctx ends before that.
func Wait(ctx context.Context, owner any) error {
	idle := running.idle(identity(owner))
	select {
	case <-idle:
	case <-ctx.Done():
		select {
		case <-idle:
		default:
			return ctx.Err()
		}
	}
	return nil
}

// running counts the running cleanups. It has an entry for an owner only while the owner has any.
var running counts

type counts struct {
	mu    sync.Mutex
	of    map[any]*count
	total int
}

type count struct {
	n    int
	idle chan struct{} // closed when n is 0 again; nil as long as nothing waits for that
}

func (c *counts) enter(id any) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	own := c.of[id]
	if c.total >= MaxTotal || own != nil && own.n >= MaxPerOwner {
		return false
	}
	if own == nil {
		own = new(count)
		if c.of == nil {
			c.of = make(map[any]*count)
		}
		c.of[id] = own
	}
	own.n++
	c.total++
	return true
}

func (c *counts) leave(id any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total--
	own := c.of[id]
	if own.n--; own.n > 0 {
		return
	}
	delete(c.of, id)
	if own.idle != nil {
		close(own.idle)
	}
}

// idle returns a channel that is closed when id has no cleanups.
func (c *counts) idle(id any) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	own := c.of[id]
	if own == nil {
		return closedChannel
	}
	if own.idle == nil {
		own.idle = make(chan struct{})
	}
	return own.idle
}

var closedChannel = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Part is an owner that is part of another one. Its cleanups count as that owner's.
type Part interface{ CleanupOwner() any }

// identity returns a map key for owner. Owners that cannot be map keys share their type's.
func identity(owner any) any {
	for {
		p, ok := owner.(Part)
		if !ok {
			break
		}
		owner = p.CleanupOwner()
	}
	same := owner
	if v := reflect.ValueOf(owner); v.Comparable() && owner == same { // a NaN in it is not the same
		return owner
	}
	return reflect.TypeOf(owner)
}
