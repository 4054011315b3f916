package singleflight

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// result is what one Do returned.
type result struct {
	v      int
	shared bool
	err    error
}

// goDo calls Do on a goroutine of its own.
func goDo(ctx context.Context, g *Group[int], key string, fn func(context.Context) (int, error)) <-chan result {
	c := make(chan result, 1)
	go func() {
		v, shared, err := g.Do(ctx, key, fn)
		c <- result{v, shared, err}
	}()
	return c
}

// mustNotRun is an fn for callers that join.
func mustNotRun(t *testing.T) func(context.Context) (int, error) {
	return func(context.Context) (int, error) {
		t.Error("a second fn was called")
		return 0, nil
	}
}

// requireEmpty fails unless g has no entries.
func requireEmpty(t *testing.T, g *Group[int]) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	require.Empty(t, g.keys.m)
}

// contexts are the two kinds of context for a first caller: fn runs on its goroutine, or on one of its own.
func contexts(t *testing.T, test func(t *testing.T, ctx context.Context)) {
	t.Run("cannot end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(t, context.Background()) })
	})
	t.Run("can end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			test(t, ctx)
		})
	})
}

func TestOneFlight(t *testing.T) {
	contexts(t, func(t *testing.T, ctx context.Context) {
		var g Group[int]
		var calls atomic.Int32
		fn := func(context.Context) (int, error) {
			calls.Add(1)
			time.Sleep(time.Second)
			return 42, nil
		}
		var cs []<-chan result
		for range 100 {
			cs = append(cs, goDo(ctx, &g, "k", fn))
		}
		for _, c := range cs {
			require.Equal(t, result{42, true, nil}, <-c)
		}
		require.EqualValues(t, 1, calls.Load())
		requireEmpty(t, &g)

		v, shared, err := g.Do(ctx, "k", func(context.Context) (int, error) { return 43, nil })
		require.NoError(t, err)
		require.Equal(t, 43, v, "a later call has a flight of its own")
		require.False(t, shared)
	})
}

func TestKeysAreIndependent(t *testing.T) {
	contexts(t, func(t *testing.T, ctx context.Context) {
		var g Group[int]
		slow := goDo(ctx, &g, "slow", func(context.Context) (int, error) {
			time.Sleep(time.Second)
			return 1, nil
		})
		synctest.Wait()
		start := time.Now()
		v, shared, err := g.Do(ctx, "fast", func(context.Context) (int, error) { return 2, nil })
		require.Equal(t, result{2, false, nil}, result{v, shared, err})
		require.Zero(t, time.Since(start))
		require.Equal(t, result{1, false, nil}, <-slow)
	})
}

func TestErrorGoesToAllAsItIs(t *testing.T) {
	contexts(t, func(t *testing.T, ctx context.Context) {
		var g Group[int]
		cause := errors.New("cause")
		fn := func(context.Context) (int, error) {
			time.Sleep(time.Second)
			return 7, cause
		}
		a, b := goDo(ctx, &g, "k", fn), goDo(ctx, &g, "k", fn)
		require.Equal(t, result{7, true, cause}, <-a)
		require.Equal(t, result{7, true, cause}, <-b)
		v, _, err := g.Do(ctx, "k", func(context.Context) (int, error) { return 8, nil })
		require.NoError(t, err, "an error is not kept")
		require.Equal(t, 8, v)
	})
}

func TestDoneContextStartsNothing(t *testing.T) {
	var g Group[int]
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, shared, err := g.Do(ctx, "k", mustNotRun(t))
	require.Equal(t, context.Canceled, err)
	require.False(t, shared)
	requireEmpty(t, &g)
}

func TestFirstCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group[int]
		ctx, cancel := context.WithCancel(context.Background())
		first := goDo(ctx, &g, "k", func(ctx context.Context) (int, error) {
			time.Sleep(time.Second)
			return 42, ctx.Err()
		})
		synctest.Wait()
		var others []<-chan result
		for range 99 {
			others = append(others, goDo(t.Context(), &g, "k", mustNotRun(t)))
		}
		synctest.Wait()
		start := time.Now()
		cancel()
		require.Equal(t, result{0, false, context.Canceled}, <-first)
		require.Zero(t, time.Since(start), "it leaves promptly")
		late := goDo(t.Context(), &g, "k", mustNotRun(t)) // a flight with callers takes more
		for _, c := range append(others, late) {
			require.Equal(t, result{42, true, nil}, <-c)
		}
		requireEmpty(t, &g)
	})
}

