package locker_test

import (
	"context"
	"sync"
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

// deaf is a Waiter that does not say when a caller begins to wait, as one of another module may do.
type deaf struct {
	failing
	inQueue atomic.Int64
}

func (l *deaf) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	l.inQueue.Add(1)
	defer l.inQueue.Add(-1)
	return l.failing.Wait(mute{ctx}, key, token, ttl)
}

type mute struct{ context.Context }

func (mute) Value(any) any { return nil }

// What the try of one caller meets is not that of the others: they have their turns.
func TestRetriesGoOnWithoutOne(t *testing.T) {
	const callers = 100
	bubble(t, "its ttl is too short for the backend", func(t *testing.T) {
		l := &fake{}
		var isDown atomic.Bool
		isDown.Store(true)
		l.acquireBy(func(ctx context.Context, token string, ttl time.Duration) (bool, error) {
			if isDown.Load() {
				return false, errBackend
			}
			time.Sleep(20 * time.Millisecond)
			return l.doAcquire(ctx, "k", token, ttl)
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		var first sync.WaitGroup
		first.Go(func() {
			_, err := locker.Lock(ctx, l, "k", 10*time.Millisecond, locker.WithRetry())
			assert.ErrorIs(t, err, context.Canceled)
		})
		synctest.Wait()
		var c crowd
		for range callers {
			c.join(ctx, l, 0, locker.WithRetry())
		}
		time.Sleep(time.Second)
		isDown.Store(false)
		begun := time.Now()
		c.wg.Wait()
		assert.Less(t, time.Since(begun), 20*time.Second)
		assert.Len(t, c.served, callers)
		cancel()
		first.Wait()
		assert.Zero(t, locker.Lines())
	})
	bubble(t, "its request is lost", func(t *testing.T) {
		l := &failing{Locker: memory.New()}
		l.isDown.Store(true)
		var isLost atomic.Bool
		lost := &hanging{failing: l, hangs: func() bool { return !l.isDown.Load() && !isLost.Swap(true) }}
		ctx, cancel := context.WithCancel(t.Context())
		var c crowd
		for range callers {
			c.join(ctx, lost, 0, locker.WithRetry())
		}
		l.isDown.Store(false)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		assert.Len(t, c.served, callers-1)
		cancel()
		c.wg.Wait()
		assert.Zero(t, locker.Lines())
	})
	bubble(t, "it is in the queue of a Waiter that does not say so", func(t *testing.T) {
		l := &deaf{failing: failing{Locker: memory.New()}}
		lease, err := locker.TryLock(t.Context(), l.Locker, "k", time.Hour)
		require.NoError(t, err)
		l.isDown.Store(true)
		var c crowd
		for range callers {
			c.join(t.Context(), l, 0, locker.WithRetry())
		}
		l.isDown.Store(false)
		time.Sleep(10 * time.Second)
		assert.InDelta(t, 10, l.inQueue.Load(), 1, "one more each second, since the backend may hang")
		require.NoError(t, lease.Unlock(t.Context()))
		begun := time.Now()
		c.wg.Wait()
		assert.LessOrEqual(t, time.Since(begun), time.Second)
		assert.Len(t, c.served, callers)
		assert.Zero(t, locker.Lines())
	})
}

// hanging is a failing Waiter whose requests hang.
type hanging struct {
	*failing
	hangs func() bool
}

func (l *hanging) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	if l.hangs() {
		l.waits.Add(1)
		<-ctx.Done()
		return time.Time{}, ctx.Err()
	}
	return l.failing.Wait(ctx, key, token, ttl)
}

// A backend that hangs gets one more request a second, however many wait and even when contexts end.
func TestRetriesWhileTheBackendHangs(t *testing.T) {
	const callers = 1000
	for name, life := range map[string]func(i int) time.Duration{
		"for longer":             func(int) time.Duration { return time.Hour },
		"until contexts end":     func(i int) time.Duration { return 5*time.Second + time.Duration(i)*time.Millisecond },
		"until all contexts end": func(int) time.Duration { return 5 * time.Second },
	} {
		bubble(t, name, func(t *testing.T) {
			l := &failing{Locker: memory.New()}
			l.isDown.Store(true)
			hangs := &hanging{failing: l, hangs: func() bool { return !l.isDown.Load() }}
			ctx, leave := context.WithCancel(t.Context())
			var c crowd
			for i := range callers {
				mine, cancel := context.WithTimeout(ctx, life(i))
				defer cancel()
				c.join(mine, hangs, 0, locker.WithRetry())
			}
			time.Sleep(time.Second)
			l.isDown.Store(false)
			before := l.waits.Load()
			time.Sleep(20 * time.Second)
			assert.LessOrEqual(t, l.waits.Load()-before, int64(22))
			leave()
			c.wg.Wait()
			for _, err := range c.errs {
				require.ErrorIs(t, err, errBackend)
			}
			assert.Zero(t, locker.Lines())
		})
	}
}

// A caller that is alone backs off as well, even over a Locker that has no lines.
func TestOneThatRetriesAlone(t *testing.T) {
	for name, wrap := range map[string]func(l locker.Locker) locker.Locker{
		"in a line": func(l locker.Locker) locker.Locker { return l },
		"without a line": func(l locker.Locker) locker.Locker {
			return struct {
				locker.Locker
				_ func()
			}{Locker: l}
		},
	} {
		bubble(t, name, func(t *testing.T) {
			l := &fake{}
			l.acquireBy(func(context.Context, string, time.Duration) (bool, error) { return false, errBackend })
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := locker.Lock(ctx, wrap(l), "k", time.Minute, locker.WithRetry())
			assert.ErrorIs(t, err, errBackend)
			n, _, _ := l.counts()
			assert.Less(t, n, 130)
			assert.Greater(t, n, 60)
		})
	}
}
