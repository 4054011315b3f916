package singleflight

import (
	"context"
	"errors"

	"github.com/golockers/locker/internal/leasectx"
)

// This file has the first step of a load: to join the flight of the key, or to begin one.

// call is Load. shared reports whether more than one caller in this process got the result.
func (l *Loader[V]) call(ctx context.Context, key string) (v V, shared bool, err error) {
	if !l.acceptsUnobserved(key) {
		if _, ok := ctx.(*observation); !ok && l != nil && l.observe != nil {
			return l.loadObserved(ctx, key)
		}
		if err := l.check(key); err != nil {
			return v, false, l.loadError(key, err)
		}
	}
	return l.join(ctx, key, nil, false)
}

// join returns the result of the flight of key, which it begins if there is none: as a member of a
// batch, if m is not nil, which may have read the cache already.
func (l *Loader[V]) join(ctx context.Context, key string, m *member[V], haveRead bool) (v V, shared bool, err error) {
	if m != nil {
		if err := l.check(key); err != nil {
			return v, false, l.loadError(key, err)
		}
	}
	if l.carriesLock(ctx, key) {
		v, err = l.loadHeld(ctx, key)
		return v, false, err
	}
	for {
		alone := l.forgotten.has(key) && ctx.Err() == nil
		if alone { // a read that began before this call may be older than what followed Forget
			if v, err := l.readAlone(ctx, key); err == nil {
				return v, false, nil
			}
		}
		v, shared, err := l.group.call(ctx, key, true, func(ctx context.Context) (V, error) {
			if m != nil {
				return l.loadMember(ctx, key, m, alone, haveRead)
			}
			return l.load(ctx, key, nil, alone, false)
		})
		if err == nil {
			return v, shared, nil
		}
		again, err := l.settled(ctx, key, err)
		if !again {
			return v, shared, err
		}
	}
}

// settled returns what the error of a flight is for a caller of it, or reports that the caller has to
// call again.
func (l *Loader[V]) settled(ctx context.Context, key string, err error) (again bool, _ error) {
	if of, ok := err.(*leaseError); ok {
		if leasectx.Of(ctx) != of.leases && ctx.Err() == nil {
			return true, nil // the source may wait for those locks on behalf of this caller
		}
		err = of.error
	}
	switch {
	case err == errReadAlone:
		return true, nil
	case ctx.Err() != nil:
		l.gaveUp(&l.group, key)
	default:
		if closed := l.lifetime.errCut(err); closed != nil {
			err = l.loadError(key, closed)
		}
	}
	return false, err
}

// joinOpen is call if a flight of key is open that the caller may join. It costs little, since a
// thousand callers may do it.
func (l *Loader[V]) joinOpen(ctx context.Context, key string) (v V, shared, joined bool, err error) {
	if !l.acceptsUnobserved(key) || l.forgotten.has(key) || l.carriesLock(ctx, key) {
		return v, false, false, nil
	}
	v, shared, joined, err = l.group.callOpen(ctx, key)
	if err == nil {
		return v, shared, joined, nil
	}
	again, err := l.settled(ctx, key, err)
	return v, shared, !again, err
}

// errReadAlone is the error of a flight that may not share what it has read, or would read, a
// moment after a Forget: the read may be older than the deletion, and some of the callers
// younger. Each then reads for itself.
var errReadAlone = errors.New("singleflight: the key was forgotten a moment ago")

// errNotThere is the error of readAlone if there is no value.
var errNotThere = errors.New("singleflight: not in the cache")

// readAlone reads the cache for one caller, in a flight of its own, which the caller can leave.
func (l *Loader[V]) readAlone(ctx context.Context, key string) (V, error) {
	var g Group[V]
	v, _, err := g.call(ctx, key, false, func(ctx context.Context) (V, error) {
		v, ok, err := l.read(ctx, key)
		if ok {
			l.note(ctx, LoadHit, nil)
		} else if err == nil {
			v, ok, err = l.readStale(ctx, key)
		}
		if !ok && err == nil {
			err = errNotThere
		}
		return v, err
	})
	if ctx.Err() != nil {
		l.gaveUp(&g, key)
	}
	return v, err
}
