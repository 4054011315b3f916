package locker

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/golockers/locker/internal/misuse"
)

// Observed returns a Locker that behaves as l does and reports to o what happens to its
// acquisitions and leases. It implements the optional interfaces that l implements, and no
// others.
//
// Any Locker can be observed, and an observed one can be wrapped. Over a cohort, o receives the
// events of each caller; under it, those of the lock on the backend that the callers of a process
// share, where each release of a cleanup is reported as Unlocked or UnlockFailed. The functions of
// this package report an acquisition once, however many requests it takes. A method of the Locker
// that is called directly is reported by itself: a false result as Refused, Lost or UnlockFailed,
// and extensions and releases with [Event].Took 0. If l is the result of Observed, both observers
// receive all events.
//
// If l or o is nil, every operation fails.
func Observed(l Locker, o Observer) Locker {
	if inner := observedBy(l); inner != nil && o != nil {
		l, o = inner.Locker, both{inner.observer, o}
	}
	return forward(&observed{l, o})
}

// observed is embedded in every Locker that Observed returns.
type observed struct {
	Locker
	observer Observer
}

// observation returns o. No type outside this package has this method: see observedBy.
func (o *observed) observation() *observed { return o }

func observedBy(l Locker) *observed {
	if o, ok := l.(interface{ observation() *observed }); ok {
		return o.observation()
	}
	return nil
}

// reveal returns the Locker that l observes, or l itself, and the observer.
func reveal(l Locker) (Locker, Observer, error) {
	o := observedBy(l)
	switch {
	case o == nil:
		return l, nil, nil
	case o.observer == nil:
		return nil, nil, errNilObserver
	}
	return o.Locker, o.observer, nil
}

var errNilObserver = misuse.New("nil Observer")

// Substitute returns l with the observer of o. A Locker of package cohort acquires through a Locker
// of its own, and with this method and Behind each of these acquisitions is reported as one. It
// keeps no lease: it extends and releases the lock by direct calls.
func (o *observed) Substitute(l Locker) Locker {
	if o.observer == nil {
		return Observed(l, nil)
	}
	return Observed(l, leaseless{o.observer})
}

// Around returns l with the observer of o, for a Locker that replaces the observed one, such as a
// Locker of package semaphore.
func (o *observed) Around(l Locker) Locker { return Observed(l, o.observer) }

// Behind returns the Locker that is observed.
func (o *observed) Behind() Locker { return o.Locker }

// UndoOwner implements [undo.Part]: the functions of this package clean up on the Locker
// behind.
func (o *observed) UndoOwner() any { return o.Locker }

type both [2]Observer

func (b both) Observe(ctx context.Context, e Event) {
	defer b[1].Observe(ctx, e) // even if the other one panics: it may be counting
	b[0].Observe(ctx, e)
}

func (o *observed) check() error {
	switch {
	case o.Locker == nil:
		return errNilLocker
	case o.observer == nil:
		return errNilObserver
	}
	return nil
}

// acquisitionKind is how an acquisition ended.
func acquisitionKind(err error) EventKind {
	switch {
	case err == nil:
		return Acquired
	case errors.Is(err, ErrHeld), errors.Is(err, ErrNotHeld):
		return Refused
	}
	return Failed
}

func (o *observed) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if err := o.check(); err != nil {
		return false, err
	}
	_, obs := observe(ctx, o.observer, key)
	returned := false
	defer obs.endUnless(&returned)
	acquired, err := o.Locker.Acquire(ctx, key, token, ttl)
	returned = true
	if err == nil && !acquired {
		obs.end(ErrHeld)
	} else {
		obs.end(err)
	}
	return acquired, err
}

func (o *observed) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if err := o.check(); err != nil {
		return false, err
	}
	extended, err := o.Locker.Extend(ctx, key, token, ttl)
	o.report(ctx, key, extended, err, Extended, Lost, ExtendFailed)
	return extended, err
}

func (o *observed) Release(ctx context.Context, key, token string) (bool, error) {
	if err := o.check(); err != nil {
		return false, err
	}
	released, err := o.Locker.Release(ctx, key, token)
	o.report(ctx, key, released, err, Unlocked, UnlockFailed, UnlockFailed)
	return released, err
}

// report reports a call as the one of three kinds that matches its outcome.
func (o *observed) report(ctx context.Context, key string, ok bool, err error, yes, no, failed EventKind) {
	e := Event{Kind: yes, Key: key}
	switch {
	case err != nil:
		e.Kind, e.Err = failed, err
	case !ok:
		e.Kind, e.Err = no, ErrNotHeld
	}
	o.observer.Observe(ctx, e)
}

// Each of these types has an optional method. Whether a Locker has such a method is visible from
// outside, so forward needs a type for each combination.
//
//go:generate go run ./internal/genforward
type (
	waits    struct{ o *observed }
	watches  struct{ o *observed }
	fences   struct{ o *observed }
	inspects struct{ o *observed }
	lists    struct{ o *observed }
)

func (w waits) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	if err := w.o.check(); err != nil {
		return time.Time{}, err
	}
	waitCtx, obs := observe(ctx, w.o.observer, key)
	returned := false
	defer obs.endUnless(&returned)
	deadline, err := w.o.Locker.(Waiter).Wait(waitCtx, key, token, ttl)
	returned = true
	if !errors.Is(err, errors.ErrUnsupported) {
		obs.end(err)
	}
	return deadline, err
}

func (w watches) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	if err := w.o.check(); err != nil {
		return nil, err
	}
	return w.o.Locker.(Watcher).Watch(ctx, key)
}

func (f fences) Fence(ctx context.Context, key, token string) (uint64, bool, error) {
	if err := f.o.check(); err != nil {
		return 0, false, err
	}
	return f.o.Locker.(Fencer).Fence(ctx, key, token)
}

func (i inspects) Inspect(ctx context.Context, key string) (Info, error) {
	if err := i.o.check(); err != nil {
		return Info{}, err
	}
	return i.o.Locker.(Inspector).Inspect(ctx, key)
}

func (l lists) List(ctx context.Context, prefix string) iter.Seq2[Info, error] {
	if err := l.o.check(); err != nil {
		return func(yield func(Info, error) bool) { yield(Info{}, err) }
	}
	return l.o.Locker.(Lister).List(ctx, prefix)
}