func TestFollowerLeaves(t *testing.T) {
	contexts(t, func(t *testing.T, firstCtx context.Context) {
		var g Group[int]
		first := goDo(firstCtx, &g, "k", func(ctx context.Context) (int, error) {
			time.Sleep(time.Second)
			return 42, ctx.Err()
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, shared, err := g.Do(ctx, "k", mustNotRun(t))
		require.Equal(t, context.DeadlineExceeded, err)
		require.False(t, shared)
		require.Equal(t, 10*time.Millisecond, time.Since(start))
		require.Equal(t, result{42, false, nil}, <-first, "one alone is left to get the result")
	})
}

func TestAllLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group[int]
		var fnErr error
		ended := make(chan time.Time, 1)
		start := time.Now()
		var cs []<-chan result
		for i := range 100 {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i+1)*time.Millisecond)
			defer cancel()
			cs = append(cs, goDo(ctx, &g, "k", func(ctx context.Context) (int, error) {
				<-ctx.Done()
				fnErr = ctx.Err()
				ended <- time.Now()
				return 0, ctx.Err()
			}))
			synctest.Wait()
		}
		for _, c := range cs {
			require.Equal(t, result{0, false, context.DeadlineExceeded}, <-c)
		}
		require.Equal(t, 100*time.Millisecond, (<-ended).Sub(start), "fn's context ends with the last caller")
		require.Equal(t, context.Canceled, fnErr)
		synctest.Wait()
		requireEmpty(t, &g)
	})
}

func TestReadyResultWins(t *testing.T) {
	var g Group[int]
	for range 100 { // a select would choose at random
		ctx, cancel := context.WithCancel(context.Background())
		f := &flight[int]{group: &g, key: "k", first: ctx, callers: 2, done: make(chan struct{})}
		f.run(func(context.Context) (int, error) { cancel(); return 42, nil }, false)
		v, shared, err := f.wait(ctx, false)
		require.Equal(t, result{42, true, nil}, result{v, shared, err})
	}
}

func TestAbandonedTakesNoJoiners(t *testing.T) {
	for _, tc := range []struct {
		name           string
		unwind, begins time.Duration
	}{
		{"at once", 0, 0},
		{"in time", 300 * time.Millisecond, 300 * time.Millisecond},
		{"stuck", time.Hour, time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			contexts(t, func(t *testing.T, secondCtx context.Context) {
				var g Group[int]
				unwound := make(chan struct{})
				ctx, cancel := context.WithCancel(context.Background())
				first := goDo(ctx, &g, "k", func(ctx context.Context) (int, error) {
					defer close(unwound)
					<-ctx.Done()
					time.Sleep(tc.unwind)
					return 0, ctx.Err()
				})
				synctest.Wait()
				cancel()
				require.Equal(t, result{0, false, context.Canceled}, <-first)

				start := time.Now()
				var began time.Duration
				second := goDo(secondCtx, &g, "k", func(context.Context) (int, error) {
					began = time.Since(start)
					time.Sleep(time.Second)
					return 42, nil
				})
				synctest.Wait()
				third := goDo(t.Context(), &g, "k", mustNotRun(t)) // joins the second, which may not have begun
				require.Equal(t, result{42, true, nil}, <-second)
				require.Equal(t, result{42, true, nil}, <-third)
				require.Equal(t, tc.begins, began)

				<-unwound
				synctest.Wait()
				requireEmpty(t, &g)
			})
		})
	}
}

// A flight that is abandoned while it waits for an abandoned one never calls its fn, and the next one waits
// for the one that is still running.
func TestAbandonedBeforeItBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group[int]
		ctx, cancel := context.WithCancel(context.Background())
		first := goDo(ctx, &g, "k", func(context.Context) (int, error) {
			time.Sleep(700 * time.Millisecond)
			return 1, nil
		})
		synctest.Wait()
		cancel()
		require.Equal(t, context.Canceled, (<-first).err)
		start := time.Now()
		for i := range 60 {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
			defer cancel()
			_, _, err := g.Do(ctx, "k", mustNotRun(t))
			require.Equal(t, context.DeadlineExceeded, err)
			if i%2 == 0 { // otherwise the next one comes while this one is going
				synctest.Wait()
				require.Nil(t, g.keys.get("k").open, "it is gone, and the first is still there to be waited for")
				require.NotNil(t, g.keys.get("k").unwinding)
			}
		}
		v, _, err := g.Do(context.Background(), "k", func(context.Context) (int, error) { return 2, nil })
		require.NoError(t, err)
		require.Equal(t, 2, v)
		require.Equal(t, 700*time.Millisecond, time.Since(start))
		requireEmpty(t, &g)
	})
}

