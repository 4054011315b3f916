package singleflight

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/lazyctx"
)

// request is the context of one request to a backend. It is canceled when the request has
// returned.
type request struct {
	lazyctx.Context
	backend *breaker
	watched atomic.Bool // by gaveUp
}

// request returns a request to the backend of b that begins now.
//
// It has the backend's timeout, but no more than half of the time that the caller has left, and
// not less than b's patience. So if the backend hangs, a caller with a deadline of a second still
// gets the source's value.
func (l *Loader[V]) request(ctx context.Context, now time.Time, b *breaker) *request {
	f, _ := ctx.(*flight[V])
	caller := ctx
	if f != nil {
		caller = f.first
	}
	r := l.requestOf(ctx, caller, now, b)
	if f != nil {
		f.asking.Store(r)
	}
	return r
}

// requestOf is request for a caller with that context.
func (l *Loader[V]) requestOf(ctx, caller context.Context, now time.Time, b *breaker) *request {
	limit := b.timeout
	end, hasEnd := caller.Deadline()
	if hasEnd {
		limit = min(limit, max(end.Sub(now)/2, b.patience()))
	}
	deadline := now.Add(limit)
	if ctx == caller && hasEnd && end.Before(deadline) {
		deadline = end
	}
	r := &request{backend: b}
	r.Init(ctx, deadline)
	return r
}

// gaveUp is for a caller that has left the flight of key in g. If the flight's request goes on
// although its context has ended, the flight takes no more callers from then on, and the backend
// is left alone.
func (l *Loader[V]) gaveUp(g *Group[V], key string) {
	g.mu.Lock()
	e := g.keys.get(key)
	g.mu.Unlock()
	f := e.open
	if f == nil {
		f = e.unwinding // the caller was its last
	}
	if f == nil {
		return
	}
	r := f.asking.Load()
	if r == nil || r.IsOver() || !r.watched.CompareAndSwap(false, true) {
		return
	}
	deadline, _ := r.Deadline()
	time.AfterFunc(time.Until(deadline)+r.backend.patience(), func() {
		if !r.IsOver() {
			r.backend.trip(key, time.Now(), &noAnswerError{"not back after its deadline", context.DeadlineExceeded})
			f.close()
		}
	})
}

// tryLock makes one attempt to take the lock. An error other than locker.ErrHeld and
// locker.ErrClosed is the backend's, unless it is due to an invalid option (isInvalid) or to the
// end of ctx.
func (l *Loader[V]) tryLock(ctx context.Context, key string) (*locker.Lease, error) {
	if !l.lockBreaker.allows(key) {
		return nil, l.lockBreaker.skip(key, func() { l.probeLock(ctx, key) })
	}
	began := time.Now()
	tryCtx := l.request(ctx, began, &l.lockBreaker)
	defer tryCtx.Cancel()
	lease, err := locker.TryLock(tryCtx, l.locker, l.keyPrefix+key, l.lockTTL,
		locker.WithKeepAlive(), locker.WithMaxHold(l.maxHold))
	if err == nil && !l.lifetime.hold(lease) {
		l.unlock(ctx, lease)
		return nil, locker.ErrClosed
	}
	switch {
	case err == nil || errors.Is(err, locker.ErrHeld):
		l.lockBreaker.succeeded(key, began)
	case isInvalid(err):
	case tryCtx.Err() != nil && time.Since(began) < l.lockBreaker.patience():
		// It ended because its caller left, soon after it began.
	default:
		err = l.lockBreaker.failed(tryCtx, key, began, err)
	}
	return lease, err
}

// probeLock finds out whether the backend of the locks answers again.
func (l *Loader[V]) probeLock(ctx context.Context, key string) {
	if !l.lifetime.begin(nil) {
		return
	}
	defer l.lifetime.end(nil)
	began := time.Now()
	tryCtx := lazyctx.WithoutCancel(ctx, began.Add(l.backendTimeout))
	defer tryCtx.Cancel()
	lease, err := locker.TryLock(tryCtx, l.locker, l.keyPrefix+key, l.lockTTL)
	if err != nil && !errors.Is(err, locker.ErrHeld) {
		if isNoAnswer(l.lockBreaker.failed(tryCtx, key, began, err)) {
			return
		}
	}
	l.lockBreaker.succeeded(key, began)
	if lease != nil {
		l.unlock(ctx, lease)
	}
}

// unlock releases the lock, and tries once more if that fails. The error does not concern the
// callers: they have the value, and the lock ends with its ttl.
func (l *Loader[V]) unlock(ctx context.Context, lease *locker.Lease) {
	defer l.lifetime.drop(lease)
	for range 2 {
		began := time.Now()
		err := lease.Unlock(ctx)
		if err == nil || errors.Is(err, locker.ErrNotHeld) {
			return
		}
		key := strings.TrimPrefix(lease.Key(), l.keyPrefix)
		_ = l.lockBreaker.failed(context.WithoutCancel(ctx), key, began, err)
	}
}

// unlockBehind is unlock in the background. Close waits for it.
func (l *Loader[V]) unlockBehind(ctx context.Context, lease *locker.Lease) {
	l.lifetime.follow()
	go func() {
		defer l.lifetime.end(nil)
		l.unlock(ctx, lease)
	}()
}

// isHeld reports whether lease is not known to be lost.
func isHeld(lease *locker.Lease) bool {
	select {
	case <-lease.Lost():
		return false
	default:
		return time.Now().Before(lease.Deadline())
	}
}

// isInvalid reports whether err is that of a misuse, which no other attempt would mend.
func isInvalid(err error) bool {
	return errors.Is(err, locker.ErrInvalidTTL) || errors.Is(err, locker.ErrInvalidKey) ||
		errors.Is(err, locker.ErrInvalidToken) || errors.Is(err, locker.ErrInvalidLocker)
}

func isNoAnswer(err error) bool { return errors.As(err, new(*noAnswerError)) }
