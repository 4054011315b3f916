package lazyctx_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker/internal/lazyctx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// twin is a lazy context, or one derived from it, and the context of package context that must
// behave in the same way.
type twin struct {
	lazy, model   context.Context
	called, calls atomic.Int32 // of functions that wait for their ends
	stopLazy      []func() bool
	stopModel     []func() bool
}

func (w *twin) compare(t *testing.T) {
	t.Helper()
	require.Equal(t, w.model.Err(), w.lazy.Err())
	require.Equal(t, context.Cause(w.model), context.Cause(w.lazy))
	require.Equal(t, "v", w.lazy.Value(key{}))
}

// A context behaves as one of package context does, whichever of its methods are called, and in
// whatever order.
func TestRandomSchedules(t *testing.T) {
	for range 300 {
		seed := rand.Uint64()
		synctest.Test(t, func(t *testing.T) { schedule(t, seed) })
		if t.Failed() {
			t.Logf("seed %d", seed)
			return
		}
	}
}

func schedule(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0))
	parent, cancelParent := context.WithCancelCause(context.WithValue(t.Context(), key{}, "v"))
	defer cancelParent(nil)
	if r.IntN(2) == 0 {
		var stop context.CancelFunc
		parent, stop = context.WithTimeout(parent, time.Duration(1+r.IntN(9))*time.Second)
		defer stop()
	}
	deadline := time.Now().Add(time.Duration(r.IntN(9))*time.Second + time.Millisecond)
	detached := r.IntN(2) == 0
	lazy, base := (*lazyctx.Context)(nil), parent
	if detached {
		lazy, base = lazyctx.WithoutCancel(parent, deadline), context.WithoutCancel(parent)
	} else {
		lazy = lazyctx.WithDeadline(parent, deadline)
	}
	model, cancel := context.WithDeadline(base, deadline)
	defer cancel()
	defer lazy.Cancel()
	twins := []*twin{{lazy: lazy, model: model}}
	for range 30 {
		w := twins[r.IntN(len(twins))]
		switch r.IntN(9) {
		case 0:
			require.Equal(t, closed(w.model.Done()), closed(w.lazy.Done()))
		case 1:
			w.compare(t)
		case 2:
			require.Equal(t, w.model.Err(), lazyctx.ErrAt(w.lazy, time.Now()))
		case 3:
			lazyDerived, cancelLazy := context.WithCancel(w.lazy)
			modelDerived, cancelModel := context.WithCancel(w.model)
			defer cancelLazy()
			defer cancelModel()
			twins = append(twins, &twin{lazy: lazyDerived, model: modelDerived})
		case 4:
			w.stopLazy = append(w.stopLazy, context.AfterFunc(w.lazy, func() { w.called.Add(1) }))
			w.stopModel = append(w.stopModel, context.AfterFunc(w.model, func() { w.calls.Add(1) }))
		case 5:
			if len(w.stopLazy) > 0 {
				i := r.IntN(len(w.stopLazy))
				require.Equal(t, w.stopModel[i](), w.stopLazy[i]())
			}
		case 6:
			time.Sleep(time.Duration(r.IntN(3)) * time.Second)
		case 7:
			if r.IntN(4) == 0 {
				cancelParent(errors.New("cause"))
			}
		case 8:
			if r.IntN(4) == 0 {
				lazy.Cancel()
				cancel()
			}
		}
		synctest.Wait()
		switch r.IntN(3) { // an end that is not noticed at once may be mistaken for a later one
		case 0:
			_ = lazy.Err()
		case 1:
			_ = lazyctx.ErrAt(lazy, time.Now())
		case 2:
			lazy.Done()
		}
	}
	for _, w := range twins {
		w.compare(t)
		assert.Equal(t, w.calls.Load(), w.called.Load())
	}
}

// Goroutines that use a context at the same time agree: an Err stays, and there is one once Done is
// closed and after Cancel.
func TestConcurrentUse(t *testing.T) {
	for i := range 200 {
		parent, cancel := context.WithCancel(t.Context())
		end := time.Now().Add(time.Duration(i%3) * 100 * time.Microsecond)
		if i%5 == 0 {
			end = end.Add(time.Hour)
		}
		ctx := lazyctx.WithDeadline(parent, end)
		if i%2 == 0 {
			ctx = lazyctx.WithoutCancel(parent, end)
		}
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				var first error
				for range 50 {
					err := ctx.Err()
					if first == nil {
						first = err
					}
					assert.Equal(t, first, err)
					if lazyctx.ErrAt(ctx, time.Now()) != nil {
						assert.Error(t, ctx.Err())
					}
				}
			})
		}
		wg.Go(func() {
			if done := ctx.Done(); closed(done) {
				assert.Error(t, ctx.Err())
			}
			defer context.AfterFunc(ctx, func() { assert.Error(t, ctx.Err()) })()
			_ = ctx.Value(key{})
		})
		wg.Go(cancel)
		wg.Go(func() {
			ctx.Cancel()
			assert.Error(t, ctx.Err())
			assert.True(t, ctx.IsOver())
		})
		wg.Wait()
	}
}
