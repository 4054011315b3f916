package singleflight

import (
	"context"
	"errors"
	"time"

	"github.com/golockers/locker/singleflight/slots"
)

// This file has the reads of a load after the first one: of a process that has the lock, or waits for
// it.

// looked is what such a read found.
type looked[V any] struct {
	v       V
	ok      bool
	version uint64 // of the load that was begun; 0: the cache keeps none
}

// look reads the cache for a flight that callers have joined, and more join during the read. If hold
// is true, a load begins unless there is a value. The error is a [*RemoteError] if a load failed that
// the caller, which began at that time, has waited for.
func (l *Loader[V]) look(ctx context.Context, key string, m *member[V], began time.Time, hold bool) (
	found looked[V], err error) {
	alone := l.forgotten.has(key)
	if l.keeper == nil || l.outdated.has(key) {
		err = recovered(key, func() (err error) { // nobody may be left to see a panic
			found.v, found.ok, err = l.read(ctx, key)
			return err
		})
	} else {
		found, err = l.lookAtSlot(ctx, key, m, began, hold)
	}
	if found.ok && alone {
		return looked[V]{}, errReadAlone
	}
	return found, err
}

func (l *Loader[V]) lookAtSlot(ctx context.Context, key string, m *member[V], since time.Time, hold bool) (
	found looked[V], err error) {
	if !l.cacheBreaker.allows(key) {
		return found, l.skipCache(ctx, key)
	}
	began := time.Now()
	s := &slots.Slot[V]{Key: key, Since: l.since(key, since)}
	if hold {
		s.Hold = l.maxHold + l.lockTTL
	}
	if f, _ := ctx.(*flight[V]); f == nil { // it is a refresh
		s.Ahead = l.refreshAhead
	}
	r := l.request(ctx, began, &l.cacheBreaker)
	err = recovered(key, func() error {
		return m.look(s, func(all ...*slots.Slot[V]) error {
			if m != nil { // it may have waited for the others for as long as a request may take
				r.Cancel()
				began = time.Now()
				r = l.request(ctx, began, &l.cacheBreaker)
			}
			return l.keeper.Look(r, all...)
		})
	})
	if err == nil {
		err = s.Err
	}
	if errors.Is(err, errors.ErrUnsupported) { // the cache keeps no load for this key
		r.Cancel()
		l.cacheBreaker.succeeded(key, began)
		found.v, found.ok, err = l.read(ctx, key)
		return found, err
	}
	if err != nil {
		_, err = l.notRead(r, key, began, err)
		return found, err
	}
	r.Cancel()
	l.cacheBreaker.succeeded(key, began)
	if s.Failed {
		return found, l.remoteError(s)
	}
	return looked[V]{s.Value, s.Found && s.Version == 0, s.Version}, nil
}

// readAhead is read, and starts a refresh of a value that will soon expire.
func (l *Loader[V]) readAhead(ctx context.Context, key string) (v V, ok bool, err error) {
	began := time.Now()
	s := &slots.Slot[V]{Key: key}
	r := l.request(ctx, began, &l.cacheBreaker)
	if err = l.keeper.Look(r, s); err == nil {
		err = s.Err
	}
	if errors.Is(err, errors.ErrUnsupported) {
		s.Left = -1
		s.Value, s.Found, err = l.cache.Get(r, key)
	}
	if err != nil {
		v, err = l.notRead(r, key, began, err)
		return v, false, err
	}
	r.Cancel()
	l.cacheBreaker.succeeded(key, began)
	l.refreshIfDue(ctx, s)
	return s.Value, s.Found, nil
}

// refreshIfDue starts a refresh if the value of s will soon expire.
func (l *Loader[V]) refreshIfDue(ctx context.Context, s *slots.Slot[V]) {
	if s.Found && s.Left >= 0 && s.Left < l.refreshAhead {
		l.refresh(ctx, s.Key, l.outagePause)
	}
}

// isFinal reports whether an error of look ends a load: there is nothing else to try.
func isFinal(err error) bool {
	var remote *RemoteError
	return err == errReadAlone || errors.As(err, &remote)
}
