package lazyctx_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker/internal/lazyctx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type key struct{}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Each way to end gives the same answers whether Done was called before it, or after it, or never.
func TestEnds(t *testing.T) {
	cause := errors.New("cause")
	for _, c := range []struct {
		name     string
		detached bool
		end      func(c *lazyctx.Context, cancelParent func())
		err      error
		cause    error
	}{
		{"not", false, func(*lazyctx.Context, func()) {}, nil, nil},
		{"deadline", false, func(*lazyctx.Context, func()) { time.Sleep(time.Minute) },
			context.DeadlineExceeded, context.DeadlineExceeded},
		{"cancel", false, func(c *lazyctx.Context, _ func()) { c.Cancel() }, context.Canceled, context.Canceled},
		{"cancel, then deadline", false, func(c *lazyctx.Context, _ func()) { c.Cancel(); time.Sleep(time.Hour) },
			context.Canceled, context.Canceled},
		{"deadline, then cancel", false, func(c *lazyctx.Context, _ func()) {
			time.Sleep(time.Hour)
			_ = c.Err() // which notices the deadline
			c.Cancel()
		}, context.DeadlineExceeded, context.DeadlineExceeded},
		{"parent", false, func(_ *lazyctx.Context, cancelParent func()) { cancelParent() }, context.Canceled, cause},
		{"detached, parent", true, func(_ *lazyctx.Context, cancelParent func()) { cancelParent() }, nil, nil},
		{"detached, deadline", true, func(*lazyctx.Context, func()) { time.Sleep(time.Minute) },
			context.DeadlineExceeded, context.DeadlineExceeded},
		{"detached, cancel", true, func(c *lazyctx.Context, cancelParent func()) { cancelParent(); c.Cancel() },
			context.Canceled, context.Canceled},
	} {
		for _, asked := range []string{"never", "before", "after"} {
			t.Run(c.name+", Done "+asked, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					parent, cancel := context.WithCancelCause(context.WithValue(t.Context(), key{}, "v"))
					defer cancel(nil)
					deadline := time.Now().Add(time.Minute)
					ctx := lazyctx.WithDeadline(parent, deadline)
					if c.detached {
						ctx = lazyctx.WithoutCancel(parent, deadline)
					}
					defer ctx.Cancel()
					require.NoError(t, ctx.Err())
					require.False(t, ctx.IsOver())
					var done <-chan struct{}
					if asked == "before" {
						done = ctx.Done()
						require.False(t, closed(done))
					}
					c.end(ctx, func() { cancel(cause) })
					synctest.Wait()
					if asked == "after" {
						done = ctx.Done()
					}
					for range 2 { // it stays so
						assert.Equal(t, c.err, ctx.Err())
						assert.Equal(t, c.cause, context.Cause(ctx))
						if done != nil {
							assert.Equal(t, c.err != nil, closed(done))
						}
						assert.Equal(t, "v", ctx.Value(key{}))
						assert.Equal(t, strings.Contains(c.name, "cancel"), ctx.IsOver())
					}
					d, ok := ctx.Deadline()
					assert.True(t, ok)
					assert.Equal(t, deadline, d)
				})
			})
		}
	}
}

// Cancel alone does not find out that the context has ended.
func TestCancelAfterUnnoticedEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := lazyctx.WithDeadline(t.Context(), time.Now().Add(time.Minute))
		time.Sleep(time.Hour)
		ctx.Cancel()
		assert.Equal(t, context.Canceled, ctx.Err())
		assert.True(t, closed(ctx.Done()))
		assert.Equal(t, context.Canceled, ctx.Err())
	})
}

// What ends the parent after the context has ended changes neither Err nor its cause.
func TestErrStays(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(*lazyctx.Context)
		want error
	}{
		"canceled": {(*lazyctx.Context).Cancel, context.Canceled},
		"expired":  {func(*lazyctx.Context) { time.Sleep(time.Minute) }, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for _, parentErr := range []error{context.Canceled, context.DeadlineExceeded} {
					parent, cancel := context.WithCancelCause(t.Context())
					defer cancel(nil)
					if parentErr == context.DeadlineExceeded {
						var stop context.CancelFunc
						parent, stop = context.WithTimeout(parent, time.Hour)
						defer stop()
					}
					ctx := lazyctx.WithDeadline(parent, time.Now().Add(time.Minute))
					c.end(ctx)
					require.Equal(t, c.want, ctx.Err())
					if parentErr == context.Canceled {
						cancel(errors.New("cause"))
					}
					time.Sleep(2 * time.Hour)
					require.Error(t, parent.Err())
					assert.Equal(t, c.want, context.Cause(ctx))
					assert.True(t, closed(ctx.Done()))
					assert.Equal(t, c.want, ctx.Err())
					assert.Equal(t, c.want, context.Cause(ctx))
				}
			})
		})
	}
}

