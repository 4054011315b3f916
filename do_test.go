package locker_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTryDo(t *testing.T) {
	bubble(t, "runs, keeps alive and unlocks", func(t *testing.T) {
		l := &fake{}
		ran, err := locker.TryDo(t.Context(), l, "k", time.Second, func(ctx context.Context) error {
			time.Sleep(5 * time.Second)
			assert.False(t, l.isFree("k"))
			return ctx.Err()
		})
		assert.NoError(t, err)
		assert.True(t, ran)
		assert.True(t, l.isFree("k"))
	})
	bubble(t, "held by another", func(t *testing.T) {
		l := memory.New()
		held := tryLock(t, l, time.Minute)
		start := time.Now()
		ran, err := locker.TryDo(t.Context(), l, "k", time.Second, unreachable(t))
		assert.NoError(t, err)
		assert.False(t, ran)
		assert.Zero(t, time.Since(start))
		assert.NoError(t, held.Unlock(t.Context()))
	})
	bubble(t, "backend error", func(t *testing.T) {
		l := &fake{onAcquire: func(context.Context, string, time.Duration) (bool, error) { return false, errBackend }}
		ran, err := locker.TryDo(t.Context(), l, "k", time.Second, unreachable(t), locker.WithRetry())
		assert.EqualError(t, err, `locker: try do "k": backend down`)
		assert.ErrorIs(t, err, errBackend)
		assert.False(t, ran)
	})
	bubble(t, "fn's error and the loss of the lock", func(t *testing.T) {
		l := &fake{}
		mine := errors.New("mine")
		ran, err := locker.TryDo(t.Context(), l, "k", time.Second, func(ctx context.Context) error {
			l.steal("k", time.Minute)
			<-ctx.Done()
			assert.Equal(t, locker.ErrNotHeld, context.Cause(ctx))
			return mine
		})
		assert.True(t, ran)
		assert.ErrorIs(t, err, mine)
		assert.ErrorIs(t, err, locker.ErrNotHeld)
	})
	bubble(t, "goexit", func(t *testing.T) {
		l := &fake{}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = locker.TryDo(context.Background(), l, "k", time.Second, func(context.Context) error {
				runtime.Goexit()
				return nil
			})
		}()
		<-done
		assert.True(t, l.isFree("k"))
	})
	t.Run("nil function", func(t *testing.T) {
		ran, err := locker.TryDo(t.Context(), &fake{}, "k", time.Second, nil)
		assert.EqualError(t, err, `locker: try do "k": nil function`)
		assert.False(t, ran)
	})
}

// A function that detaches its lease leaves the lock behind.
func TestDoDetached(t *testing.T) {
	detach := func(err error) func(context.Context) error {
		return func(ctx context.Context) error {
			locker.FromContext(ctx).Detach()
			locker.FromContext(ctx).Detach()
			return err
		}
	}
	bubble(t, "the lock stays", func(t *testing.T) {
		l, mine := &fake{}, errors.New("mine")
		assert.NoError(t, locker.Do(t.Context(), l, "a", time.Minute, detach(nil)))
		assert.Equal(t, mine, locker.Do(t.Context(), l, "b", time.Minute, detach(mine)))
		ran, err := locker.TryDo(t.Context(), l, "c", time.Minute, detach(nil), locker.WithMinHold(time.Hour))
		assert.True(t, ran)
		assert.NoError(t, err)
		for _, key := range []string{"a", "b", "c"} {
			assert.False(t, l.isFree(key))
		}
		time.Sleep(time.Minute)
		for _, key := range []string{"a", "b", "c"} {
			assert.True(t, l.isFree(key))
		}
	})
	bubble(t, "one of several", func(t *testing.T) {
		l := &fake{}
		assert.NoError(t, locker.DoAll(t.Context(), l, []string{"a", "b"}, time.Minute, detach(nil)))
		assert.False(t, l.isFree("a"))
		assert.True(t, l.isFree("b"))
	})
	bubble(t, "while Do unlocks another", func(t *testing.T) {
		l := &fake{}
		l.onRelease = func(ctx context.Context, token string) (bool, error) {
			time.Sleep(time.Second)
			return l.doRelease(ctx, "b", token)
		}
		assert.NoError(t, locker.DoAll(t.Context(), l, []string{"a", "b"}, time.Minute, func(ctx context.Context) error {
			time.AfterFunc(time.Second/2, locker.FromContext(ctx).Detach)
			return nil
		}))
		assert.False(t, l.isFree("a"))
		assert.True(t, l.isFree("b"))
	})
	bubble(t, "lost before", func(t *testing.T) {
		l := &fake{}
		err := locker.Do(t.Context(), l, "k", time.Second, func(ctx context.Context) error {
			l.steal("k", time.Minute)
			<-ctx.Done()
			locker.FromContext(ctx).Detach()
			return nil
		})
		assert.ErrorIs(t, err, locker.ErrNotHeld)
	})
}

