// Package undo repeats in the background what has no answer yet, until it is certain: the release of
// a lock that may be held although its acquisition failed, or of a place in a queue that nobody
// waits in any more. For how long is in its constants, and in the Window of each [Work].
package undo

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"time"
)

const (
	// Late is how long a request without an answer may still arrive once the backend answers others.
	Late = 5 * time.Second

	// Longest is how long a work goes on against a backend that does not answer.
	Longest = time.Minute

	// MaxPerOwner is how many works of one owner run at a time, so that a backend that is down does
	// not use up those of another.
	MaxPerOwner = 256

	// MaxTotal is how many works run at a time in the process. It is reached only if
	// MaxTotal/MaxPerOwner backends are down, or if a program makes a new owner for each operation.
	MaxTotal = 16 * MaxPerOwner

	firstDelay = 5 * time.Millisecond
	maxDelay   = time.Second
)

// ErrClosed is wrapped by the error of a client that was closed: no request of it has an answer any
// more.
var ErrClosed = errors.New("the client is closed")

// Work is something to undo.
type Work struct {
	// Owner is the Locker whose bound counts: see [Part].
	Owner any

	// Window is how long the work is worth doing, at most [Longest]: what it undoes ends by itself
	// then, as a lock does with its ttl.
	Window time.Duration

	// Attempt tries once, and is called until it is certain that nothing is left: until it reports
	// done, or the backend has answered for as long as a late request can live. An error means that
	// it did not answer; one that wraps [ErrClosed] ends the work. The context has the caller's values
	// and ends with the window.
	Attempt func(context.Context) (done bool, err error)

	// GaveUp, if it is not nil, is called with the last error if the work ends uncertain.
	GaveUp func(error)
}

// Start begins w in a goroutine, with growing delays between its attempts. Above [MaxPerOwner] or
// [MaxTotal] it does nothing and returns false.
func Start(ctx context.Context, w Work) bool {
	id := identity(w.Owner)
	number, ok := running.enter(id)
	if !ok {
		return false
	}
	go func() {
		defer running.leave(id, number)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(w.Window, Longest))
		defer cancel()
		if err := w.run(ctx); err != nil && w.GaveUp != nil {
			w.GaveUp(err)
		}
	}()
	return true
}

// Patience is how long a call that fails waits for what it has left behind to be undone.
const Patience = 100 * time.Millisecond

// Try is [Start], and returns when the backend has answered an attempt, the second one has failed, or
// after [Patience]. So callers that return, and then close their client, leave nothing behind on a
// backend that works.
func Try(ctx context.Context, w Work) bool {
	tried, attempts, attempt := make(chan struct{}), 0, w.Attempt
	w.Attempt = func(ctx context.Context) (bool, error) {
		done, err := attempt(ctx)
		if attempts++; attempts == 1 && err == nil || attempts == 2 && !isClosed(tried) {
			close(tried)
		}
		return done, err
	}
	if !Start(ctx, w) {
		return false
	}
	timer := time.NewTimer(Patience)
	defer timer.Stop()
	select {
	case <-tried:
	case <-timer.C:
	}
	return true
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// run returns nil once it is certain that nothing is left.
func (w *Work) run(ctx context.Context) error {
	var answered time.Time // when the backend answered first
	for delay := firstDelay; ; delay = min(2*delay, maxDelay) {
		done, err := w.Attempt(ctx)
		switch {
		case done:
			return nil
		case errors.Is(err, ErrClosed):
			return err
		case err == nil && answered.IsZero():
			answered = time.Now()
		case err == nil && time.Since(answered) >= Late:
			return nil
		}
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		if ctx.Err() != nil {
			if err == nil { // what a late request might have done has ended by itself
				return nil
			}
			return err
		}
	}
}

// Wait returns when the works of owner that are running now have ended, or with ctx's error when ctx
// ends before that. It does not wait for later ones, which other users of owner may start again and
// again while the backend is down. So it takes no longer than [Longest], if attempts return when
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

// running counts the works under way. It has an entry for an owner only while the owner has any.
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

// wait is a Wait: for the works up to a number.
type wait struct {
	last  int
	n     int           // how many of them are running
	ended chan struct{} // closed when n is 0
}

// enter counts a work of id and returns its number, or false if there are too many.
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

// ended returns a channel that is closed when the works of id that are running have ended.
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

// Part is an owner that is part of another one. Its works count as that owner's.
type Part interface{ UndoOwner() any }

// identity returns a map key for owner. Owners that cannot be map keys share their type's.
func identity(owner any) any {
	for {
		p, ok := owner.(Part)
		if !ok {
			break
		}
		owner = p.UndoOwner()
	}
	same := owner
	if v := reflect.ValueOf(owner); v.Comparable() && owner == same { // a NaN in it is not the same
		return owner
	}
	return reflect.TypeOf(owner)
}

// Needless returns err as the error of an acquisition that certainly did nothing, now or later, and
// therefore needs no undoing. Its text is that of err, which it wraps.
func Needless(err error) error { return needless{err} }

// IsNeedless reports whether err wraps a [Needless] error.
func IsNeedless(err error) bool { return errors.As(err, new(needless)) }

// Pending returns err as the error of an acquisition that its caller has left behind, and that reports
// whether it was answered since: then nothing more of it can arrive. Its text is that of err.
func Pending(err error, answered func() bool) error { return pending{err, answered} }

// IsAnswered reports whether err wraps a [Pending] error whose acquisition was answered.
func IsAnswered(err error) bool {
	var p pending
	return errors.As(err, &p) && p.answered()
}

type pending struct {
	error
	answered func() bool
}

func (p pending) Unwrap() error { return p.error }

type needless struct{ error }

func (n needless) Unwrap() error { return n.error }
