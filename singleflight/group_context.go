package singleflight

import (
	"context"
	"strconv"
	"time"
)

// A flight is the context of its fn: it has the values of the first caller's, no deadline, and ends when
// everybody has left. What makes it end exists only once somebody asks for it, so that a call whose fn does
// not is cheap. It is never ended otherwise: what fn returns may go on using it.
//
// It answers to its Group as a key, for the sake of Group.within.

// ending is what a flight that can end delegates to: a context of package context, which derived contexts
// know how to hang on to without a goroutine.
type ending struct {
	context.Context
	cancel context.CancelFunc
}

// end returns the flight's ending, and makes it if there is none yet.
func (f *flight[V]) end() *ending {
	if e := f.ending.Load(); e != nil {
		return e
	}
	e := new(ending)
	e.Context, e.cancel = context.WithCancel((*inherited[V])(f))
	if !f.ending.CompareAndSwap(nil, e) {
		return f.ending.Load() // e hangs on to nothing, as its parent cannot end
	}
	return e
}

func (f *flight[V]) Deadline() (deadline time.Time, ok bool) { return }

func (f *flight[V]) Done() <-chan struct{} {
	if !f.canEnd {
		return nil
	}
	return f.end().Done()
}

func (f *flight[V]) Err() error {
	if e := f.ending.Load(); e != nil {
		return e.Err()
	}
	return nil
}

func (f *flight[V]) Value(key any) any {
	switch {
	case key == any(f.group):
		return f
	case f.canEnd:
		// Package context looks for the nearest context that can end in this way: that must not be
		// the first caller's.
		return f.end().Value(key)
	}
	return f.first.Value(key)
}

// String keeps package fmt, which a context is sometimes given to, from reading the fields.
func (f *flight[V]) String() string { return "singleflight " + strconv.Quote(f.key) }

// inherited is what the context of a flight has from the first caller's: the values alone.
type inherited[V any] flight[V]

func (c *inherited[V]) Deadline() (deadline time.Time, ok bool) { return }
func (c *inherited[V]) Done() <-chan struct{}                   { return nil }
func (c *inherited[V]) Err() error                              { return nil }
func (c *inherited[V]) Value(key any) any                       { return c.first.Value(key) }
func (c *inherited[V]) String() string                          { return (*flight[V])(c).String() }
