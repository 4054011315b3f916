package lockertest_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance"
	"github.com/golockers/locker/lockertest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var errDown = errors.New("backend down")

func TestConformance(t *testing.T) {
	t.Parallel()
	l := lockertest.New()
	conformance.Run(t, conformance.Config{New: func(testing.TB, string) locker.Locker { return l }})
}

// entryPoints are the ways to take a lock.
var entryPoints = map[string]func(ctx context.Context, l locker.Locker) error{
	"Lock": func(ctx context.Context, l locker.Locker) error {
		_, err := locker.Lock(ctx, l, "k", time.Minute)
		return err
	},
	"TryLock": func(ctx context.Context, l locker.Locker) error {
		_, err := locker.TryLock(ctx, l, "k", time.Minute)
		return err
	},
	"Do": func(ctx context.Context, l locker.Locker) error {
		return locker.Do(ctx, l, "k", time.Minute, nop)
	},
	"TryDo": func(ctx context.Context, l locker.Locker) error {
		_, err := locker.TryDo(ctx, l, "k", time.Minute, nop)
		return err
	},
	"LockAll": func(ctx context.Context, l locker.Locker) error {
		_, err := locker.LockAll(ctx, l, []string{"k"}, time.Minute)
		return err
	},
	"DoAll": func(ctx context.Context, l locker.Locker) error {
		return locker.DoAll(ctx, l, []string{"k"}, time.Minute, nop)
	},
}

func nop(context.Context) error { return nil }

func tryLock(t *testing.T, l locker.Locker, opts ...locker.Option) *locker.Lease {
	t.Helper()
	lease, err := locker.TryLock(t.Context(), l, "k", time.Minute, opts...)
	require.NoError(t, err)
	return lease
}

func TestFail(t *testing.T) {
	for name, lock := range entryPoints {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := lockertest.New()
				l.Fail(lockertest.Acquire, errDown)
				assert.ErrorIs(t, lock(t.Context(), l), errDown)
				l.Fail(lockertest.Acquire, nil)
				assert.NoError(t, lock(t.Context(), l))
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		l := lockertest.New()
		l.Fail(lockertest.Wait, errDown)
		assert.ErrorIs(t, entryPoints["Lock"](t.Context(), l), errDown)
		synctest.Wait() // until the cleanup has ended, since a later failure of Release is not for it
		lease := tryLock(t, l)

		l.Fail(lockertest.Extend, errDown)
		assert.ErrorIs(t, lease.Extend(t.Context(), time.Minute), errDown)
		l.Fail(lockertest.Fence, errDown)
		_, err := lease.Fence(t.Context())
		assert.ErrorIs(t, err, errDown)
		l.Fail(lockertest.Watch, errDown)
		_, err = l.Watch(t.Context(), "k")
		assert.ErrorIs(t, err, errDown)
		l.Fail(lockertest.Inspect, errDown)
		_, err = locker.Break(t.Context(), l, "k")
		assert.ErrorIs(t, err, errDown)
		l.Fail(lockertest.List, errDown)
		for _, err := range l.List(t.Context(), "") {
			assert.ErrorIs(t, err, errDown)
		}
		l.Fail(lockertest.Release, errDown)
		assert.ErrorIs(t, lease.Unlock(t.Context()), errDown)
		l.Fail(lockertest.Release, nil)
		assert.NoError(t, lease.Unlock(t.Context()))
	})
	assert.PanicsWithValue(t, "lockertest: no such operation: Op(99)", func() { lockertest.New().Fail(99, errDown) })
	assert.PanicsWithValue(t, "lockertest: no such operation: Op(0)", func() { lockertest.New().Hang(0) })
}

