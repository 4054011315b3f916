package locker_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestKeyed(t *testing.T) {
	bubble(t, "excludes others and is kept alive", func(t *testing.T) {
		ctx, l := t.Context(), memory.New()
		a, b := locker.NewKeyed(l, time.Second), locker.NewKeyed(l, time.Second)
		require.NoError(t, a.Lock(ctx, "k"))
		require.NoError(t, a.Lock(ctx, "other"))
		time.Sleep(time.Minute)
		for _, k := range []*locker.Keyed{a, b} {
			ok, err := k.TryLock(ctx, "k")
			assert.NoError(t, err)
			assert.False(t, ok)
		}
		assert.NoError(t, a.Unlock(ctx, "k"))
		ok, err := b.TryLock(ctx, "k")
		assert.NoError(t, err)
		assert.True(t, ok)
		assert.NoError(t, b.Unlock(ctx, "k"))
		assert.NoError(t, a.Unlock(ctx, "other"))
		assert.Zero(t, locker.KeysOf(a)+locker.KeysOf(b))
	})
	bubble(t, "passes options on", func(t *testing.T) {
		ctx, l := t.Context(), memory.New()
		k := locker.NewKeyed(l, time.Second, locker.WithToken("mine"))
		require.NoError(t, k.Lock(ctx, "a"))
		ok, err := k.TryLock(ctx, "b")
		require.NoError(t, err)
		require.True(t, ok)
		for _, key := range []string{"a", "b"} {
			info, err := l.Inspect(ctx, key)
			assert.NoError(t, err)
			assert.Equal(t, "mine", info.Token)
			assert.NoError(t, k.Unlock(ctx, key))
		}
	})
	bubble(t, "in order", func(t *testing.T) {
		ctx := t.Context()
		k := locker.NewKeyed(memory.New(), time.Second)
		require.NoError(t, k.Lock(ctx, "k"))
		order := make(chan int, 10)
		for i := range 10 {
			go func() {
				assert.NoError(t, k.Lock(ctx, "k"))
				order <- i
				assert.NoError(t, k.Unlock(ctx, "k"))
			}()
			synctest.Wait()
		}
		assert.NoError(t, k.Unlock(ctx, "k"))
		for i := range 10 {
			assert.Equal(t, i, <-order)
		}
		synctest.Wait()
		assert.Zero(t, locker.KeysOf(k))
	})
	bubble(t, "within Do", func(t *testing.T) {
		l := memory.New()
		k := locker.NewKeyed(locker.Observed(l, &journal{}), time.Second)
		assert.NoError(t, locker.Do(t.Context(), l, "k", time.Second, func(ctx context.Context) error {
			assert.ErrorIs(t, k.Lock(ctx, "k"), locker.ErrDeadlock)
			go func() {
				assert.NoError(t, k.Lock(t.Context(), "k"))
				assert.NoError(t, k.Unlock(t.Context(), "k"))
			}()
			synctest.Wait()
			ctx, cancel := context.WithTimeout(ctx, time.Hour)
			defer cancel()
			err := k.Lock(ctx, "k")
			assert.EqualError(t, err, `locker: lock "k": the context already carries a lease of this lock`)
			assert.ErrorIs(t, err, locker.ErrDeadlock)
			ok, err := k.TryLock(ctx, "k")
			assert.NoError(t, err)
			assert.False(t, ok)
			return nil
		}))
		synctest.Wait()
		assert.Zero(t, locker.KeysOf(k))
	})
	bubble(t, "context", func(t *testing.T) {
		k := locker.NewKeyed(memory.New(), time.Second)
		require.NoError(t, k.Lock(t.Context(), "k"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := k.Lock(ctx, "k")
		assert.EqualError(t, err, `locker: lock "k": context deadline exceeded: the lock is held by another token`)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.ErrorIs(t, err, locker.ErrHeld)
		assert.NoError(t, k.Unlock(t.Context(), "k"))
		assert.ErrorIs(t, k.Lock(ctx, "k"), context.DeadlineExceeded)
		assert.Zero(t, locker.KeysOf(k))
	})
}

// Unlock of a lock that was lost does not release that of the next caller, in this process or in
// another.
func TestKeyedLost(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		ctx, l := t.Context(), &fake{}
		k := locker.NewKeyed(l, time.Second)
		require.NoError(t, k.Lock(ctx, "k"))
		l.steal("k", time.Second)
		time.Sleep(2 * time.Second)
		require.True(t, l.isFree("k"))
		served := make(chan struct{})
		go func() {
			defer close(served)
			assert.NoError(t, k.Lock(ctx, "k"))
		}()
		synctest.Wait()
		assert.True(t, l.isFree("k"), "the next caller waits for the Unlock of the first")
		assert.ErrorIs(t, k.Unlock(ctx, "k"), locker.ErrNotHeld)
		<-served
		assert.False(t, l.isFree("k"))
		assert.NoError(t, k.Unlock(ctx, "k"))
		assert.Zero(t, locker.KeysOf(k))
	})
}

