package singleflight

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestContextOfFn(t *testing.T) {
	type valueKey struct{}
	contexts(t, func(t *testing.T, ctx context.Context) {
		var g Group[int]
		canEnd := ctx.Done() != nil
		first := context.WithValue(ctx, valueKey{}, "first")
		if canEnd {
			var cancel func()
			first, cancel = context.WithTimeoutCause(first, time.Second, errors.New("the first caller's cause"))
			defer cancel()
		}
		var kept context.Context
		a := goDo(first, &g, "k", func(ctx context.Context) (int, error) {
			kept = ctx
			assert.Equal(t, canEnd, ctx.Done() != nil)
			_, has := ctx.Deadline()
			assert.False(t, has, "no deadline")
			assert.Equal(t, "first", ctx.Value(valueKey{}))
			assert.Contains(t, fmt.Sprint(ctx), `singleflight "k"`)

			// A derived context needs no goroutine, and ends on its own.
			derived, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			<-derived.Done()
			assert.Equal(t, context.DeadlineExceeded, derived.Err())
			assert.Equal(t, "first", derived.Value(valueKey{}))

			time.Sleep(2 * time.Second)
			assert.NoError(t, ctx.Err())
			assert.NoError(t, context.Cause(ctx))
			return 42, nil
		})
		synctest.Wait()
		second := context.WithValue(context.Background(), valueKey{}, "second")
		v, _, err := g.Do(second, "k", mustNotRun(t))
		require.NoError(t, err)
		require.Equal(t, 42, v)
		if canEnd {
			require.Equal(t, context.DeadlineExceeded, (<-a).err)
		} else {
			require.NoError(t, (<-a).err)
		}
		require.NoError(t, kept.Err(), "what fn returns may go on using its context")
	})
}

// The first caller's cancellation does not reach fn's context, whichever of its methods is called first.
func TestContextOfFnIsItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, ask := range []func(ctx context.Context){
			func(ctx context.Context) { assert.NoError(t, context.Cause(ctx)) },
			func(ctx context.Context) { assert.NoError(t, ctx.Err()) },
			func(ctx context.Context) {
				select {
				case <-ctx.Done():
					t.Error("it has ended")
				default:
				}
			},
			func(ctx context.Context) {
				derived, cancel := context.WithCancel(ctx)
				defer cancel()
				assert.NoError(t, derived.Err())
			},
		} {
			var g Group[int]
			first, cancelFirst := context.WithCancelCause(t.Context())
			second, cancelSecond := context.WithCancel(t.Context())
			a := goDo(first, &g, "k", func(ctx context.Context) (int, error) {
				time.Sleep(2 * time.Second) // the first has left
				ask(ctx)
				time.Sleep(2 * time.Second) // the second, too
				assert.Equal(t, context.Canceled, ctx.Err())
				assert.Equal(t, context.Canceled, context.Cause(ctx))
				<-ctx.Done()
				return 0, ctx.Err()
			})
			synctest.Wait()
			b := goDo(second, &g, "k", mustNotRun(t))
			time.Sleep(time.Second)
			cancelFirst(errors.New("the first caller's cause"))
			require.Equal(t, context.Canceled, (<-a).err)
			time.Sleep(2 * time.Second)
			cancelSecond()
			require.Equal(t, context.Canceled, (<-b).err)
			time.Sleep(2 * time.Second)
			requireEmpty(t, &g)
		}
	})
}

// Concurrent calls of end return the same ending.
func TestContextOfFnAskedAtOnce(t *testing.T) {
	for range 20_000 {
		f := &flight[int]{first: context.Background(), canEnd: true}
		var ready atomic.Int32
		var ends [2]*ending
		var wg sync.WaitGroup
		for i := range ends {
			wg.Go(func() {
				for ready.Add(1); ready.Load() < int32(len(ends)); {
					runtime.Gosched()
				}
				ends[i] = f.end()
			})
		}
		wg.Wait()
		require.Same(t, ends[0], ends[1])
	}
}