// A Context that is part of another value costs no allocation of its own.
func TestInit(t *testing.T) {
	var part struct {
		n int
		lazyctx.Context
	}
	parent, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "v"))
	defer cancel()
	deadline := time.Now().Add(time.Hour)
	part.Init(parent, deadline)
	defer part.Cancel()
	d, ok := part.Deadline()
	assert.True(t, ok)
	assert.Equal(t, deadline, d)
	assert.Equal(t, "v", part.Value(key{}))
	assert.NoError(t, part.Err())
	cancel()
	<-part.Done()
	assert.Equal(t, context.Canceled, part.Err())
}

func TestInitWithoutCancel(t *testing.T) {
	var part lazyctx.Context
	parent, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "v"))
	part.InitWithoutCancel(parent, time.Now().Add(time.Hour))
	cancel()
	assert.NoError(t, part.Err())
	assert.Equal(t, "v", part.Value(key{}))
	part.Cancel()
	assert.Equal(t, context.Canceled, part.Err())
}

// ErrAt notices whatever ends a context, and a deadline by the reading that it is given.
func TestErrAt(t *testing.T) {
	now := time.Now()
	end := now.Add(time.Minute)
	for name, c := range map[string]struct {
		end  func(c *lazyctx.Context, cancelParent func())
		want error
	}{
		"not":      {func(*lazyctx.Context, func()) {}, nil},
		"canceled": {func(c *lazyctx.Context, _ func()) { c.Cancel() }, context.Canceled},
		"parent":   {func(_ *lazyctx.Context, cancelParent func()) { cancelParent() }, context.Canceled},
	} {
		for _, watched := range []bool{false, true} {
			parent, cancel := context.WithCancel(t.Context())
			ctx := lazyctx.WithDeadline(parent, end)
			if watched {
				ctx.Done()
			}
			assert.NoError(t, lazyctx.ErrAt(ctx, now), name)
			c.end(ctx, cancel)
			assert.Equal(t, c.want, lazyctx.ErrAt(ctx, now), name)
			ctx.Cancel()
			cancel()
			assert.Equal(t, context.Canceled, lazyctx.ErrAt(parent, now), "a context of another package")
		}
	}
	past := lazyctx.WithoutCancel(t.Context(), now)
	defer past.Cancel()
	assert.Equal(t, context.DeadlineExceeded, lazyctx.ErrAt(past, end))
}

func TestEarlierDeadlineOfParent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parent, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ctx := lazyctx.WithDeadline(parent, time.Now().Add(time.Minute))
		defer ctx.Cancel()
		d, _ := ctx.Deadline()
		assert.Equal(t, time.Second, time.Until(d))
		<-ctx.Done()
		assert.Equal(t, context.DeadlineExceeded, ctx.Err())
	})
}

func TestDerived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := lazyctx.WithoutCancel(t.Context(), time.Now().Add(time.Minute))
		derived, cancel := context.WithCancel(ctx)
		defer cancel()
		ctx.Cancel()
		<-derived.Done()
		assert.Equal(t, context.Canceled, derived.Err())
	})
}

func TestAllocations(t *testing.T) {
	parent, cancel := context.WithCancel(t.Context())
	defer cancel()
	var ctx context.Context // as an argument would be
	for name, make := range map[string]func(context.Context, time.Time) *lazyctx.Context{
		"with deadline": lazyctx.WithDeadline, "without cancel": lazyctx.WithoutCancel,
	} {
		assert.LessOrEqual(t, testing.AllocsPerRun(100, func() {
			c := make(parent, time.Now().Add(time.Minute))
			ctx = c
			if ctx.Err() != nil {
				t.Error("ended")
			}
			c.Cancel()
		}), 1.0, name)
	}
}

func TestIsDetached(t *testing.T) {
	deadline := time.Now().Add(time.Minute)
	assert.True(t, lazyctx.WithoutCancel(t.Context(), deadline).IsDetached())
	assert.False(t, lazyctx.WithDeadline(t.Context(), deadline).IsDetached())
}
