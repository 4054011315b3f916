package singleflight

import (
	"context"
	"strconv"
	"time"

	"github.com/golockers/locker/internal/leasectx"
)

// A flight is the context of its fn: it has the values of the first caller's context, no
// deadline, and ends when the flight is abandoned. The part that makes it end is created on first
// use, so a call whose fn does not look at it is cheap. It does not end when fn returns, since
// what fn returned may go on using it.
//
// Its Value returns the flight itself for its Group as the key, which is how Group.within finds it.
//
// It carries the first caller's leases only until that caller leaves: while it waits for fn, fn
// must not wait for a lock that it holds. That of a load also carries the lease of its lock.

// ending is the context that a flight delegates to if it can end. It comes from package context,
// so that derived contexts need no goroutine.
type ending struct {
	context.Context
	cancel    context.CancelFunc
	abandoned int64 // the instant at which the flight was, guarded by group.mu
}

// end returns the flight's ending, which it creates if there is none yet.
func (f *flight[V]) end() *ending {
	if e := f.ending.Load(); e != nil {
		return e
	}
	e := new(ending)
	e.Context, e.cancel = context.WithCancel((*inherited[V])(f))
	if !f.ending.CompareAndSwap(nil, e) {
		return f.ending.Load() // e is attached to nothing, as its parent cannot end
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
	held := f.held.Load()
	switch {
	case key == any(f.group):
		return f
	case held != nil && (key == (leasectx.Key{}) || key == (holdingKey{})):
		return held.Value(key)
	case key == (leasectx.Key{}):
		return (*inherited[V])(f).Value(key)
	case f.canEnd:
		// Package context finds the nearest context that can end in this way. That must not be the
		// first caller's.
		return f.end().Value(key)
	}
	return f.first.Value(key)
}

// String keeps package fmt from reading the fields: contexts are sometimes printed.
func (f *flight[V]) String() string { return "singleflight " + strconv.Quote(f.key) }

// inherited is the part of the first caller's context that a flight's context has: the values
// alone, and the leases only until that caller leaves.
type inherited[V any] flight[V]

func (c *inherited[V]) Deadline() (deadline time.Time, ok bool) { return }
func (c *inherited[V]) Done() <-chan struct{}                   { return nil }
func (c *inherited[V]) Err() error                              { return nil }
func (c *inherited[V]) Value(key any) any {
	if key == (leasectx.Key{}) && c.first.Err() != nil {
		return nil
	}
	return c.first.Value(key)
}
func (c *inherited[V]) String() string { return (*flight[V])(c).String() }
