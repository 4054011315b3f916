package undo_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker/internal/undo"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var errDown = errors.New("the backend is down")

// begin starts a work whose attempts are done or have no answer.
func begin(ctx context.Context, owner any, window time.Duration, attempt func(context.Context) bool) bool {
	return undo.Start(ctx, undo.Work{Owner: owner, Window: window, Attempt: func(ctx context.Context) (bool, error) {
		if attempt(ctx) {
			return true, nil
		}
		return false, errDown
	}})
}

// hang is an attempt on a backend that is down.
func hang(ctx context.Context) bool {
	<-ctx.Done()
	return false
}

// fill starts cleanups until one is refused, and returns how many there are.
func fill(t *testing.T, owner any) int {
	t.Helper()
	for n := 0; ; n++ {
		require.LessOrEqual(t, n, undo.MaxTotal, "without a bound")
		if !begin(t.Context(), owner, time.Minute, hang) {
			return n
		}
	}
}

func requireEmpty(t *testing.T) {
	t.Helper()
	total, owners := undo.Running()
	require.Zero(t, total)
	require.Zero(t, owners, "an owner is kept")
}

func TestUntilDone(t *testing.T) {
	type key struct{}
	synctest.Test(t, func(t *testing.T) {
		caller, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "v"))
		cancel()
		var at []time.Duration
		start := time.Now()
		require.True(t, begin(caller, "owner", time.Minute, func(ctx context.Context) bool {
			assert.NoError(t, ctx.Err())
			assert.Equal(t, "v", ctx.Value(key{}))
			at = append(at, time.Since(start))
			return len(at) == 4
		}))
		synctest.Wait()
		assert.Len(t, at, 1, "not at once")
		time.Sleep(time.Minute)
		synctest.Wait()
		const ms = time.Millisecond
		assert.Equal(t, []time.Duration{0, 5 * ms, 15 * ms, 35 * ms}, at)
		requireEmpty(t)
	})
}

func TestWindow(t *testing.T) {
	for window, want := range map[time.Duration]time.Duration{time.Second: time.Second, time.Hour: time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			var last time.Duration
			n := 0
			start := time.Now()
			require.True(t, begin(t.Context(), "owner", window, func(context.Context) bool {
				n++
				last = time.Since(start)
				return false
			}))
			time.Sleep(time.Hour)
			synctest.Wait()
			assert.Less(t, last, want)
			assert.Less(t, n, 70, "the delays do not grow")
			requireEmpty(t)
		})
	}
}

// A work whose backend answers ends when no late request can come any more, counted from the first
// answer, and one whose backend does not says so.
func TestUntilCertain(t *testing.T) {
	for _, c := range []struct {
		name         string
		down, window time.Duration
		from, to     time.Duration
		want         error
	}{
		{"answers", 0, time.Hour, undo.Late, undo.Late + time.Second, nil},
		{"answers later", 20 * time.Second, time.Hour, 20*time.Second + undo.Late, 22*time.Second + undo.Late, nil},
		{"answers until it is of no use", 0, time.Second, time.Second, time.Second, nil},
		{"answers too late to be certain", 58 * time.Second, time.Hour, undo.Longest, undo.Longest, nil},
		{"does not answer", time.Hour, 10 * time.Second, 10 * time.Second, 10 * time.Second, errDown},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var gaveUp error
				require.True(t, undo.Start(t.Context(), undo.Work{
					Owner:  "owner",
					Window: c.window,
					Attempt: func(context.Context) (bool, error) {
						if time.Since(began) < c.down {
							return false, errDown
						}
						return false, nil
					},
					GaveUp: func(err error) { gaveUp = err },
				}))
				require.NoError(t, undo.Wait(t.Context(), "owner"))
				assert.GreaterOrEqual(t, time.Since(began), c.from)
				assert.LessOrEqual(t, time.Since(began), c.to)
				assert.Equal(t, c.want, gaveUp)
				requireEmpty(t)
			})
		})
	}
}

func TestClosedClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, gaveUp := time.Now(), error(nil)
		require.True(t, undo.Start(t.Context(), undo.Work{
			Owner:   "owner",
			Window:  time.Hour,
			Attempt: func(context.Context) (bool, error) { return false, fmt.Errorf("wrapped: %w", undo.ErrClosed) },
			GaveUp:  func(err error) { gaveUp = err },
		}))
		require.NoError(t, undo.Wait(t.Context(), "owner"))
		assert.Zero(t, time.Since(began))
		assert.ErrorIs(t, gaveUp, undo.ErrClosed)
		requireEmpty(t)
	})
}