// A flight that began beside an abandoned one and is abandoned itself is the one to wait for.
func TestAbandonedOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group[int]
		do := func(timeout, unwind time.Duration) {
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			defer cancel()
			_, _, err := g.Do(ctx, "k", func(ctx context.Context) (int, error) {
				<-ctx.Done()
				time.Sleep(unwind)
				return 0, ctx.Err()
			})
			require.Equal(t, context.DeadlineExceeded, err)
		}
		do(100*time.Millisecond, time.Hour)
		do(unwindTime+100*time.Millisecond, 300*time.Millisecond)
		start := time.Now()
		v, _, err := g.Do(context.Background(), "k", func(context.Context) (int, error) { return 3, nil })
		require.NoError(t, err)
		require.Equal(t, 3, v)
		require.Equal(t, 300*time.Millisecond, time.Since(start))
		time.Sleep(2 * time.Hour)
		requireEmpty(t, &g)
	})
}

// An abandoned flight that returns late leaves its successor's entry alone.
func TestAbandonedReturnsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group[int]
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		_, _, err := g.Do(ctx, "k", func(context.Context) (int, error) {
			time.Sleep(5 * time.Second)
			return 1, nil
		})
		require.Equal(t, context.DeadlineExceeded, err)
		second := goDo(t.Context(), &g, "k", func(context.Context) (int, error) {
			time.Sleep(10 * time.Second)
			return 2, nil
		})
		time.Sleep(7 * time.Second) // the first has returned, the second runs
		v, shared, err := g.Do(t.Context(), "k", mustNotRun(t))
		require.Equal(t, result{2, true, nil}, result{v, shared, err})
		<-second
		requireEmpty(t, &g)
	})
}

// A caller whose context has not ended gets no context error.
func TestContextErrorsAreOnesOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group[int]
		var running, most atomic.Int32
		fn := func(ctx context.Context) (int, error) {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			select {
			case <-ctx.Done():
				return 0, ctx.Err()
			case <-time.After(time.Duration(rand.IntN(10)) * time.Millisecond):
				return 42, nil
			}
		}
		var wg sync.WaitGroup
		var left, served atomic.Int32
		for range 50 {
			wg.Go(func() {
				for range 100 {
					time.Sleep(time.Duration(rand.IntN(30)) * time.Millisecond)
					ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.IntN(10))*time.Millisecond)
					v, _, err := g.Do(ctx, "k", fn)
					if err != nil {
						left.Add(1)
						assert.Equal(t, ctx.Err(), err)
					} else {
						served.Add(1)
						assert.Equal(t, 42, v)
					}
					cancel()
				}
			})
		}
		wg.Wait()
		synctest.Wait()
		require.Positive(t, left.Load())
		require.Positive(t, served.Load())
		require.EqualValues(t, 1, most.Load(), "never two beside each other: each unwinds at once")
		requireEmpty(t, &g)
	})
}

// The entry is gone before the result is visible: no caller gets a value that was ready before its call.
func TestHotKey(t *testing.T) {
	contexts(t, func(t *testing.T, ctx context.Context) {
		var g Group[time.Time]
		fn := func(context.Context) (time.Time, error) {
			time.Sleep(2 * time.Millisecond)
			return time.Now(), nil
		}
		end := time.Now().Add(3 * time.Second)
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 10 * time.Microsecond)
				for called := time.Now(); called.Before(end); called = time.Now() {
					v, _, err := g.Do(ctx, "hot", fn)
					if err != nil || v.Before(called) {
						t.Errorf("a value %v older than the call, error %v", called.Sub(v), err)
						return
					}
				}
			})
		}
		wg.Wait()
		require.Empty(t, g.keys.m)
	})
}

