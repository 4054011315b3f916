package singleflight

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golockers/locker/internal/lazyctx"
	"github.com/golockers/locker/singleflight/slots"
)

// This file has the reads of the cache: the first one, of a load and of a refresh ahead, and those of a
// process that has the lock, or waits for it.

// read reads the cache, unless the value of key is outdated. After an error ok is false.
//
// It is most of a hit, which runs on a new goroutine. It must not be called at a depth at which
// the stack has to grow, which would cost more than everything else.
func (l *Loader[V]) read(ctx context.Context, key string) (v V, ok bool, err error) {
	if l.outdated.has(key) {
		return v, false, nil
	}
	if l.refreshAhead > 0 && l.keeper != nil {
		return l.readAhead(ctx, key)
	}
	if !l.cacheBreaker.allows(key) {
		return v, false, l.skipCache(ctx, key)
	}
	began := time.Now()
	r := l.request(ctx, began, &l.cacheBreaker)
	v, ok, err = l.cache.Get(r, l.name(key))
	if err != nil {
		var zero V
		return zero, false, l.notRead(r, key, began, err)
	}
	r.Cancel()
	l.cacheBreaker.succeeded(key, began)
	return v, ok, nil
}

// readStale returns the value of key that read no longer returns, if there is one, and starts a
// refresh.
func (l *Loader[V]) readStale(ctx context.Context, key string) (v V, ok bool, err error) {
	s, isStaleCache := l.cache.(StaleCache[V])
	if !isStaleCache || l.slotTTL > 0 || l.outdated.has(key) {
		return v, false, nil
	}
	err = l.ask(ctx, key, func(ctx context.Context) (err error) {
		v, ok, err = s.Stale(ctx, l.name(key))
		return err
	})
	if ok && err == nil {
		l.note(ctx, LoadStale, nil)
		l.refresh(ctx, key, 0)
	}
	return v, ok && err == nil, err
}

// ask makes a request to the cache.
func (l *Loader[V]) ask(ctx context.Context, key string, request func(context.Context) error) error {
	if !l.cacheBreaker.allows(key) {
		return l.skipCache(ctx, key)
	}
	began := time.Now()
	r := l.request(ctx, began, &l.cacheBreaker)
	if err := request(r); err != nil {
		return l.notRead(r, key, began, err)
	}
	r.Cancel()
	l.cacheBreaker.succeeded(key, began)
	return nil
}

// readAhead is read, and starts a refresh of a value that will soon expire.
func (l *Loader[V]) readAhead(ctx context.Context, key string) (v V, ok bool, err error) {
	s := &slots.Slot[V]{Key: l.name(key)}
	err = l.ask(ctx, key, func(ctx context.Context) error {
		if err := errors.Join(l.keeper.Look(ctx, s), s.Err); !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
		s.Left = -1
		s.Value, s.Found, err = l.cache.Get(ctx, s.Key)
		return err
	})
	if err != nil {
		return v, false, err
	}
	l.refreshIfDue(ctx, key, s)
	return s.Value, s.Found, nil
}

// refreshIfDue starts a refresh of key if its value in s will soon expire.
func (l *Loader[V]) refreshIfDue(ctx context.Context, key string, s *slots.Slot[V]) {
	if s.Found && s.Left >= 0 && s.Left < l.refreshAhead {
		l.refresh(ctx, key, l.outagePause)
	}
}

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
	_, hasCallers := ctx.(*flight[V]) // a refresh shares with none what it has read
	alone := hasCallers && l.forgotten.has(key)
	if l.keeper == nil {
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
	s := &slots.Slot[V]{Key: l.name(key), Since: l.since(key, since)}
	if hold {
		s.Hold = l.maxHold + l.lockTTL
	}
	if f, _ := ctx.(*flight[V]); f == nil { // it is a refresh
		s.Ahead = l.refreshAhead
	}
	outdated := l.outdated.has(key)
	if outdated { // what is there does not count, but the load needs a version
		s.Ahead = 50 * longest
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
		return found, l.notRead(r, key, began, err)
	}
	r.Cancel()
	l.cacheBreaker.succeeded(key, began)
	if s.Failed {
		return found, l.remoteError(key, s)
	}
	return looked[V]{s.Value, s.Found && s.Version == 0 && !outdated, s.Version}, nil
}

// lookAgain looks at the cache before the source is called. Under the lock, another process may have
// stored a value, or failed, since this one looked. Without the lock a load begins in the cache all the
// same, if that is to get the value, so that it cannot store one that is older than an Update.
func (l *Loader[V]) lookAgain(ctx context.Context, key string, m *member[V], t *terms) (found looked[V], err error) {
	if t.lease == nil && (l.keeper == nil || t.how == dont) {
		return found, nil
	}
	found, err = l.look(ctx, key, m, t.since, true)
	t.version = found.version
	switch {
	case found.ok || isFinal(err):
		l.note(ctx, LoadWaited, nil)
		return found, err
	case t.lease == nil && ctx.Err() != nil:
		return found, ctx.Err()
	case t.lease == nil && isNoAnswer(err):
		t.how = dont
	case t.lease != nil && err != nil:
		t.how = afterReadError(err)
		return found, l.refuse(ctx, key, err)
	}
	return found, nil
}

// isFinal reports whether an error of look ends a load: there is nothing else to try.
func isFinal(err error) bool {
	var remote *RemoteError
	return err == errReadAlone || errors.As(err, &remote)
}

// notRead ends a request r to the cache that failed with err, and returns its error.
func (l *Loader[V]) notRead(r *request, key string, began time.Time, err error) error {
	defer r.Cancel()
	if r.Err() != nil && time.Since(began) < l.cacheBreaker.patience() {
		return err // it ended because its caller left, soon after it began
	}
	return readError(l.cacheBreaker.failed(r, key, began, err))
}

func (l *Loader[V]) skipCache(ctx context.Context, key string) error {
	return readError(l.cacheBreaker.skip(key, func() { l.probeCache(ctx, key) }))
}

func readError(err error) error { return fmt.Errorf("read the cache: %w", err) }

// probeCache finds out whether the cache answers again.
func (l *Loader[V]) probeCache(ctx context.Context, key string) {
	began := time.Now()
	getCtx := lazyctx.WithoutCancel(ctx, began.Add(l.backendTimeout))
	defer getCtx.Cancel()
	err := recovered(key, func() error {
		_, _, err := l.cache.Get(getCtx, l.name(key))
		return err
	})
	if err != nil && isNoAnswer(l.cacheBreaker.failed(getCtx, key, began, err)) {
		return
	}
	l.cacheBreaker.succeeded(key, began)
}