func TestHang(t *testing.T) {
	for name, lock := range entryPoints {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := lockertest.New()
				l.Hang(lockertest.Acquire)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				start := time.Now()
				err := lock(ctx, l)
				assert.ErrorIs(t, err, context.DeadlineExceeded)
				assert.NotErrorIs(t, err, locker.ErrHeld)
				assert.Equal(t, time.Minute, time.Since(start))
				l.Fail(lockertest.Acquire, nil)
				assert.NoError(t, lock(t.Context(), l))
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		l := lockertest.New()
		lease := tryLock(t, l, locker.WithKeepAlive())
		l.Hang(lockertest.Extend)
		start := time.Now()
		<-lease.Lost()
		assert.Equal(t, time.Minute, time.Since(start), "the keep-alive cannot help")
		assert.ErrorIs(t, lease.Err(), context.DeadlineExceeded)
		assert.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld, "and ends what still hangs")
	})
}

func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := lockertest.New()
		release := l.Hold("k")
		time.Sleep(1000 * time.Hour)
		_, err := locker.TryLock(t.Context(), l, "k", time.Minute)
		assert.ErrorIs(t, err, locker.ErrHeld)
		info, err := l.Inspect(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, "lockertest/1", info.Token)

		time.AfterFunc(time.Hour, release)
		start := time.Now()
		lease, err := locker.Lock(t.Context(), l, "k", time.Minute)
		require.NoError(t, err)
		assert.Equal(t, time.Hour, time.Since(start))
		release()
		assert.NoError(t, lease.Unlock(t.Context()), "release does nothing the second time")
	})
	t.Run("takes a held lock, and its queue stays", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := lockertest.New()
			lease := tryLock(t, l, locker.WithToken("mine"))
			var waited sync.WaitGroup
			waited.Go(func() { assert.NoError(t, entryPoints["Do"](context.Background(), l)) })
			synctest.Wait()

			first := l.Hold("k")
			_, err := lease.Fence(t.Context())
			assert.ErrorIs(t, err, locker.ErrNotHeld)
			ok, err := l.Acquire(t.Context(), "k", "mine", time.Minute)
			assert.NoError(t, err)
			assert.False(t, ok, "the token does not hold it")
			for info, err := range l.List(t.Context(), "") {
				require.NoError(t, err)
				assert.Equal(t, "lockertest/1", info.Token)
				assert.Equal(t, 1, info.Waiters)
			}
			second := l.Hold("k")
			first()
			time.Sleep(time.Hour)
			assert.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld)
			_, err = locker.TryLock(t.Context(), l, "k", time.Minute)
			assert.ErrorIs(t, err, locker.ErrHeld)
			second()
			waited.Wait()
			ok, err = l.Acquire(t.Context(), "k", "mine", time.Minute)
			assert.NoError(t, err)
			assert.True(t, ok)
			ok, err = l.Release(t.Context(), "k", "mine")
			assert.NoError(t, err)
			assert.True(t, ok)
		})
	})
	t.Run("broken", func(t *testing.T) {
		l := lockertest.New()
		lease := tryLock(t, l)
		l.Hold("k")
		l.Hold("k")
		info, err := locker.Break(t.Context(), l, "k")
		assert.NoError(t, err)
		assert.Equal(t, "lockertest/2", info.Token)
		assert.NoError(t, tryLock(t, l).Unlock(t.Context()))
		assert.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld)
	})
}

func TestLose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := lockertest.New()
		l.Lose("k")
		err := locker.Do(t.Context(), l, "k", time.Minute, func(ctx context.Context) error {
			start := time.Now()
			l.Lose("k")
			assert.NoError(t, entryPoints["TryDo"](ctx, lockertest.New()))
			<-ctx.Done()
			assert.LessOrEqual(t, time.Since(start), 20*time.Second, "the next keep-alive")
			assert.Equal(t, locker.ErrNotHeld, context.Cause(ctx))
			return nil
		})
		assert.ErrorIs(t, err, locker.ErrNotHeld)

		release := l.Hold("k")
		l.Lose("k")
		lease := tryLock(t, l)
		release()
		assert.NoError(t, lease.Unlock(t.Context()))
	})
	t.Run("passes to the next in the queue", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := lockertest.New()
			tryLock(t, l)
			go l.Lose("k")
			lease, err := locker.Lock(t.Context(), l, "k", time.Minute)
			require.NoError(t, err)
			l.Lose("k") // even before it has returned, had it been slower
			assert.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld)
		})
	})
}

func TestCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := lockertest.New()
		lease := tryLock(t, l, locker.WithToken("t"))
		_, err := locker.TryLock(t.Context(), l, "k", time.Second, locker.WithToken("u"))
		assert.ErrorIs(t, err, locker.ErrHeld)
		_, err = lease.Fence(t.Context())
		assert.NoError(t, err)
		l.Fail(lockertest.Extend, errDown)
		assert.Error(t, lease.Extend(t.Context(), time.Hour))
		ctx, cancel := context.WithCancel(t.Context())
		_, err = l.Watch(ctx, "k")
		assert.NoError(t, err)
		cancel()
		_, err = l.Inspect(t.Context(), "k")
		assert.NoError(t, err)
		for range l.List(t.Context(), "prefix") {
			t.Error("there is no such lock")
		}
		assert.NoError(t, lease.Unlock(t.Context()))
		l.Hold("k")
		go func() { _, _ = locker.Lock(t.Context(), l, "k", time.Minute, locker.WithToken("v")) }()
		synctest.Wait()
		assert.Equal(t, []lockertest.Call{
			{Op: lockertest.Acquire, Key: "k", Token: "t", TTL: time.Minute, OK: true},
			{Op: lockertest.Acquire, Key: "k", Token: "u", TTL: time.Second},
			{Op: lockertest.Fence, Key: "k", Token: "t", OK: true},
			{Op: lockertest.Extend, Key: "k", Token: "t", TTL: time.Hour, Err: errDown},
			{Op: lockertest.Watch, Key: "k", OK: true},
			{Op: lockertest.Inspect, Key: "k", OK: true},
			{Op: lockertest.List, Key: "prefix", OK: true},
			{Op: lockertest.Release, Key: "k", Token: "t", OK: true},
			{Op: lockertest.Wait, Key: "k", Token: "v", TTL: time.Minute}, // it has not returned
		}, l.Calls())
	})
	t.Run("with a context that has ended", func(t *testing.T) {
		l := lockertest.New()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := l.Acquire(ctx, "k", "t", time.Minute)
		assert.ErrorIs(t, err, context.Canceled)
		_, err = l.Wait(ctx, "k", "t", time.Minute)
		assert.ErrorIs(t, err, context.Canceled)
		_, err = l.Extend(ctx, "k", "t", time.Minute)
		assert.ErrorIs(t, err, context.Canceled)
		released, err := l.Release(t.Context(), "k", "t")
		assert.NoError(t, err)
		assert.False(t, released)
		assert.Equal(t, []lockertest.Call{
			{Op: lockertest.Acquire, Key: "k", Token: "t", TTL: time.Minute, Err: context.Canceled},
			{Op: lockertest.Wait, Key: "k", Token: "t", TTL: time.Minute, Err: context.Canceled},
			{Op: lockertest.Extend, Key: "k", Token: "t", TTL: time.Minute, Err: context.Canceled},
			{Op: lockertest.Release, Key: "k", Token: "t"},
		}, l.Calls())
	})
	t.Run("bounded", func(t *testing.T) {
		l := lockertest.New()
		for i := range 10_100 {
			_, err := l.Release(t.Context(), fmt.Sprint(i), "t")
			require.NoError(t, err)
		}
		calls := l.Calls()
		assert.Len(t, calls, 10_000)
		assert.Equal(t, "100", calls[0].Key)
		assert.Equal(t, "10099", calls[9999].Key)
	})
}

func TestOpString(t *testing.T) {
	assert.Equal(t, "Acquire", lockertest.Acquire.String())
	assert.Equal(t, "List", lockertest.List.String())
	assert.Equal(t, "Op(0)", lockertest.Op(0).String())
}
