package locker

// The Locker that reports to an Observer.

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/golockers/locker/internal/misuse"
)

// Observed returns a Locker that behaves as l does and reports to o what happens to its
// acquisitions and leases. It has the methods of all optional interfaces; those that l lacks return
// [errors.ErrUnsupported], and functions such as [CanFence] tell which these are.
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
	inner, ok := l.(*observed)
	if !ok || o == nil {
		return &observed{l, o, ""}
	}
	if inner.observer != (nobody{}) {
		o = both{inner.observer, o}
	}
	return &observed{inner.Locker, o, inner.owner}
}

type observed struct {
	Locker
	observer Observer
	owner    string // of Owned
}

var (
	_ Waiter    = (*observed)(nil)
	_ Watcher   = (*observed)(nil)
	_ Fencer    = (*observed)(nil)
	_ Inspector = (*observed)(nil)
	_ Lister    = (*observed)(nil)
)

// reveal returns the Locker that l observes, or l itself, and the observer.
func reveal(l Locker) (Locker, Observer, error) {
	o, ok := l.(*observed)
	switch {
	case !ok:
		return l, nil, nil
	case o.observer == nil:
		return nil, nil, errNilObserver
	case o.observer == (nobody{}):
		return o.Locker, nil, nil
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
func (o *observed) Around(l Locker) Locker { return &observed{l, o.observer, o.owner} }

// Behind returns the Locker that is observed.
func (o *observed) Behind() Locker { return o.Locker }

// Forwards implements what [CanWait] asks for.
func (o *observed) Forwards(string) Locker { return o.Locker }

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

func (o *observed) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	if err := o.check(); err != nil {
		return time.Time{}, err
	}
	w, ok := o.Locker.(Waiter)
	if !ok {
		return time.Time{}, o.lacks("Wait")
	}
	waitCtx, obs := observe(ctx, o.observer, key)
	returned := false
	defer obs.endUnless(&returned)
	deadline, err := w.Wait(waitCtx, key, token, ttl)
	returned = true
	if !errors.Is(err, errors.ErrUnsupported) {
		obs.end(err)
	}
	return deadline, err
}

func (o *observed) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if w, ok := o.Locker.(Watcher); ok {
		return w.Watch(ctx, key)
	}
	return nil, o.lacks("Watch")
}

func (o *observed) Fence(ctx context.Context, key, token string) (uint64, bool, error) {
	if err := o.check(); err != nil {
		return 0, false, err
	}
	if f, ok := o.Locker.(Fencer); ok {
		return f.Fence(ctx, key, token)
	}
	return 0, false, o.lacks("Fence")
}

func (o *observed) Inspect(ctx context.Context, key string) (Info, error) {
	if err := o.check(); err != nil {
		return Info{Key: key}, err
	}
	if i, ok := o.Locker.(Inspector); ok {
		return i.Inspect(ctx, key)
	}
	return Info{Key: key}, o.lacks("Inspect")
}

func (o *observed) List(ctx context.Context, prefix string) iter.Seq2[Info, error] {
	err := o.check()
	if l, ok := o.Locker.(Lister); ok && err == nil {
		return l.List(ctx, prefix)
	}
	if err == nil {
		err = o.lacks("List")
	}
	return func(yield func(Info, error) bool) { yield(Info{}, err) }
}

// lacks returns the error of an optional method that the Locker behind does not have.
func (o *observed) lacks(method string) error {
	return fmt.Errorf("%T has no method %s: %w", o.Locker, method, errors.ErrUnsupported)
}
