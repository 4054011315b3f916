package lazyctx_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker/internal/lazyctx"
	"github.com/stretchr/testify/assert"
)

// What derives from a detached context, or waits for it, learns of each way to end, and needs no
// goroutine for that: one that is left would be a deadlock of the bubble.
func TestDerivedFromDetached(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(*lazyctx.Context)
		want error
	}{
		"canceled": {(*lazyctx.Context).Cancel, context.Canceled},
		"expired":  {func(*lazyctx.Context) { time.Sleep(time.Minute) }, context.DeadlineExceeded},
		"not":      {func(*lazyctx.Context) {}, nil},
	} {
		for _, isOver := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				ctx := lazyctx.WithoutCancel(t.Context(), time.Now().Add(time.Minute))
				if isOver {
					c.end(ctx)
				}
				derived, cancel := context.WithCancel(ctx)
				called := make(chan struct{})
				stop := context.AfterFunc(ctx, func() { close(called) })
				done := ctx.Done()
				if !isOver {
					c.end(ctx)
				}
				synctest.Wait()
				assert.Equal(t, c.want, derived.Err(), name)
				assert.Equal(t, c.want, context.Cause(derived), name)
				assert.Equal(t, c.want, ctx.Err(), name)
				assert.Equal(t, c.want != nil, closed(done), name)
				assert.Equal(t, c.want != nil, closed(called), name)
				assert.Equal(t, c.want == nil, stop(), name)
				cancel()
				ctx.Cancel()
			})
		}
	}
}

// What waits for the end of a context finds its error, however soon it looks: without one, a
// derived context of package context would panic.
func TestErrAtEnd(t *testing.T) {
	for range 2000 {
		ctx := lazyctx.WithoutCancel(t.Context(), time.Now().Add(time.Hour))
		var all sync.WaitGroup
		for range 8 {
			all.Add(1)
			context.AfterFunc(ctx, func() {
				defer all.Done()
				assert.Error(t, ctx.Err())
			})
			done := ctx.Done()
			all.Go(func() {
				<-done
				assert.Error(t, ctx.Err())
			})
		}
		ctx.Cancel()
		all.Wait()
	}
}
