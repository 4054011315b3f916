// Package cleanup repeats an operation in the background until its outcome is certain: the
// release of a lock that may be held although its acquisition failed, or whose first release got
// no answer.
package cleanup

import (
	"context"
	"errors"
	"reflect"
	"slices"
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
	number, ok := running.enter(id)
	if !ok {
		return false
	}
	go func() {
		defer running.leave(id, number)
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

// Wait returns when the cleanups of owner that are running now have ended, or with ctx's error when
// ctx ends before that. It does not wait for later ones, which other users of owner may start again
// and again while the backend is down. So it takes no longer than [Window], if attempts return when
// their contexts end.
func Wait(ctx context.Context, owner any) error {
	ended := running.ended(identity(owner))
	select {
	case <-ended:
	case <-ctx.Done():
		select {
		case <-ended:
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
	n     int
	last  int // the number of the latest one; they are numbered from 1
	waits []*wait
}

// wait is a Wait: for the cleanups up to a number.
type wait struct {
	last  int
	n     int           // how many of them are running
	ended chan struct{} // closed when n is 0
}

// enter counts a cleanup of id and returns its number, or false if there are too many.
func (c *counts) enter(id any) (number int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	own := c.of[id]
	if c.total >= MaxTotal || own != nil && own.n >= MaxPerOwner {
		return 0, false
	}
	if own == nil {
		own = new(count)
		if c.of == nil {
			c.of = make(map[any]*count)
		}
		c.of[id] = own
	}
	own.n++
	own.last++
	c.total++
	return own.last, true
}

func (c *counts) leave(id any, number int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total--
	own := c.of[id]
	if own.n--; own.n == 0 {
		delete(c.of, id)
	}
	own.waits = slices.DeleteFunc(own.waits, func(w *wait) bool {
		if number > w.last {
			return false
		}
		w.n--
		if w.n == 0 {
			close(w.ended)
		}
		return w.n == 0
	})
}

// ended returns a channel that is closed when the cleanups of id that are running have ended.
func (c *counts) ended(id any) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	own := c.of[id]
	if own == nil {
		return closedChannel
	}
	w := &wait{last: own.last, n: own.n, ended: make(chan struct{})}
	own.waits = append(own.waits, w)
	return w.ended
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

// Needless returns err as the error of an acquisition that certainly did nothing, now or later, and
// therefore needs no cleanup. Its text is that of err, which it wraps.
func Needless(err error) error { return needless{err} }

// IsNeedless reports whether err wraps a [Needless] error.
func IsNeedless(err error) bool { return errors.As(err, new(needless)) }

type needless struct{ error }

func (n needless) Unwrap() error { return n.error }