// The owners of 256 cleanups that hang do not take those of another.
func TestBoundIsPerOwner(t *testing.T) {
	type uncomparable struct{ _ func() }
	type other struct{ _ func() }
	for _, c := range []struct {
		name          string
		dead, healthy any
	}{
		{"pointers", new(int), new(int)},
		{"values", "dead", "healthy"},
		{"types that are no key of a map", uncomparable{}, other{}},
		{"such a type in an interface in a type that is", [1]any{uncomparable{}}, [1]any{"healthy"}},
		{"not a number", math.NaN(), "healthy"},
		{"nil", (*int)(nil), new(int)},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				assert.Equal(t, undo.MaxPerOwner, fill(t, c.dead))
				done := false
				assert.True(t, begin(t.Context(), c.healthy, time.Second, func(context.Context) bool {
					done = true
					return true
				}))
				synctest.Wait()
				assert.True(t, done)
				time.Sleep(time.Hour)
				requireEmpty(t)
			})
		})
	}
}

func TestTotalBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		for begin(t.Context(), new(int), time.Minute, hang) { // an owner for each
			n++
			require.LessOrEqual(t, n, undo.MaxTotal)
		}
		assert.Equal(t, undo.MaxTotal, n)
		time.Sleep(time.Hour)
		requireEmpty(t)
	})
}

// Wait waits for the cleanups of its owner alone, and no longer than its context allows.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		require.NoError(t, undo.Wait(t.Context(), "idle"))
		start := time.Now()
		for _, window := range []time.Duration{time.Second, 2 * time.Second} {
			require.True(t, begin(t.Context(), "owner", window, hang))
		}
		require.True(t, begin(t.Context(), "other", time.Hour, hang))
		require.NoError(t, undo.Wait(t.Context(), "idle"))
		require.Zero(t, time.Since(start))

		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		require.Equal(t, context.DeadlineExceeded, undo.Wait(ctx, "owner"))
		require.Equal(t, 1500*time.Millisecond, time.Since(start))
		waiters := make(chan error)
		for range 2 {
			go func() { waiters <- undo.Wait(t.Context(), "owner") }()
		}
		for range 2 {
			require.NoError(t, <-waiters)
		}
		require.Equal(t, 2*time.Second, time.Since(start))
		require.NoError(t, undo.Wait(t.Context(), "other"))
		require.Equal(t, undo.Longest, time.Since(start))
		requireEmpty(t)
	})
}

// Wait does not wait for cleanups that begin after it, however many there are.
func TestWaitIgnoresLaterCleanups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		go func() {
			for {
				assert.True(t, begin(t.Context(), "owner", time.Minute, hang))
				select {
				case <-time.After(time.Second):
				case <-stop:
					return
				}
			}
		}()
		time.Sleep(20500 * time.Millisecond)
		start := time.Now()
		require.NoError(t, undo.Wait(t.Context(), "owner"))
		require.Equal(t, undo.Longest-500*time.Millisecond, time.Since(start), "the one that began half a second ago")
		close(stop)
		time.Sleep(time.Hour)
		requireEmpty(t)
	})
}

// Each Wait ends with the last of its own cleanups, in whatever order they end.
func TestWaitsOfSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		waiters := make(chan time.Duration)
		for _, window := range []time.Duration{3 * time.Second, time.Second, 2 * time.Second} {
			require.True(t, begin(t.Context(), "owner", window, hang))
			time.Sleep(100 * time.Millisecond)
			go func() {
				assert.NoError(t, undo.Wait(t.Context(), "owner"))
				waiters <- time.Since(start)
			}()
		}
		for range 3 {
			require.Equal(t, 3*time.Second, <-waiters)
		}
		requireEmpty(t)

		require.True(t, begin(t.Context(), "owner", time.Second, hang))
		ended := make(chan time.Duration)
		began := time.Now()
		go func() {
			assert.NoError(t, undo.Wait(t.Context(), "owner"))
			ended <- time.Since(began)
		}()
		synctest.Wait()
		require.True(t, begin(t.Context(), "owner", 2*time.Second, hang))
		require.Equal(t, time.Second, <-ended)
		time.Sleep(time.Hour)
		requireEmpty(t)
	})
}

func TestGoexit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		require.True(t, begin(t.Context(), "owner", time.Minute, func(context.Context) bool {
			runtime.Goexit()
			return true
		}))
		synctest.Wait()
		requireEmpty(t)
	})
}
