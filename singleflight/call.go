package singleflight

import (
	"context"
	"errors"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/leasectx"
)

// This file has the step that calls the source.

// callSource calls the source. From here on a load goes on without callers, so that callers with little
// time also fill the cache. What follows the source happens after callSource has returned: callers do
// not wait for it.
func (l *Loader[V]) callSource(ctx context.Context, key string, m *member[V], t terms) (v V, err error) {
	if f, _ := ctx.(*flight[V]); f != nil {
		// After MaxHold, later callers do not wait for this source, and it does not go on without
		// callers.
		defer time.AfterFunc(l.maxHold, f.close).Stop()
	}
	source := ctx
	if t.lease != nil {
		var end func()
		source, end = l.hold(ctx, key, t.lease)
		defer end()
		l.note(ctx, Loaded, nil)
	} else {
		l.note(ctx, LoadedUnlocked, t.why)
	}
	s := l.newStore(key, m, t)
	hasValue := false
	defer func() { l.give(ctx, s, v, hasValue, err) }() // even if the source panics
	if m != nil && l.many != nil {
		v, err = m.call(source, key, l.many)
	} else {
		m.leave() // the others need not wait for a source of its own, which may load one of them
		v, err = l.source(source, key)
	}
	hasValue = err == nil
	return v, l.blameLeases(ctx, err)
}

// keepFlight makes the flight whose context is ctx go on without callers, unless all have left or the
// Loader is being closed. It returns an error if the source is not to be called.
func (l *Loader[V]) keepFlight(ctx context.Context) error {
	if l.lifetime.cut.Load() {
		return locker.ErrClosed
	}
	f, _ := ctx.(*flight[V])
	if f == nil {
		return nil
	}
	if !f.detach() {
		return ctx.Err()
	}
	if l.lifetime.closing.Load() {
		f.attach()
		return ctx.Err()
	}
	return nil
}

// leaseError is the error of a source that returned an ErrDeadlock although the first caller
// carried leases. It concerns callers that carry the same leases, and no others.
type leaseError struct {
	error
	leases leasectx.Carrier
}

// blameLeases returns err, as a leaseError if it may be due to the leases of the first caller.
func (l *Loader[V]) blameLeases(ctx context.Context, err error) error {
	if f, _ := ctx.(*flight[V]); f != nil && isDeadlock(err) {
		if c := leasectx.Of(f.first); c != nil {
			return &leaseError{err, c}
		}
	}
	return err
}

// isDeadlock reports whether err is an ErrDeadlock. An error whose methods panic, such as a nil pointer,
// is none: nobody may be left to see the panic.
func isDeadlock(err error) (is bool) {
	defer func() { _ = recover() }()
	return errors.Is(err, locker.ErrDeadlock)
}