func TestResumeDo(t *testing.T) {
	nop := func(context.Context) error { return nil }
	bubble(t, "takes over, keeps alive and unlocks", func(t *testing.T) {
		l := &fake{}
		left := tryLock(t, l, time.Second)
		left.Detach()
		err := locker.ResumeDo(t.Context(), l, "k", left.Token(), time.Second, func(ctx context.Context) error {
			assert.Equal(t, left.Token(), locker.FromContext(ctx).Token())
			time.Sleep(time.Minute)
			assert.False(t, l.isFree("k"))
			return ctx.Err()
		})
		assert.NoError(t, err)
		assert.True(t, l.isFree("k"))
	})
	bubble(t, "not held", func(t *testing.T) {
		err := locker.ResumeDo(t.Context(), &fake{}, "k", "t", time.Second, unreachable(t))
		assert.EqualError(t, err, `locker: resume and do "k": the lock is not held`)
		assert.ErrorIs(t, err, locker.ErrNotHeld)
	})
	bubble(t, "fn's error and the loss", func(t *testing.T) {
		l, mine := &fake{}, errors.New("mine")
		left := tryLock(t, l, time.Second)
		left.Detach()
		err := locker.ResumeDo(t.Context(), l, "k", left.Token(), time.Second, func(ctx context.Context) error {
			l.steal("k", time.Minute)
			<-ctx.Done()
			return mine
		})
		assert.ErrorIs(t, err, mine)
		assert.ErrorIs(t, err, locker.ErrNotHeld)
	})
	t.Run("bad input", func(t *testing.T) {
		ctx, l := t.Context(), memory.New()
		assert.EqualError(t, locker.ResumeDo(ctx, l, "k", "t", time.Second, nil),
			`locker: resume and do "k": nil function`)
		assert.ErrorIs(t, locker.ResumeDo(ctx, l, "k", "", time.Second, nop), locker.ErrInvalidToken)
		assert.ErrorIs(t, locker.ResumeDo(ctx, l, "", "t", time.Second, nop), locker.ErrInvalidKey)
		assert.ErrorContains(t, locker.ResumeDo(ctx, nil, "k", "t", time.Second, nop), "nil Locker")
	})
}

// unreachable is a function that must not be called.
func unreachable(t *testing.T) func(context.Context) error {
	return func(context.Context) error {
		t.Error("fn ran")
		return nil
	}
}

func TestFromContext(t *testing.T) {
	l := memory.New()
	ctx := t.Context()
	assert.Nil(t, locker.FromContext(ctx))
	inner := func(want string) func(context.Context) error {
		return func(ctx context.Context) error {
			lease := locker.FromContext(context.WithValue(ctx, t, "derived"))
			require.NotNil(t, lease)
			assert.Equal(t, want, lease.Key())
			n, err := lease.Fence(ctx)
			assert.NotZero(t, n)
			return err
		}
	}
	assert.NoError(t, locker.Do(ctx, l, "a", time.Minute, inner("a")))
	assert.NoError(t, locker.DoAll(ctx, l, []string{"c", "b"}, time.Minute, inner("b")))
	_, err := locker.TryDo(ctx, l, "d", time.Minute, func(ctx context.Context) error {
		assert.NoError(t, locker.Do(ctx, l, "e", time.Minute, inner("e")))
		return inner("d")(ctx)
	})
	assert.NoError(t, err)

	none, cancel := locker.Leases(nil).Context(ctx)
	defer cancel()
	assert.Nil(t, locker.FromContext(none))
}

