package singleflight

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/leasectx"
)

// errReadAlone is the error of a flight that may not share what it has read, or would read, a
// moment after a Forget: the read may be older than the deletion, and some of the callers
// younger. Each then reads for itself.
var errReadAlone = errors.New("singleflight: the key was forgotten a moment ago")

// errNotThere is the error of readAlone if there is no value.
var errNotThere = errors.New("singleflight: not in the cache")

// load is what the first caller in this process does for all. alone reports whether the callers
// have read the cache themselves, each after it called Load.
func (l *Loader[V]) load(ctx context.Context, key string, alone bool) (v V, err error) {
	if v, ok := l.beingStored(key); ok {
		l.note(ctx, LoadJoined, nil)
		return v, nil
	}
	if !alone {
		if l.forgotten.has(key) {
			return v, errReadAlone
		}
		v, ok, err := l.read(ctx, key)
		if ok {
			l.note(ctx, LoadHit, nil)
			return v, nil
		}
		if err == nil {
			v, ok, err = l.readStale(ctx, key)
		}
		if ok {
			return v, nil
		}
		return l.loadMissing(ctx, key, nil, err)
	}
	return l.loadMissing(ctx, key, nil, nil)
}

// loadIn is load for a member of a batch.
func (l *Loader[V]) loadIn(ctx context.Context, key string, m *member[V], alone, haveRead bool) (v V, err error) {
	m.start()
	defer m.leaveFlight()
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
	var ok bool
	if !haveRead {
		if v, ok, err = l.read(ctx, key); ok {
			l.note(ctx, LoadHit, nil)
		}
	}
	if !ok && err == nil {
		v, ok, err = l.readStale(ctx, key)
	}
	if ok {
		return v, nil
	}
	return l.loadMissing(ctx, key, m, err)
}

// loadMissing loads a value that is not in the cache, or that could not be read because of err.
// It is separate from load, to keep the stack of a hit small.
func (l *Loader[V]) loadMissing(ctx context.Context, key string, m *member[V], err error) (v V, _ error) {
	e, _ := ctx.(ender)
	if !l.lifetime.begin(e) {
		return v, loadError(key, locker.ErrClosed)
	}
	defer l.lifetime.end(e)
	switch {
	case err != nil:
		return l.loadWithoutCache(ctx, key, m, err)
	case l.unstored.has(key):
		// Others would wait in vain for a value that the cache does not take.
		return l.loadUnlocked(ctx, key, m, addIfPossible, errUnstored)
	}
	began := time.Now()
	m.awaitStart()
	lease, err := l.tryLock(ctx, key)
	if errors.Is(err, locker.ErrHeld) {
		m.leave()
		return l.waitForValue(ctx, key, began)
	}
	return l.loadWithLock(ctx, key, m, began, lease, err)
}

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

// carriesLock reports whether ctx carries the lock of key.
func (l *Loader[V]) carriesLock(ctx context.Context, key string) bool {
	leases := leasectx.Of(ctx)
	return leases != nil && leases.Carries(l.locker, l.keyPrefix+key)
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
		err = locker.ErrDeadlock
	default:
		err = fmt.Errorf("%w; %w", locker.ErrDeadlock, err)
	}
	return v, loadError(key, err)
}

// loadWithLock loads under the lock that tryLock returned, or without it if that failed. A load that
// failed elsewhere after began is shared; the zero time means that none is.
func (l *Loader[V]) loadWithLock(ctx context.Context, key string, m *member[V], began time.Time,
	lease *locker.Lease, err error) (v V, _ error) {
	if err != nil {
		return l.loadWithout(ctx, key, m, err, addIfPossible)
	}
	calls := false
	defer func() {
		if !calls {
			l.unlockBehind(ctx, lease)
		}
	}()
	how := set
	found, err := l.look(ctx, key, m, began, true)
	if found.ok || isFinal(err) {
		l.note(ctx, LoadWaited, nil)
		return found.v, err
	}
	if err != nil {
		how = afterReadError(err)
		if err := l.refuse(ctx, key, err); err != nil {
			return v, err
		}
	}
	calls = true
	return l.callSource(ctx, key, m, lease, found.version, how, nil)
}

// loadWithoutCache loads when the cache cannot be read. The lock would be of no use: a process
// that is refused it could not see the value.
func (l *Loader[V]) loadWithoutCache(ctx context.Context, key string, m *member[V], err error) (V, error) {
	return l.loadWithout(ctx, key, m, err, afterReadError(err))
}

// loadWithout loads without the lock, because of an error of a backend.
func (l *Loader[V]) loadWithout(ctx context.Context, key string, m *member[V], cause error, how storing) (
	v V, err error) {
	if err := l.refuse(ctx, key, cause); err != nil {
		return v, err
	}
	return l.loadUnlocked(ctx, key, m, how, cause)
}

