package locker_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// failing is a Waiter whose backend can be down.
type failing struct {
	*memory.Locker
	isDown atomic.Bool
	waits  atomic.Int64
}

func (l *failing) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	l.waits.Add(1)
	if l.isDown.Load() {
		return time.Time{}, errBackend
	}
	return l.Locker.Wait(ctx, key, token, ttl)
}

// Callers who retry form one line, and its first tries for all: with 1,000 of them a backend that is
// down gets a handful of requests a second, and not one from each.
func TestOneRetriesForAll(t *testing.T) {
	const callers = 1000
	bubble(t, "polling", func(t *testing.T) {
		l := &fake{}
		tryLock(t, l, time.Hour, locker.WithToken("first"))
		var c crowd
		for range callers {
			c.join(t.Context(), l, time.Millisecond, locker.WithRetry())
		}
		l.acquireBy(func(context.Context, string, time.Duration) (bool, error) { return false, errBackend })
		before, _, _ := l.counts()
		time.Sleep(time.Second)
		after, _, _ := l.counts()
		assert.LessOrEqual(t, after-before, 8, "requests in the first second")
		time.Sleep(time.Minute)
		last, _, _ := l.counts()
		assert.LessOrEqual(t, last-after, 121, "requests in a minute")

		_, err := l.doRelease(t.Context(), "k", "first")
		require.NoError(t, err)
		l.acquireBy(nil)
		begun := time.Now()
		c.wg.Wait()
		assert.ElementsMatch(t, ascending(callers), c.served)
		assert.Less(t, time.Since(begun), 10*time.Second)
		assert.Zero(t, locker.Lines())
	})
	bubble(t, "in a queue", func(t *testing.T) {
		l := &failing{Locker: memory.New()}
		l.isDown.Store(true)
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		var c crowd
		for i := range callers {
			mine := t.Context()
			if i < 10 { // the first of the line among them
				mine = ctx
			}
			c.join(mine, l, time.Millisecond, locker.WithRetry())
		}
		time.Sleep(time.Second)
		assert.LessOrEqual(t, l.waits.Load(), int64(callers+8), "each has found out once that the backend is down")
		leave()
		synctest.Wait()
		for i, err := range c.errs[:10] {
			assert.ErrorIs(t, err, context.Canceled, i)
			assert.ErrorIs(t, err, errBackend, i)
		}
		before := l.waits.Load()
		lease, err := locker.TryLock(t.Context(), l.Locker, "k", time.Hour)
		require.NoError(t, err)
		l.isDown.Store(false)
		time.Sleep(2 * time.Second)
		assert.Equal(t, int64(callers-10), l.waits.Load()-before, "the backend works, so all are in the queue")
		require.NoError(t, lease.Unlock(t.Context()))
		c.wg.Wait()
		assert.Len(t, c.served, callers-10)
		assert.Zero(t, locker.Lines())
	})
	bubble(t, "the lock is free when the backend works again", func(t *testing.T) {
		l := &failing{Locker: memory.New()}
		l.isDown.Store(true)
		var c crowd
		for range callers {
			c.join(t.Context(), l, 0, locker.WithRetry())
		}
		l.isDown.Store(false)
		begun := time.Now()
		c.wg.Wait()
		assert.Len(t, c.served, callers)
		assert.Less(t, time.Since(begun), time.Second, "only the first of them waits before it tries")
		assert.Zero(t, locker.Lines())
	})
	bubble(t, "the backend fails again while they wait", func(t *testing.T) {
		l := &fake{}
		tryLock(t, l, time.Hour, locker.WithToken("first"))
		var isDown atomic.Bool
		l.acquireBy(func(ctx context.Context, token string, ttl time.Duration) (bool, error) {
			if isDown.Load() {
				return false, errBackend
			}
			return l.doAcquire(ctx, "k", token, ttl)
		})
		var c crowd
		for range callers {
			c.join(t.Context(), l, 0, locker.WithRetry())
		}
		before, _, _ := l.counts()
		for range 10 {
			isDown.Store(true)
			time.Sleep(time.Second)
			isDown.Store(false)
			time.Sleep(time.Second)
		}
		after, _, _ := l.counts()
		assert.Less(t, after-before, 20*60, "as many as one that polls makes")
		_, err := l.doRelease(t.Context(), "k", "first")
		require.NoError(t, err)
		c.wg.Wait()
		assert.Len(t, c.served, callers)
		assert.Zero(t, locker.Lines())
	})
}