// A caller whose context carries a lease of a lock would wait for itself.
func TestDeadlock(t *testing.T) {
	nop := func(context.Context) error { return nil }
	// refused checks every entry point with ctx, which carries a lease of "k" on l.
	refused := func(t *testing.T, ctx context.Context, l locker.Locker) {
		t.Helper()
		ctx, cancel := context.WithTimeout(ctx, time.Hour)
		defer cancel()
		start := time.Now()
		_, err := locker.Lock(ctx, l, "k", time.Minute, locker.WithRetry())
		assert.EqualError(t, err, `locker: lock "k": the context already carries a lease of this lock`)
		assert.ErrorIs(t, err, locker.ErrDeadlock)
		assert.NotErrorIs(t, err, locker.ErrHeld, "as if another held it")
		assert.ErrorIs(t, locker.Do(ctx, l, "k", time.Minute, unreachable(t)), locker.ErrDeadlock)
		_, err = locker.TryDo(ctx, l, "k", time.Minute, unreachable(t))
		assert.ErrorIs(t, err, locker.ErrDeadlock)
		_, err = locker.LockAll(ctx, l, []string{"a", "k"}, time.Minute)
		assert.ErrorIs(t, err, locker.ErrDeadlock)
		err = locker.DoAll(ctx, l, []string{"k", "a"}, time.Minute, unreachable(t))
		assert.EqualError(t, err, `locker: do all "k": the context already carries a lease of this lock`)
		_, err = locker.TryLock(ctx, l, "k", time.Minute)
		assert.ErrorIs(t, err, locker.ErrHeld, "TryLock does not wait")
		assert.Zero(t, time.Since(start))
	}
	bubble(t, "every entry point", func(t *testing.T) {
		l := memory.New()
		lease := tryLock(t, l, time.Minute)
		ctx, cancel := lease.Context(t.Context())
		refused(t, ctx, l)
		cancel()
		assert.NoError(t, lease.Unlock(t.Context()))
	})
	bubble(t, "within another lock", func(t *testing.T) {
		l := memory.New()
		assert.NoError(t, locker.DoAll(t.Context(), l, []string{"j", "k"}, time.Minute, func(ctx context.Context) error {
			return locker.Do(ctx, l, "other", time.Minute, func(ctx context.Context) error {
				refused(t, ctx, l)
				return nil
			})
		}))
	})
	bubble(t, "another key, another Locker, the same token", func(t *testing.T) {
		l := memory.New()
		token := locker.WithToken("mine")
		assert.NoError(t, locker.Do(t.Context(), l, "k", time.Minute, func(ctx context.Context) error {
			assert.NoError(t, locker.Do(ctx, l, "K", time.Minute, nop))
			assert.NoError(t, locker.Do(ctx, memory.New(), "k", time.Minute, nop))
			_, err := locker.Lock(ctx, l, "k", time.Minute, token)
			return err
		}, token))
	})
	bubble(t, "a lease that has ended", func(t *testing.T) {
		l := memory.New()
		lease := tryLock(t, l, time.Minute)
		ctx, cancel := lease.Context(t.Context())
		defer cancel()
		assert.NoError(t, lease.Unlock(t.Context()))
		assert.NoError(t, locker.Do(ctx, l, "k", time.Minute, nop))
	})
	bubble(t, "a lock that another has taken over", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Second)
		ctx, cancel := lease.Context(t.Context())
		defer cancel()
		l.steal("k", time.Second)
		assert.ErrorIs(t, lease.Extend(t.Context(), time.Second), locker.ErrNotHeld)
		assert.ErrorIs(t, locker.Do(ctx, l, "k", time.Minute, nop), context.Canceled)
	})
	bubble(t, "Lockers that cannot be compared", func(t *testing.T) {
		l := uncomparable{plain{memory.New()}, nil}
		err := locker.Do(t.Context(), l, "k", time.Minute, func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_, err := locker.Lock(ctx, l, "k", time.Minute)
			return err
		})
		assert.ErrorIs(t, err, locker.ErrHeld)
	})
}

type uncomparable struct {
	plain
	_ []int
}

