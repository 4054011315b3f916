package memory

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func (u user) watch(ctx context.Context) <-chan struct{} {
	u.t.Helper()
	c, err := u.l.Watch(ctx, key)
	require.NoError(u.t, err)
	require.Equal(u.t, 1, cap(c))
	return c
}

// woken takes a wake-up and reports whether there was one.
func woken(c <-chan struct{}) bool {
	select {
	case _, open := <-c:
		return open
	default:
		return false
	}
}

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUser(t)
		require.True(t, u.acquire("a", time.Hour))
		first, second := u.watch(t.Context()), u.watch(t.Context())
		other, err := u.l.Watch(t.Context(), "other")
		require.NoError(t, err)

		require.False(t, u.acquire("b", time.Hour))
		require.True(t, u.extend("a", time.Hour))
		require.False(t, u.release("b"))
		assert.False(t, woken(first), "nothing was released")

		require.True(t, u.release("a"))
		require.True(t, u.acquire("b", time.Hour))
		require.True(t, u.release("b"))
		assert.Len(t, first, 1)
		assert.True(t, woken(first))
		assert.False(t, woken(first), "two wake-ups did not coalesce")
		assert.True(t, woken(second))
		assert.False(t, woken(other))

		require.True(t, u.acquire("a", time.Hour))
		w := u.wait(t.Context(), "b", time.Hour)
		require.True(t, u.release("a"))
		require.NoError(t, w.result().err)
		assert.True(t, woken(first), "a release that hands over is one as well")
		assert.True(t, woken(second))
		assert.False(t, woken(other))
	})
}

func TestWatchEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUser(t)
		ctxs := make([]context.Context, 4)
		cancels := make([]context.CancelFunc, len(ctxs))
		channels := make([]<-chan struct{}, len(ctxs))
		for i := range ctxs {
			ctxs[i], cancels[i] = context.WithCancel(t.Context())
			channels[i] = u.watch(ctxs[i])
		}
		require.Equal(t, census{entries: 1, watchers: 4}, count(t, u.l))

		gone := map[int]bool{}
		for _, leaver := range []int{1, 3, 0, 2} {
			cancels[leaver]()
			gone[leaver] = true
			synctest.Wait()
			left := len(ctxs) - len(gone)
			if left > 0 {
				require.Equal(t, census{entries: 1, watchers: left}, count(t, u.l))
			}
			require.True(t, u.acquire("a", time.Hour))
			require.True(t, u.release("a"))
			for i, c := range channels {
				require.Equal(t, !gone[i], woken(c), "watcher %d", i)
			}
		}
		require.Zero(t, count(t, u.l))
	})
}

func TestWatchOutlivesTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUser(t)
		c := u.watch(t.Context())
		require.True(t, u.acquire("a", time.Second))
		time.Sleep(time.Second)
		u.sweepAll()
		assert.True(t, woken(c), "an expiry that is noticed is signaled")
		u.sweepAll()
		assert.False(t, woken(c), "and once")
		assert.Equal(t, census{entries: 1, watchers: 1}, count(t, u.l))
		require.True(t, u.acquire("b", time.Second))
		require.True(t, u.release("b"))
		assert.True(t, woken(c))
	})
}

func TestWatchTakesNoGoroutine(t *testing.T) {
	l := New()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	before := runtime.NumGoroutine()
	const n = 1000
	for range n {
		_, err := l.Watch(ctx, key)
		require.NoError(t, err)
	}
	require.Less(t, runtime.NumGoroutine()-before, n/2)
}

// Subscribe, then try again: no release is missed.
func TestWatchMissesNoRelease(t *testing.T) {
	u := newUser(t)
	for range 2000 {
		require.True(t, u.acquire("a", time.Hour))
		released := make(chan struct{})
		go func() {
			u.l.Release(context.Background(), key, "a")
			close(released)
		}()
		ctx, cancel := context.WithCancel(t.Context())
		c := u.watch(ctx)
		if !u.acquire("b", time.Hour) {
			select {
			case <-c:
			case <-time.After(time.Minute):
				t.Fatal("not woken")
			}
			require.True(t, u.acquire("b", time.Hour), "woken before the lock was free")
		}
		cancel()
		<-released
		require.True(t, u.release("b"))
	}
}
