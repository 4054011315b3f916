package singleflight

import (
	"context"
	"fmt"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/leasectx"
)

// This file has the loads of callers that hold the lock of the key already: in a function of locker.Do,
// or in the source of a load, of this Loader or another one on the same Locker.

// holding is the context of a source that runs under a lock. It is the load's context, which carries the
// lease as well.
type holding struct {
	context.Context
	carried context.Context // for the leases alone; it ends when they are lost
	key     string          // of the load
	lease   *locker.Lease   // nil: those of several loads
}

// holdingKey is the key of the holding in the context of a source.
type holdingKey struct{}

// Value implements [context.Context].
func (h *holding) Value(key any) any {
	switch {
	case key == (holdingKey{}) && h.lease != nil:
		return h
	case key == (holdingKey{}) || key == (leasectx.Key{}):
		return h.carried.Value(key)
	}
	return h.Context.Value(key)
}

// hold makes the context of a load, which is a flight or that of a refresh, carry its lease. It returns
// that context, and a function that ends this. When the lease is lost, the flight takes no more callers:
// they may come after an Update elsewhere, and must not get an older value.
func (l *Loader[V]) hold(ctx context.Context, key string, lease *locker.Lease) (context.Context, func()) {
	f, _ := ctx.(*flight[V])
	if f == nil {
		held, end := lease.Context(context.WithoutCancel(ctx))
		return &holding{ctx, held, key, lease}, end
	}
	held, end := lease.Context((*inherited[V])(f))
	f.held.Store(&holding{f, held, key, lease})
	stop := context.AfterFunc(held, f.shut)
	return f, func() { stop(); end() }
}

// carriesLock reports whether ctx carries the lock of key.
func (l *Loader[V]) carriesLock(ctx context.Context, key string) bool {
	leases := leasectx.Of(ctx)
	return leases != nil && leases.Carries(l.locker, l.name(key))
}

// loadHeld is Load for a caller that holds the lock of key. It does not join a load, which may be
// waiting for that lock, and does not begin one, which would.
func (l *Loader[V]) loadHeld(ctx context.Context, key string) (v V, err error) {
	if err := l.group.checkWithin(ctx, key); err != nil {
		return v, err
	}
	v, err = l.readAlone(ctx, key)
	switch {
	case err == nil || ctx.Err() != nil:
		return v, err
	case err == errNotThere:
		err = l.deadlock(ctx, key)
	default:
		err = fmt.Errorf("%w; %w", l.deadlock(ctx, key), err)
	}
	return v, l.loadError(key, err)
}

// deadlock returns the error of a load of key whose caller holds its lock. If that is a load as well,
// the error names it.
func (l *Loader[V]) deadlock(ctx context.Context, key string) error {
	for {
		h, _ := ctx.Value(holdingKey{}).(*holding)
		switch {
		case h == nil:
			return locker.ErrDeadlock
		case h.lease.Key() == l.name(key):
			return fmt.Errorf("the load of %.64q with the lock %.64q waits for it: %w", h.key, h.lease.Key(), locker.ErrDeadlock)
		}
		ctx = h.carried
	}
}