func TestKeyedErrors(t *testing.T) {
	ctx := t.Context()
	k := locker.NewKeyed(memory.New(), time.Second)
	assert.EqualError(t, k.Unlock(ctx, "k"), `locker: unlock "k": the lock is not held`)
	assert.ErrorIs(t, k.Unlock(ctx, "k"), locker.ErrNotHeld)
	assert.ErrorIs(t, k.Lock(ctx, ""), locker.ErrInvalidKey)
	assert.ErrorContains(t, locker.NewKeyed(nil, time.Second).Lock(ctx, "k"), "nil Locker")
	_, err := locker.NewKeyed(memory.New(), 0).TryLock(ctx, "k")
	assert.ErrorIs(t, err, locker.ErrInvalidTTL)

	// A backend error leaves the key to the next caller, and so does a panic.
	down := true
	l := &fake{onAcquire: func(context.Context, string, time.Duration) (bool, error) {
		if down {
			return false, errBackend
		}
		panic("Acquire")
	}}
	k = locker.NewKeyed(l, time.Second)
	for range 2 {
		assert.ErrorIs(t, k.Lock(ctx, "k"), errBackend)
		_, err := k.TryLock(ctx, "k")
		assert.ErrorIs(t, err, errBackend)
	}
	down = false
	assert.Panics(t, func() { _ = k.Lock(ctx, "k") })
	assert.Panics(t, func() { _, _ = k.TryLock(ctx, "k") })
	assert.Zero(t, locker.KeysOf(k))

	// An Unlock without an answer is an error, and the next caller has its turn.
	silent := &fake{}
	k = locker.NewKeyed(silent, time.Second)
	require.NoError(t, k.Lock(ctx, "k"))
	silent.onRelease = func(context.Context, string) (bool, error) { return false, errors.New("no answer") }
	assert.ErrorContains(t, k.Unlock(ctx, "k"), "no answer")
	assert.Zero(t, locker.KeysOf(k))
}

// Whatever becomes of the turn of one caller, the next one has its turn when that is over, and not
// before.
func TestKeyedTurns(t *testing.T) {
	for name, fail := range map[string]func() error{
		"an error": func() error { return errBackend },
		"a panic":  func() error { panic(errBackend) },
		"an exit":  func() error { runtime.Goexit(); return nil },
	} {
		bubble(t, name, func(t *testing.T) {
			ctx, l := t.Context(), &fake{}
			k := locker.NewKeyed(l, time.Minute)
			failing := func(context.Context, string) (bool, error) { time.Sleep(time.Second); return false, fail() }
			call := func(f func(context.Context, string) error) {
				go func() {
					defer func() { _ = recover() }()
					assert.Error(t, f(ctx, "k"))
				}()
				synctest.Wait()
			}
			next := func() {
				start := time.Now()
				require.NoError(t, k.Lock(ctx, "k"))
				assert.Equal(t, time.Second, time.Since(start))
			}
			l.onAcquire = func(ctx context.Context, token string, ttl time.Duration) (bool, error) {
				if n, _, _ := l.counts(); n > 1 {
					return l.doAcquire(ctx, "k", token, ttl)
				}
				return failing(ctx, token)
			}
			call(k.Lock)
			next()

			time.Sleep(10 * time.Second) // until the cleanup of the first Lock has ended
			synctest.Wait()

			// Only one Unlock counts. This one fails after it has freed the lock.
			_, _, before := l.counts()
			l.onRelease = func(ctx context.Context, token string) (bool, error) {
				_, _ = l.doRelease(ctx, "k", token)
				return failing(ctx, token)
			}
			call(k.Unlock)
			assert.ErrorIs(t, k.Unlock(ctx, "k"), locker.ErrNotHeld)
			next()
			_, _, after := l.counts()
			assert.Equal(t, 1, after-before)

			l.onRelease = nil
			assert.NoError(t, k.Unlock(ctx, "k"))
			synctest.Wait() // the Unlock that failed has given up its turn, but may not have ended
			assert.Zero(t, locker.KeysOf(k))
		})
	}
}
