package lockertest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/lockertest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A holder that is paused works on under a lock that another one has, and notices once it goes on. Its
// fencing number is the smaller one.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, l := t.Context(), lockertest.New()
		old, err := locker.Lock(ctx, l, "k", time.Second, locker.WithKeepAlive())
		require.NoError(t, err)
		before, err := old.Fence(ctx)
		require.NoError(t, err)

		resume := l.Pause("k")
		next, err := locker.TryLock(ctx, l, "k", time.Hour)
		require.NoError(t, err)
		after, err := next.Fence(ctx)
		require.NoError(t, err)
		assert.Greater(t, after, before)
		time.Sleep(time.Minute)
		assert.NoError(t, old.Err(), "it has noticed")
		assert.NoError(t, next.Err())

		resume()
		resume()
		time.Sleep(time.Second)
		assert.ErrorIs(t, old.Err(), locker.ErrNotHeld)
		assert.ErrorIs(t, old.Unlock(ctx), locker.ErrNotHeld)
		assert.NoError(t, next.Unlock(ctx))
	})
	t.Run("what it does not touch", func(t *testing.T) {
		ctx, l := t.Context(), lockertest.New()
		l.Pause("k")() // free
		other, err := locker.TryLock(ctx, l, "other", time.Hour)
		require.NoError(t, err)
		lease, err := locker.TryLock(ctx, l, "k", time.Hour)
		require.NoError(t, err)
		defer l.Pause("k")()
		assert.ErrorIs(t, lease.Unlock(ctx), locker.ErrNotHeld)
		assert.NoError(t, other.Extend(ctx, time.Hour))
		extended, err := l.Extend(ctx, "k", "stranger", time.Hour)
		assert.NoError(t, err)
		assert.False(t, extended)
	})
}