func TestLeaseContext(t *testing.T) {
	type key struct{}
	bubble(t, "cancelled by the loss", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Second)
		ctx, cancel := lease.Context(context.WithValue(t.Context(), key{}, "v"))
		defer cancel()
		assert.Equal(t, "v", ctx.Value(key{}))
		assert.Same(t, lease, locker.FromContext(ctx))
		derived, cancel2 := context.WithCancel(ctx)
		defer cancel2()
		start := time.Now()
		<-derived.Done()
		assert.Equal(t, time.Second, time.Since(start))
		assert.Equal(t, locker.ErrNotHeld, context.Cause(derived))
		assert.Equal(t, locker.ErrNotHeld, context.Cause(ctx))

		late, cancel3 := lease.Context(t.Context())
		defer cancel3()
		assert.Equal(t, locker.ErrNotHeld, context.Cause(late), "lost before")
		assert.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld)
	})
	bubble(t, "several, of which one ends earlier", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Minute)
		a, cancelA := lease.Context(t.Context())
		b, cancelB := lease.Context(t.Context())
		defer cancelB()
		cancelA()
		cancelA()
		assert.Equal(t, context.Canceled, context.Cause(a))
		l.steal("k", time.Minute)
		assert.NoError(t, b.Err())
		assert.ErrorIs(t, lease.Extend(t.Context(), time.Minute), locker.ErrNotHeld)
		assert.Equal(t, locker.ErrNotHeld, context.Cause(b))
	})
	bubble(t, "Unlock and Detach do not cancel it", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Second)
		ctx, cancel := lease.Context(t.Context())
		defer cancel()
		assert.NoError(t, lease.Unlock(t.Context()))
		lease = tryLock(t, l, time.Second)
		ctx2, cancel2 := lease.Context(t.Context())
		defer cancel2()
		lease.Detach()
		time.Sleep(time.Minute)
		assert.NoError(t, ctx.Err())
		assert.NoError(t, ctx2.Err())
	})
	bubble(t, "the caller's cancellation", func(t *testing.T) {
		lease := tryLock(t, &fake{}, time.Minute)
		parent, cancelParent := context.WithCancelCause(t.Context())
		ctx, cancel := lease.Context(parent)
		defer cancel()
		cancelParent(errBackend)
		assert.Equal(t, errBackend, context.Cause(ctx))
		assert.NoError(t, lease.Unlock(t.Context()))
	})
	t.Run("no lease", func(t *testing.T) {
		for _, lease := range []*locker.Lease{nil, {}} {
			ctx, cancel := lease.Context(t.Context())
			assert.Equal(t, locker.ErrNotHeld, context.Cause(ctx))
			cancel()
		}
	})
}

func TestErr(t *testing.T) {
	bubble(t, "held and unlocked", func(t *testing.T) {
		lease := tryLock(t, &fake{}, time.Second)
		assert.NoError(t, lease.Err())
		assert.NoError(t, lease.Unlock(t.Context()))
		time.Sleep(time.Minute)
		assert.NoError(t, lease.Err())
	})
	bubble(t, "the deadline passed", func(t *testing.T) {
		lease := tryLock(t, &fake{}, time.Second)
		time.Sleep(time.Second)
		const want = `locker: lease "k": the lock is not held: its deadline passed`
		assert.EqualError(t, lease.Err(), want)
		assert.ErrorIs(t, lease.Err(), locker.ErrNotHeld)
		assert.Error(t, lease.Unlock(t.Context()))
		assert.EqualError(t, lease.Err(), want, "after Unlock")
	})
	bubble(t, "refused", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Second, locker.WithKeepAlive())
		l.steal("k", time.Minute)
		<-lease.Lost()
		assert.EqualError(t, lease.Err(), `locker: lease "k": the lock is not held: the backend refused its token`)
		assert.ErrorIs(t, lease.Err(), locker.ErrNotHeld)
	})
	bubble(t, "the keep-alive failed", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Second, locker.WithKeepAlive())
		l.extendBy(func(context.Context, string, time.Duration) (bool, error) { return false, errBackend })
		<-lease.Lost()
		assert.EqualError(t, lease.Err(), `locker: lease "k": the lock is not held: its deadline passed, `+
			`and the last extension failed: backend down`)
		assert.ErrorIs(t, lease.Err(), errBackend)
		assert.ErrorIs(t, lease.Err(), locker.ErrNotHeld)
	})
	bubble(t, "a failure that comes after the loss is no reason", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Second)
		l.extendBy(func(context.Context, string, time.Duration) (bool, error) {
			time.Sleep(2 * time.Second)
			return false, errBackend
		})
		done := make(chan error, 1)
		go func() { done <- lease.Extend(t.Context(), time.Minute) }()
		<-lease.Lost()
		before := lease.Err().Error()
		assert.ErrorIs(t, <-done, errBackend)
		assert.EqualError(t, lease.Err(), before)
	})
	bubble(t, "an earlier failure is no reason", func(t *testing.T) {
		l := &fake{}
		lease := tryLock(t, l, time.Second)
		l.extendBy(func(context.Context, string, time.Duration) (bool, error) { return false, errBackend })
		assert.ErrorIs(t, lease.Extend(t.Context(), time.Second), errBackend)
		assert.NoError(t, lease.Err())
		l.extendBy(nil)
		assert.NoError(t, lease.Extend(t.Context(), time.Second))
		time.Sleep(time.Second)
		assert.NotErrorIs(t, lease.Err(), errBackend)
	})
	t.Run("no lease", func(t *testing.T) {
		assert.ErrorIs(t, (*locker.Lease)(nil).Err(), locker.ErrNotHeld)
		assert.ErrorIs(t, (&locker.Lease{}).Err(), locker.ErrNotHeld)
	})
}
