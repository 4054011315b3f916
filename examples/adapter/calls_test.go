package locks

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// slow returns a call that takes d and ignores its context.
func slow(d time.Duration) func(context.Context) (bool, error) {
	return func(context.Context) (bool, error) {
		time.Sleep(d)
		return true, nil
	}
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// A caller leaves at its deadline, and the next call for the same token waits for the one left
// behind.
func TestLeaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c calls
		start := time.Now()
		for _, d := range []time.Duration{4 * time.Second, 3 * time.Second} {
			done, err := leaving(within(t, time.Second), &c, "t", time.Minute, slow(d))
			assert.False(t, done)
			assert.ErrorIs(t, err, context.DeadlineExceeded)
		}
		assert.Equal(t, 2*time.Second, time.Since(start), "the second one has waited, and was not made")
		done, err := leaving(within(t, time.Second), &c, "other", time.Minute, slow(0))
		require.NoError(t, err)
		assert.True(t, done)
		assert.Equal(t, 2*time.Second, time.Since(start), "another token does not wait")
		done, err = leaving(t.Context(), &c, "t", time.Minute, slow(0))
		require.NoError(t, err)
		assert.True(t, done)
		assert.Equal(t, 4*time.Second, time.Since(start))
		synctest.Wait()
		assert.Empty(t, c.left)
	})
}

func TestLeavingReturnsWhatTheCallReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c calls
		errCause := errors.New("cause")
		_, err := leaving(t.Context(), &c, "t", time.Minute, func(context.Context) (bool, error) { return true, errCause })
		assert.ErrorIs(t, err, errCause)

		ctx, cancel := context.WithCancel(t.Context())
		_, err = leaving(ctx, &c, "t", time.Minute, func(own context.Context) (bool, error) {
			cancel()
			return true, own.Err()
		})
		assert.ErrorIs(t, err, context.Canceled, "a late success is an error")

		_, err = leaving(ctx, &c, "t", time.Minute, func(context.Context) (bool, error) {
			t.Error("called")
			return true, nil
		})
		assert.ErrorIs(t, err, context.Canceled)

		_, err = leaving(t.Context(), &c, "t", time.Minute, func(own context.Context) (bool, error) {
			<-own.Done() // a client that honors contexts ends with its own
			return false, own.Err()
		})
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		synctest.Wait()
		assert.Empty(t, c.left)
	})
}
