package singleflight

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/lazyctx"
)

// This file has the context of a request to a backend, and what its error says.

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

// isInvalid reports whether err is that of a misuse, which no other attempt would mend.
func isInvalid(err error) bool {
	return errors.Is(err, locker.ErrInvalidTTL) || errors.Is(err, locker.ErrInvalidKey) ||
		errors.Is(err, locker.ErrInvalidToken) || errors.Is(err, locker.ErrInvalidLocker)
}

func isNoAnswer(err error) bool { return errors.As(err, new(*noAnswerError)) }