// loadUnlocked loads without the lock, for the reason why. It begins a load in the cache all the same,
// if the cache is to get the value, so that it cannot store one that is older than an Update.
func (l *Loader[V]) loadUnlocked(ctx context.Context, key string, m *member[V], how storing, why error) (
	v V, err error) {
	var found looked[V]
	if l.keeper != nil && how != dont {
		if found, err = l.look(ctx, key, m, time.Time{}, true); found.ok {
			l.note(ctx, LoadWaited, nil)
			return found.v, nil
		}
		if err := ctx.Err(); err != nil {
			return v, err
		}
		if isNoAnswer(err) {
			how = dont
		}
	}
	return l.callSource(ctx, key, m, nil, found.version, how, why)
}

// refuse returns the error that ends a load because of cause, or nil if the source is called all
// the same.
func (l *Loader[V]) refuse(ctx context.Context, key string, cause error) error {
	if err := ctx.Err(); err != nil {
		return err // all callers have left
	}
	if l.failClosed || isInvalid(cause) || errors.Is(cause, locker.ErrClosed) {
		return loadError(key, cause)
	}
	return nil
}

// callSource calls the source, unless all callers have left before. From here on a load goes on
// without callers, so that callers with little time also fill the cache. What follows the source,
// storing the value and releasing the lock if there is one, happens after callSource has
// returned: callers do not wait for it. Without a lease, why is the reason for that. version is that
// of the load in the cache, or 0.
func (l *Loader[V]) callSource(ctx context.Context, key string, m *member[V], lease *locker.Lease, version uint64,
	how storing, why error) (v V, err error) {
	if err := l.keepFlight(ctx); err != nil {
		if lease != nil {
			l.unlockBehind(ctx, lease)
		}
		return v, err
	}
	if f, _ := ctx.(*flight[V]); f != nil {
		// After MaxHold, later callers do not wait for this source, and it does not go on without
		// callers.
		defer time.AfterFunc(l.maxHold, f.close).Stop()
		if lease != nil {
			// Without the lock, a caller may come after an Update elsewhere, and must not get an older value.
			held, cancel := lease.Context(context.Background())
			defer cancel()
			defer context.AfterFunc(held, f.shut)()
		}
	}
	if lease != nil {
		l.note(ctx, Loaded, nil)
	} else {
		l.note(ctx, LoadedUnlocked, why)
	}
	outdated := l.outdated.when(key)
	l.mu.Lock()
	w := l.beginLocked(key)
	forgets := w.forgets
	l.mu.Unlock()
	hasValue := false
	defer func() { // even if the source panics
		s := &store[V]{key: key, work: w, v: v, lease: lease, version: version, outdated: outdated}
		held := lease == nil || isHeld(lease)
		s.served, s.how = held, l.storingNow(how, held)
		if version != 0 {
			s.how = put
		}
		lost := hasValue && lease != nil && s.how == dont
		if f, _ := ctx.(*flight[V]); f != nil && !hasValue && lease != nil && version != 0 { // nobody waits for a refresh
			s.failure = l.failureOf(ctx, err)
		}
		l.mu.Lock()
		switch {
		case w.forgets != forgets || w.store != nil || l.lifetime.cut.Load():
			s.how = dont
		case s.failure != "":
			s.how = fail
			l.willPublish(key)
		case !hasValue:
			s.how = dont
		}
		if s.how == dont || s.how == fail {
			l.endLocked(key, w)
		} else {
			l.beginStoreLocked(s)
		}
		l.mu.Unlock()
		if lost {
			l.observeWork(ctx, StoreFailed, key, time.Now(), locker.ErrNotHeld)
		}
		if s.how == put || s.how == fail {
			s.member = m
			m.keep()
		}
		if s.how != dont || lease != nil {
			l.lifetime.follow()
			go l.conclude(ctx, s)
			runtime.Gosched() // so that the request to store goes out before the callers wake and compete with it
		}
	}()
	if m != nil && l.many != nil {
		v, err = m.call(ctx, key, l.many)
	} else {
		v, err = l.source(ctx, key)
	}
	hasValue = err == nil
	return v, l.blameLeases(ctx, err)
}

// leaseError is the error of a source that returned an ErrDeadlock although the first caller
// carried leases. It concerns callers that carry the same leases, and no others.
type leaseError struct {
	error
	leases leasectx.Carrier
}

// blameLeases returns err, as a leaseError if it may be due to the leases of the first caller.
func (l *Loader[V]) blameLeases(ctx context.Context, err error) error {
	if f, _ := ctx.(*flight[V]); f != nil && errors.Is(err, locker.ErrDeadlock) {
		if c := leasectx.Of(f.first); c != nil {
			return &leaseError{err, c}
		}
	}
	return err
}

// keepFlight makes the flight whose context is ctx go on without callers, unless the Loader is
// being closed. It returns an error if the source is not to be called.
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
