package locker

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// A lease forgets the contexts that are no longer needed.
func TestContextsAreUnbound(t *testing.T) {
	lease := newLease(t.Context(), nil, unreleased{}, "k", "t", time.Hour, time.Now().Add(time.Hour), options{})
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
