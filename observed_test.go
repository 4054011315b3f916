package locker

import (
	"context"
	"iter"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// everything has every optional interface.
type everything struct{ Locker }

func (everything) Wait(context.Context, string, string, time.Duration) (time.Time, error) {
	return time.Time{}, nil
}
func (everything) Watch(context.Context, string) (<-chan struct{}, error) { return nil, nil }
func (everything) Fence(context.Context, string, string) (n uint64, ok bool, _ error) {
	return 0, true, nil
}

func (everything) Inspect(context.Context, string) (Info, error)       { return Info{}, nil }
func (everything) List(context.Context, string) iter.Seq2[Info, error] { return nil }

type nopObserver struct{}

func (nopObserver) Observe(context.Context, Event) {}

// An observed Locker has the optional interfaces of the one behind it, and no others.
func TestForward(t *testing.T) {
	for want := range 1 << optionalInterfaces {
		l := withOptional(&observed{everything{}, nopObserver{}}, want)
		assert.Equal(t, want, optional(l), "the test's own")
		assert.Equal(t, want, optional(forward(&observed{l, nopObserver{}})))
	}
}

const optionalInterfaces = 5

// optional is a set of the optional interfaces that l has, in the order of forward.
func optional(l Locker) (set int) {
	for i, has := range [optionalInterfaces]func() bool{
		func() bool { _, ok := l.(Waiter); return ok },
		func() bool { _, ok := l.(Watcher); return ok },
		func() bool { _, ok := l.(Fencer); return ok },
		func() bool { _, ok := l.(Inspector); return ok },
		func() bool { _, ok := l.(Lister); return ok },
	} {
		if has() {
			set |= 1 << i
		}
	}
	return set
}

// A lease forgets the contexts that are no longer needed.
func TestContextsAreUnbound(t *testing.T) {
	lease := newLease(t.Context(), nil, everything{}, "k", "t", time.Hour, time.Now().Add(time.Hour), options{})
	_, first := lease.Context(t.Context())
	_, second := lease.Context(t.Context())
	assert.Len(t, lease.rare.contexts, 2)
	first()
	first()
	assert.Len(t, lease.rare.contexts, 1)
	second()
	assert.Empty(t, lease.rare.contexts)
	lease.Detach()
}

type observerFunc func(context.Context, Event)

func (f observerFunc) Observe(ctx context.Context, e Event) { f(ctx, e) }

// An Observer may panic or end the goroutine when Unlock reports a loss to it. The lease can still be
// used after that.
func TestUnlockReportsLossToObserverThatLeaves(t *testing.T) {
	for name, leave := range map[string]func(){"panic": func() { panic("boom") }, "exit": runtime.Goexit} {
		_, obs := observe(t.Context(), observerFunc(func(_ context.Context, e Event) {
			if e.Kind == Lost {
				leave()
			}
		}), "k")
		lease := obs.newLease() // without the timer, which would notice the loss as well
		lease.locker, lease.key, lease.token, lease.obs = unreleased{}, "k", "t", obs
		lease.state, lease.deadline = held, time.Now()
		left := make(chan struct{})
		go func() {
			defer close(left)
			defer func() { _ = recover() }()
			_ = lease.Unlock(t.Context())
			t.Error(name + ": Unlock returned")
		}()
		<-left
		assert.ErrorIs(t, lease.Unlock(t.Context()), ErrNotHeld, name)
	}
}

// unreleased releases nothing.
type unreleased struct{ Locker }

func (unreleased) Release(context.Context, string, string) (bool, error) { return false, nil }
