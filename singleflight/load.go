package singleflight

import (
	"context"

	"github.com/golockers/locker"
)

// This file has the way of a load, once it has begun, through its steps. Each has a file of its own:
// look.go, lock.go with wait.go, call.go, give.go, store.go and release.go. No step goes back to one
// before it; what a later one has to know is in terms.

// load is what the first caller in this process does for all. alone reports whether the callers have
// read the cache themselves, each after it called Load, and haveRead whether LoadMany has.
func (l *Loader[V]) load(ctx context.Context, key string, m *member[V], alone, haveRead bool) (v V, err error) {
	if v, ok := l.beingStored(key); ok {
		l.note(ctx, LoadJoined, nil)
		return v, nil
	}
	if alone {
		return l.loadMissing(ctx, key, m, nil)
	}
	if l.forgotten.has(key) {
		return v, errReadAlone
	}
	ok := false
	if !haveRead {
		if v, ok, err = l.read(ctx, key); ok {
			l.note(ctx, LoadHit, nil)
			return v, nil
		}
	}
	if err == nil {
		if v, ok, err = l.readStale(ctx, key); ok {
			return v, nil
		}
	}
	return l.loadMissing(ctx, key, m, err)
}

// loadMember is load for a member of a batch.
func (l *Loader[V]) loadMember(ctx context.Context, key string, m *member[V], alone, haveRead bool) (V, error) {
	m.start()
	defer m.leaveFlight()
	return l.load(ctx, key, m, alone, haveRead)
}

// loadMissing loads a value that is not in the cache, or that could not be read because of readErr.
// It is separate from load, to keep the stack of a hit small.
func (l *Loader[V]) loadMissing(ctx context.Context, key string, m *member[V], readErr error) (v V, _ error) {
	e, _ := ctx.(ender)
	if !l.lifetime.begin(e) {
		return v, l.loadError(key, locker.ErrClosed)
	}
	defer l.lifetime.end(e)
	t, found, err := l.lock(ctx, key, m, readErr)
	if err != nil || found.ok {
		return found.v, err
	}
	return l.loadOn(ctx, key, m, t)
}

// loadOn is what follows the lock, for a load and for a refresh: to look again, and to call the source.
// Giving, storing and releasing follow from that.
func (l *Loader[V]) loadOn(ctx context.Context, key string, m *member[V], t terms) (v V, _ error) {
	calls := false
	defer func() {
		if t.lease != nil && !calls {
			l.unlockBehind(ctx, t.lease)
		}
	}()
	found, err := l.lookAgain(ctx, key, m, &t)
	if err == nil && !found.ok {
		err = l.keepFlight(ctx)
	}
	if err != nil || found.ok {
		return found.v, err
	}
	calls = true
	return l.callSource(ctx, key, m, t)
}
