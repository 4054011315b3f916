package singleflight

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// evict takes away the lock of key, as a backend does that lost it.
func evict(t *testing.T, b *fakeBackend, key string) {
	t.Helper()
	info, err := b.locks.Inspect(t.Context(), key)
	require.NoError(t, err)
	released, err := b.locks.Release(t.Context(), key, info.Token)
	require.NoError(t, err)
	require.True(t, released)
}

// A load whose lock was evicted takes no callers once that is known: they may come after an Update elsewhere. Those
// that have joined before get its value.
func TestLostLockTakesNoCallers(t *testing.T) {
	contexts(t, func(t *testing.T, ctx context.Context) {
		b := newBackend()
		p, elsewhere := b.process(), b.process()
		var changed atomic.Bool
		source := func(context.Context, string) (string, error) {
			v := "old"
			if changed.Load() {
				v = "new"
			}
			time.Sleep(30 * time.Second)
			return v, nil
		}
		l := NewLoader(p.locker(), p.deleteCache(), source)
		updater := NewLoader(elsewhere.locker(), elsewhere.deleteCache(), elsewhere.slowly(0, "unused"))
		first, joined := goLoad(ctx, l, "k"), goLoad(ctx, l, "k")
		time.Sleep(time.Second)
		evict(t, b, "k")
		require.NoError(t, updater.Update(t.Context(), "k", func(context.Context) error { changed.Store(true); return nil }))
		time.Sleep(defaultOptions.lockTTL / 3)
		later := goLoad(ctx, l, "k")
		require.Equal(t, loaded{"old", nil, 30 * time.Second}, <-first)
		require.Equal(t, loaded{"old", nil, 30 * time.Second}, <-joined)
		require.Equal(t, loaded{"new", nil, 30 * time.Second}, <-later)
		synctest.Wait()
		v, _ := b.get("k")
		require.Equal(t, "new", v)
		require.Equal(t, 1, p.count("set"), "the old value was not stored")
		requireIdle(t, l, b, "k")
	})
}

// While a value that was loaded under a lost lock is being added, callers do not get it.
func TestLostLockIsNotServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		p.onAdd = func(context.Context) error { time.Sleep(time.Second); return nil }
		var calls atomic.Int32
		l := NewLoader(p.locker(), Cache[string](p.addCache()), func(context.Context, string) (string, error) {
			if calls.Add(1) > 1 {
				return "new", nil
			}
			time.Sleep(30 * time.Second)
			return "old", nil
		})
		first := goLoad(t.Context(), l, "k")
		time.Sleep(time.Second)
		evict(t, b, "k")
		require.Equal(t, "old", (<-first).v)
		assert.Equal(t, "new", (<-goLoad(t.Context(), l, "k")).v)
		time.Sleep(time.Minute)
		requireIdle(t, l, b, "k")
	})
}

// A load that all callers have left goes on when its lock is lost, and adds its value.
func TestLostLockGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend()
		p := b.process()
		l := NewLoader(p.locker(), Cache[string](p.addCache()), p.slowly(30*time.Second, "fresh"))
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		require.Equal(t, context.DeadlineExceeded, (<-goLoad(ctx, l, "k")).err)
		evict(t, b, "k")
		time.Sleep(time.Minute)
		v, _ := b.get("k")
		require.Equal(t, "fresh", v)
		requireIdle(t, l, b, "k")
	})
}
