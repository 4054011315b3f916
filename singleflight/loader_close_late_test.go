package singleflight

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/golockers/locker"
)

// A read of the cache that fails after Close has returned calls no source.
func TestCloseWhileReadingFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		p.onGet = func(context.Context, string) error { time.Sleep(time.Second); return errAnswered }
		l := NewLoader(p.locker(), p.cache(), p.slowly(0, "must not load"))
		c := goLoad(t.Context(), l, "k")
		synctest.Wait()
		took, err := closeWithin(t, l, time.Minute)
		require.NoError(t, err)
		require.Zero(t, took)
		require.ErrorIs(t, (<-c).err, locker.ErrClosed)
		require.Equal(t, []string{"get"}, p.all())
		requireIdle(t, l, b, "k")
	})
}

// Sources that are called because the cache cannot be read end with their last callers, as others do.
func TestCloseEndsLoadsWithoutCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		p.onGet = func(context.Context, string) error { return errAnswered }
		l := NewLoader(p.locker(), p.cache(), p.slowly(10*time.Second, "must not be stored"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		c := goLoad(ctx, l, "k")
		time.Sleep(2 * time.Second)
		require.Equal(t, context.DeadlineExceeded, (<-c).err)
		took, err := closeWithin(t, l, time.Minute)
		require.NoError(t, err)
		require.Zero(t, took)
		require.Equal(t, []string{"get", "source"}, p.all())
		requireIdle(t, l, b, "k")
	})
}