func TestForget(t *testing.T) {
	contexts(t, func(t *testing.T, ctx context.Context) {
		var g Group[int]
		g.Forget("k") // nothing to forget
		fn := func(v int) func(context.Context) (int, error) {
			return func(context.Context) (int, error) {
				time.Sleep(time.Second)
				return v, nil
			}
		}
		first := goDo(ctx, &g, "k", fn(1))
		synctest.Wait()
		joined := goDo(ctx, &g, "k", mustNotRun(t))
		synctest.Wait()
		g.Forget("k")
		time.Sleep(500 * time.Millisecond)
		second := goDo(ctx, &g, "k", fn(2))
		require.Equal(t, result{1, true, nil}, <-first)
		require.Equal(t, result{1, true, nil}, <-joined)
		third := goDo(ctx, &g, "k", mustNotRun(t)) // the first took only its own entry away
		require.Equal(t, result{2, true, nil}, <-second)
		require.Equal(t, result{2, true, nil}, <-third)
		requireEmpty(t, &g)
	})
}

func TestForgetAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group[int]
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		_, _, err := g.Do(ctx, "k", func(context.Context) (int, error) { time.Sleep(time.Hour); return 0, nil })
		require.Equal(t, context.DeadlineExceeded, err)
		g.Forget("k")
		start := time.Now()
		v, _, err := g.Do(t.Context(), "k", func(context.Context) (int, error) { return 2, nil })
		require.NoError(t, err)
		require.Equal(t, 2, v)
		require.Zero(t, time.Since(start))
		time.Sleep(2 * time.Hour) // until the first has returned, which a bubble must see
		requireEmpty(t, &g)
	})
}

// Within fn, a call for the same key is an error; everything else is not.
func TestReentry(t *testing.T) {
	contexts(t, func(t *testing.T, ctx context.Context) {
		var g, other Group[int]
		one := func(context.Context) (int, error) { return 1, nil }
		var after context.Context
		v, _, err := g.Do(ctx, "a", func(ctx context.Context) (int, error) {
			_, shared, err := g.Do(ctx, "a", mustNotRun(t))
			assert.EqualError(t, err, `singleflight: the call for "a" calls itself`)
			assert.False(t, shared)

			derived, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			_, _, err = g.Do(derived, "a", mustNotRun(t))
			assert.ErrorAs(t, err, new(*reentryError))

			_, _, err = g.Do(derived, "b", func(ctx context.Context) (int, error) {
				return g.do(ctx, "c", func(ctx context.Context) (int, error) {
					return g.do(ctx, "a", mustNotRun(t))
				})
			})
			assert.ErrorAs(t, err, new(*reentryError), "through other keys")

			g.Forget("a")
			_, _, err = g.Do(ctx, "a", mustNotRun(t))
			assert.ErrorAs(t, err, new(*reentryError), "forgotten, but under way")

			_, err = g.do(ctx, "b", one)
			assert.NoError(t, err, "another key")
			_, err = other.do(ctx, "a", one)
			assert.NoError(t, err, "another Group")
			after = ctx
			return 42, nil
		})
		require.NoError(t, err)
		require.Equal(t, 42, v)
		_, err = g.do(after, "a", one)
		require.NoError(t, err, "fn has returned, so this is no re-entry")
		requireEmpty(t, &g)
	})
}

func (g *Group[V]) do(ctx context.Context, key string, fn func(context.Context) (V, error)) (V, error) {
	v, _, err := g.Do(ctx, key, fn)
	return v, err
}

func TestNothingIsLeft(t *testing.T) {
	const keys = 1_000_000
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	before := runtime.NumGoroutine()
	var g Group[int]
	var wg sync.WaitGroup
	for w := range 4 {
		ctx := ctx
		if w%2 == 0 {
			ctx = context.Background()
		}
		wg.Go(func() {
			for i := w; i < keys; i += 4 {
				if v, _, err := g.Do(ctx, strconv.Itoa(i), func(context.Context) (int, error) { return i, nil }); v != i || err != nil {
					t.Errorf("got %d, %v instead of %d", v, err, i)
				}
			}
		})
	}
	wg.Wait()
	requireEmpty(t, &g)
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+1 }, // Eventually's own
		30*time.Second, 10*time.Millisecond, "goroutines are left")
}

func TestAllocations(t *testing.T) {
	var g Group[int]
	fn := func(context.Context) (int, error) { return 42, nil }
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	assert.LessOrEqual(t, testing.AllocsPerRun(1000, func() { g.Do(context.Background(), "k", fn) }), 1.0)
	assert.LessOrEqual(t, testing.AllocsPerRun(1000, func() { g.Do(ctx, "k", fn) }), 3.0)
}
