package inflight_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker/internal/inflight"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// slow returns a client call that ignores contexts.
func slow(d time.Duration, v int, err error) func() (int, error) {
	return func() (int, error) {
		time.Sleep(d)
		return v, err
	}
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// noTimer is a context whose timer has not fired yet when its deadline passes.
type noTimer struct {
	context.Context
	deadline time.Time
}

func (n noTimer) Deadline() (time.Time, bool) { return n.deadline, true }

func TestDo(t *testing.T) {
	errClient := errors.New("client")
	const timeout = 3 * time.Second // the client's
	for _, c := range []struct {
		name    string
		bound   time.Duration // of the context; 0: none
		timeout time.Duration
		call    func() (int, error)
		want    int
		err     error
		took    time.Duration
	}{
		{"no deadline", 0, timeout, slow(time.Second, 7, nil), 7, nil, time.Second},
		{"far deadline", time.Minute, timeout, slow(time.Second, 7, nil), 7, nil, time.Second},
		{"near deadline, in time", 2 * time.Second, timeout, slow(time.Second, 7, nil), 7, nil, time.Second},
		{"near deadline, too late", time.Second, timeout, slow(2*time.Second, 7, nil), 0,
			context.DeadlineExceeded, time.Second},
		{"the client minds contexts", time.Second, 0, slow(2*time.Second, 7, nil), 0,
			context.DeadlineExceeded, 2 * time.Second},
		{"far deadline, success too late", 4 * time.Second, timeout, slow(5*time.Second, 7, nil), 0,
			context.DeadlineExceeded, 5 * time.Second},
		{"error", 2 * time.Second, timeout, slow(time.Second, 0, errClient), 0, errClient, time.Second},
		{"error inline", 0, timeout, slow(time.Second, 0, errClient), 0, errClient, time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				if c.bound > 0 {
					ctx = within(t, c.bound)
				}
				var calls inflight.Calls
				start := time.Now()
				v, err := inflight.Do(ctx, &calls, "t", c.timeout, c.call)
				assert.ErrorIs(t, err, c.err)
				assert.Equal(t, c.want, v)
				assert.Equal(t, c.took, time.Since(start))
				require.NoError(t, calls.Wait(t.Context(), "t"))
			})
		})
	}
	t.Run("the client is faster than the context's timer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			for _, timeout := range []time.Duration{0, timeout} {
				ctx := noTimer{t.Context(), time.Now().Add(time.Second)}
				_, err := inflight.Do(ctx, new(inflight.Calls), "t", timeout, slow(time.Second, 0, errClient))
				assert.ErrorIs(t, err, context.DeadlineExceeded)
				_, err = inflight.Do(ctx, new(inflight.Calls), "t", timeout, slow(time.Second, 7, nil))
				assert.NoError(t, err)
			}
		})
	})
	t.Run("the client has no timeout", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			start := time.Now()
			var calls inflight.Calls
			_, err := inflight.Do(ctx, &calls, "t", inflight.Never, slow(time.Hour, 7, nil))
			assert.ErrorIs(t, err, context.Canceled)
			assert.Equal(t, time.Second, time.Since(start))
			require.NoError(t, calls.Wait(t.Context(), "t"))
			assert.Equal(t, time.Hour, time.Since(start))
			v, err := inflight.Do(context.Background(), &calls, "t", inflight.Never, slow(time.Hour, 7, nil))
			require.NoError(t, err)
			assert.Equal(t, 7, v)
		})
	})
	t.Run("the client minds contexts, and the context's timer is late", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			cancelable, cancel := context.WithCancel(t.Context())
			ctx := noTimer{cancelable, time.Now().Add(-time.Second)}
			returned := false
			_, err := inflight.Do(ctx, new(inflight.Calls), "t", 0, func() (int, error) {
				cancel()
				time.Sleep(time.Second)
				returned = true
				return 7, nil
			})
			assert.ErrorIs(t, err, context.Canceled)
			assert.True(t, returned, "the call was left behind")
		})
	})
	t.Run("context done before", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := inflight.Do(ctx, new(inflight.Calls), "t", timeout, func() (int, error) {
			t.Error("called")
			return 0, nil
		})
		assert.ErrorIs(t, err, context.Canceled)
	})
}

func TestWait(t *testing.T) {
	const timeout = 3 * time.Second
	leave := func(t *testing.T, c *inflight.Calls, token string, d time.Duration) {
		_, err := inflight.Do(within(t, time.Millisecond), c, token, timeout, slow(d, 0, nil))
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	t.Run("for all that was left behind for the token", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var c inflight.Calls
			start := time.Now()
			leave(t, &c, "t", time.Second)
			leave(t, &c, "t", 2*time.Second)
			leave(t, &c, "other", time.Hour)
			require.NoError(t, c.Wait(t.Context(), "t"))
			assert.Equal(t, 2*time.Second+time.Millisecond, time.Since(start))
			assert.Equal(t, 1, inflight.Entries(&c), "only the other's is left")
			require.NoError(t, c.Wait(t.Context(), "other"))
			assert.Zero(t, inflight.Entries(&c))
		})
	})
	t.Run("as long as ctx", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var c inflight.Calls
			leave(t, &c, "t", time.Minute)
			start := time.Now()
			assert.ErrorIs(t, c.Wait(within(t, time.Second), "t"), context.DeadlineExceeded)
			assert.Equal(t, time.Second, time.Since(start))
			require.NoError(t, c.Wait(t.Context(), "t"))
		})
	})
	t.Run("a call that returned as ctx ended leaves no entry", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var c inflight.Calls
			for range 300 { // which of the two is seen first is a matter of luck
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				_, _ = inflight.Do(ctx, &c, "t", timeout, func() (int, error) {
					<-ctx.Done()
					return 0, nil
				})
				cancel()
				synctest.Wait()
				require.Zero(t, inflight.Entries(&c))
			}
		})
	})
	t.Run("a call that returned in time leaves no entry", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var c inflight.Calls
			_, err := inflight.Do(within(t, time.Second), &c, "t", timeout, slow(time.Millisecond, 0, nil))
			require.NoError(t, err)
			assert.Zero(t, inflight.Entries(&c))
			assert.NoError(t, c.Wait(t.Context(), "t"))
		})
	})
}

func TestGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c inflight.Calls
		start := time.Now()
		c.Go("t", func() { time.Sleep(time.Second) })
		require.NoError(t, c.Wait(t.Context(), "other"))
		assert.Zero(t, time.Since(start))
		require.NoError(t, c.Wait(t.Context(), "t"))
		assert.Equal(t, time.Second, time.Since(start))
		synctest.Wait()
		assert.Zero(t, inflight.Entries(&c))
	})
}
