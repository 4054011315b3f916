package locker_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestKeepAlive(t *testing.T) {
	bubble(t, "five ttl, about three extensions in each", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Second, locker.WithKeepAlive())
		lost := lease.Lost()
		for range 50 {
			time.Sleep(100 * time.Millisecond)
			require.True(t, l.isHeld("k", lease.Token()))
		}
		_, n, _ := l.counts()
		assert.GreaterOrEqual(t, n, 15)
		assert.LessOrEqual(t, n, 17)
		require.NoError(t, lease.Unlock(t.Context()))
		assert.False(t, isClosed(lost))
		_, n, _ = l.counts()
		time.Sleep(time.Minute)
		_, later, _ := l.counts()
		assert.Equal(t, n, later, "it extends after Unlock")
	})
	bubble(t, "does not end with the context that acquired", func(t *testing.T) {
		l := &fake{}
		ctx, cancel := context.WithCancel(t.Context())
		lease, err := locker.Lock(ctx, l, "k", time.Second, locker.WithKeepAlive())
		require.NoError(t, err)
		cancel()
		time.Sleep(10 * time.Second)
		assert.True(t, l.isHeld("k", lease.Token()))
		require.NoError(t, lease.Unlock(ctx))
	})
	bubble(t, "failures are not loss until the deadline", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Second, locker.WithKeepAlive())
		lost := lease.Lost()
		l.extendBy(func(context.Context, string, time.Duration) (bool, error) { return false, errBackend })
		time.Sleep(900 * time.Millisecond)
		assert.False(t, isClosed(lost))
		l.extendBy(nil)
		time.Sleep(5 * time.Second)
		assert.False(t, isClosed(lost))
		require.NoError(t, lease.Unlock(t.Context()))
	})
	bubble(t, "one hung attempt does not use up the time", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Second, locker.WithKeepAlive())
		attempts := 0
		l.extendBy(func(ctx context.Context, token string, ttl time.Duration) (bool, error) {
			if attempts++; attempts == 1 {
				return blackhole(ctx, token, ttl)
			}
			return l.doExtend(ctx, "k", token, ttl)
		})
		time.Sleep(5 * time.Second)
		assert.False(t, isClosed(lease.Lost()))
		require.NoError(t, lease.Unlock(t.Context()))
	})
	bubble(t, "a blackhole is loss at the deadline", func(t *testing.T) {
		l := &fake{onExtend: blackhole}
		start := time.Now()
		lease := tryLock(t, l, time.Second, locker.WithKeepAlive())
		<-lease.Lost()
		assert.Equal(t, time.Second, time.Since(start))
		assert.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld)
	})
	bubble(t, "a steal is loss at the next extension", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, 3*time.Second, locker.WithKeepAlive())
		l.steal("k", time.Minute)
		start := time.Now()
		<-lease.Lost()
		assert.LessOrEqual(t, time.Since(start), time.Second)
		_, n, _ := l.counts()
		time.Sleep(time.Minute)
		_, later, _ := l.counts()
		assert.Equal(t, n, later, "it extends a lost lease")
	})
	bubble(t, "nothing extends after Unlock returned, even on a backend that is slow to mind its context", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, 3*time.Second, locker.WithKeepAlive())
		var extending atomic.Bool
		l.extendBy(func(ctx context.Context, _ string, _ time.Duration) (bool, error) {
			extending.Store(true)
			time.Sleep(400 * time.Millisecond)
			extending.Store(false)
			return false, ctx.Err()
		})
		l.onRelease = func(ctx context.Context, token string) (bool, error) {
			assert.False(t, extending.Load(), "released while an extension is under way")
			return l.doRelease(ctx, "k", token)
		}
		time.Sleep(time.Second)
		require.True(t, extending.Load(), "this test tests nothing")
		require.NoError(t, lease.Unlock(t.Context()))
		assert.False(t, extending.Load())
	})
	bubble(t, "MaxHold", func(t *testing.T) {
		l := &fake{}
		start := time.Now()
		lease := tryLock(t, l, time.Second, locker.WithKeepAlive(), locker.WithMaxHold(10*time.Second))
		<-lease.Lost()
		assert.Greater(t, time.Since(start), 10*time.Second)
		assert.LessOrEqual(t, time.Since(start), 11*time.Second)
		assert.True(t, l.isFree("k"))
	})
	bubble(t, "follows the user's ttl, longer and shorter", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Hour, locker.WithKeepAlive())
		require.NoError(t, lease.Extend(t.Context(), time.Second))
		time.Sleep(time.Minute)
		assert.False(t, isClosed(lease.Lost()), "it slept for a third of an hour")
		require.NoError(t, lease.Extend(t.Context(), time.Hour))
		time.Sleep(time.Minute)
		assert.Greater(t, time.Until(lease.Deadline()), 30*time.Minute, "it shortened the lease")
		require.NoError(t, lease.Unlock(t.Context()))
	})
	bubble(t, "a failed Extend of the user's that may have shortened the lock is made good in time", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Hour, locker.WithKeepAlive())
		lost := lease.Lost()
		l.extendBy(func(context.Context, string, time.Duration) (bool, error) { return false, errBackend })
		require.ErrorIs(t, lease.Extend(t.Context(), time.Second), errBackend)
		l.extendBy(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.False(t, isClosed(lost), "it slept for a third of an hour")
		assert.LessOrEqual(t, time.Until(lease.Deadline()), time.Second, "the shorter one may arrive yet")
		require.NoError(t, lease.Unlock(t.Context()))
	})
	bubble(t, "failed Extends, one after the other, do not put it off", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Second, locker.WithKeepAlive())
		lost := lease.Lost()
		l.extendBy(func(ctx context.Context, token string, ttl time.Duration) (bool, error) {
			if ttl == time.Minute {
				return false, errBackend
			}
			return l.doExtend(ctx, "k", token, ttl)
		})
		for range 500 {
			require.ErrorIs(t, lease.Extend(t.Context(), time.Minute), errBackend)
			time.Sleep(10 * time.Millisecond)
			require.Greater(t, time.Until(lease.Deadline()), time.Second/2)
		}
		assert.False(t, isClosed(lost))
		require.NoError(t, lease.Unlock(t.Context()))
	})
	for name, fail := range map[string]func(context.Context, string, time.Duration) (bool, error){
		"fails": func(context.Context, string, time.Duration) (bool, error) {
			time.Sleep(time.Millisecond)
			return false, errBackend
		},
		"hangs": blackhole,
	} {
		// It goes by the time that is left when it has its turn, and when it is over.
		bubble(t, "one attempt "+name+" after the user has shortened the lease before its turn", func(t *testing.T) {
			l := &fake{}
			lease := tryLock(t, l, time.Hour, locker.WithKeepAlive())
			time.Sleep(17 * time.Minute) // the first extension comes within the five that follow
			n := 0
			l.extendBy(func(ctx context.Context, token string, ttl time.Duration) (bool, error) {
				switch n++; n {
				case 1:
					time.Sleep(5 * time.Minute)
				case 3:
					return fail(ctx, token, ttl)
				}
				return l.doExtend(ctx, "k", token, ttl)
			})
			var users sync.WaitGroup
			for _, ttl := range []time.Duration{time.Hour, 3 * time.Second} {
				users.Go(func() { assert.NoError(t, lease.Extend(t.Context(), ttl)) })
				synctest.Wait() // each in turn, and then the keep-alive
			}
			users.Wait()
			time.Sleep(time.Minute)
			assert.False(t, isClosed(lease.Lost()))
			require.NoError(t, lease.Unlock(t.Context()))
			assert.Greater(t, n, 20)
		})
	}
	bubble(t, "Unlock during an extension neither waits for it nor is undone by it", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, 3*time.Second, locker.WithKeepAlive())
		l.extendBy(blackhole)
		time.Sleep(time.Second) // it has begun
		start := time.Now()
		require.NoError(t, lease.Unlock(t.Context()))
		assert.Zero(t, time.Since(start))
		time.Sleep(time.Minute)
		assert.True(t, l.isFree("k"))
		_, n, _ := l.counts()
		assert.Equal(t, 1, n)
	})
}
