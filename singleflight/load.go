package singleflight

import (
	"context"
	"errors"
	"time"

	"github.com/golockers/locker"
)

// errReadAlone is the error of a flight that may not share what it would read, or has read, a moment after a
// Forget: it may be older than the deletion, and some of the callers younger. Each of them then reads for itself.
var errReadAlone = errors.New("singleflight: the key was forgotten a moment ago")

// errNotThere is the error of readAlone if there is no value.
var errNotThere = errors.New("singleflight: not in the cache")

// load is what the first caller in this process does for all. alone reports whether the callers have looked
// into the cache themselves, each after it called Load.
func (l *Loader[V]) load(ctx context.Context, key string, alone bool) (v V, err error) {
	if v, ok := l.beingStored(key); ok {
		return v, nil
	}
	if !alone {
		if l.forgotten.has(key) {
			return v, errReadAlone
		}
		v, ok, err := l.read(ctx, key)
		if !ok && err == nil {
			v, ok, err = l.readStale(ctx, key)
		}
		if ok {
			return v, nil
		}
		if err != nil {
			return l.loadWithoutCache(ctx, key, err)
		}
	}
	if l.unstored.has(key) {
		// Others could not see what the holder of the lock loads.
		return l.callSource(ctx, key, nil, addIfPossible)
	}
	lease, err := l.tryLock(ctx, key)
	if errors.Is(err, locker.ErrHeld) {
		return l.waitForValue(ctx, key)
	}
	return l.loadWithLock(ctx, key, lease, err)
}

// readAlone reads the cache for one caller, in a flight of its own, which the caller can leave.
func (l *Loader[V]) readAlone(ctx context.Context, key string) (V, error) {
	var g Group[V]
	v, _, err := g.call(ctx, key, false, func(ctx context.Context) (V, error) {
		v, ok, err := l.read(ctx, key)
		if !ok && err == nil {
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

// readShared reads the cache for a flight that has taken callers for a while, and takes more during the read.
func (l *Loader[V]) readShared(ctx context.Context, key string) (v V, ok bool, err error) {
	alone := l.forgotten.has(key)
	v, ok, err = l.read(ctx, key)
	if ok && alone {
		var zero V
		return zero, false, errReadAlone
	}
	return v, ok, err
}

// loadWithLock loads under the lock that tryLock returned, or without it if that failed.
func (l *Loader[V]) loadWithLock(ctx context.Context, key string, lease *locker.Lease, err error) (v V, _ error) {
	if err != nil {
		return l.loadWithout(ctx, key, err, addIfPossible)
	}
	calls := false
	defer func() {
		if !calls {
			go l.unlock(ctx, lease)
		}
	}()
	how := set
	v, ok, err := l.readShared(ctx, key)
	if ok || err == errReadAlone {
		return v, err
	}
	if err != nil {
		how = afterReadError(err)
		if err := l.refuse(ctx, key, err); err != nil {
			return v, err
		}
	}
	calls = true
	return l.callSource(ctx, key, lease, how)
}

// loadWithoutCache loads when the cache cannot be read. The lock would be of no use: a process that did not get
// it could not see the value.
func (l *Loader[V]) loadWithoutCache(ctx context.Context, key string, err error) (V, error) {
	return l.loadWithout(ctx, key, err, afterReadError(err))
}

// loadWithout loads without the lock, because of an error of a backend.
func (l *Loader[V]) loadWithout(ctx context.Context, key string, cause error, how storing) (v V, err error) {
	if err := l.refuse(ctx, key, cause); err != nil {
		return v, err
	}
	return l.callSource(ctx, key, nil, how)
}

// refuse returns the error that ends a load because of cause, or nil if the source is to be called all the
// same.
func (l *Loader[V]) refuse(ctx context.Context, key string, cause error) error {
	if err := ctx.Err(); err != nil {
		return err // every caller has left
	}
	if l.failClosed || isInvalid(cause) {
		return loadError(key, cause)
	}
	return nil
}

// callSource calls the source, unless every caller has left before. From here on a load goes on without
// callers, so that callers with little time also fill the cache. What follows the source, storing the value
// and releasing the lock if there is one, goes on when callSource has returned: the callers do not wait for it.
func (l *Loader[V]) callSource(ctx context.Context, key string, lease *locker.Lease, how storing) (v V, err error) {
	if f, _ := ctx.(*flight[V]); f != nil {
		if !f.detach() {
			if lease != nil {
				go l.unlock(ctx, lease)
			}
			return v, ctx.Err()
		}
		// Later callers must not wait for a source that never returns, nor may it go on without callers then.
		defer time.AfterFunc(l.maxHold, f.close).Stop()
	}
	l.mu.Lock()
	w := l.beginLocked(key)
	forgets := w.forgets
	l.mu.Unlock()
	hasValue := false
	defer func() { // on every way out, a panic of the source included
		s := &store[V]{key: key, work: w, v: v, how: l.storingNow(how, lease), lease: lease}
		l.mu.Lock()
		if !hasValue || w.forgets != forgets || w.store != nil {
			s.how = dont
		}
		if s.how == dont {
			l.endLocked(key, w)
		} else {
			l.beginStoreLocked(s)
		}
		l.mu.Unlock()
		if s.how != dont || lease != nil {
			go l.conclude(ctx, s)
		}
	}()
	v, err = l.source(ctx, key)
	hasValue = err == nil
	return v, err
}
