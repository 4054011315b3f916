package locker_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An Unlock releases the lock however long it had to wait for an extension that could not be cut short.
func TestUnlockBehindExtension(t *testing.T) {
	for _, c := range []struct {
		name     string
		observer time.Duration // takes this long for an event
		backend  time.Duration // takes this long to extend
		took     time.Duration // by Unlock
	}{
		{"the client cannot be interrupted", 0, 6 * time.Second, 5 * time.Second},
		{"the Observer is slow", 6 * time.Second, 0, 0},
	} {
		bubble(t, c.name, func(t *testing.T) {
			f := &fake{}
			j := &journal{use: func(_ context.Context, e locker.Event) {
				if e.Kind == locker.Extended {
					time.Sleep(c.observer)
				}
			}}
			lease := tryLock(t, locker.Observed(f, j), time.Minute, locker.WithKeepAlive())
			began := make(chan struct{})
			f.extendBy(func(_ context.Context, token string, ttl time.Duration) (bool, error) {
				close(began)
				time.Sleep(c.backend)
				return f.doExtend(context.Background(), "k", token, ttl)
			})
			<-began
			synctest.Wait()
			start := time.Now()
			require.NoError(t, lease.Unlock(t.Context()))
			assert.Equal(t, c.took, time.Since(start))
			assert.True(t, f.isFree("k"))
			time.Sleep(10 * time.Second)
			assert.True(t, f.isFree("k"))
		})
	}
}

func TestMinHoldBehindExtend(t *testing.T) {
	for _, slow := range []time.Duration{500 * time.Millisecond, 4 * time.Second} {
		bubble(t, slow.String(), func(t *testing.T) {
			f := &fake{}
			lease := tryLock(t, f, 10*time.Second, locker.WithMinHold(time.Hour))
			start := time.Now()
			f.extendBy(func(ctx context.Context, token string, ttl time.Duration) (bool, error) {
				f.extendBy(nil)
				time.Sleep(slow)
				return f.doExtend(context.Background(), "k", token, ttl)
			})
			extended := make(chan error)
			go func() { extended <- lease.Extend(context.Background(), 10*time.Second) }()
			synctest.Wait()
			unlocked := make(chan error)
			go func() { unlocked <- lease.Unlock(context.Background()) }()
			assert.ErrorIs(t, <-extended, locker.ErrNotHeld)
			require.NoError(t, <-unlocked)
			assert.Equal(t, slow, time.Since(start))
			time.Sleep(time.Hour - slow - time.Nanosecond)
			assert.False(t, f.isFree("k"))
			time.Sleep(time.Nanosecond)
			assert.True(t, f.isFree("k"))
		})
	}
}

func TestUnlockAgain(t *testing.T) {
	bubble(t, "while the first is under way, which succeeds", func(t *testing.T) {
		f := &fake{}
		lease := tryLock(t, f, time.Minute)
		f.onRelease = func(ctx context.Context, token string) (bool, error) {
			time.Sleep(time.Second)
			return f.doRelease(ctx, "k", token)
		}
		go func() { assert.NoError(t, lease.Unlock(context.Background())) }()
		synctest.Wait()
		start := time.Now()
		assert.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld)
		assert.Equal(t, time.Second, time.Since(start))
		assert.True(t, f.isFree("k"))
	})
	bubble(t, "while the first is under way, which fails", func(t *testing.T) {
		f := &fake{}
		lease := tryLock(t, f, time.Minute)
		f.onRelease = func(ctx context.Context, token string) (bool, error) {
			if _, _, n := f.counts(); n > 1 {
				return f.doRelease(ctx, "k", token)
			}
			time.Sleep(time.Second)
			return false, errBackend
		}
		go func() { assert.ErrorIs(t, lease.Unlock(context.Background()), errBackend) }()
		synctest.Wait()
		assert.NoError(t, lease.Unlock(t.Context()))
		assert.True(t, f.isFree("k"))
	})
	bubble(t, "of a lost lease, which the backend has not answered", func(t *testing.T) {
		f := &fake{}
		lease := tryLock(t, f, time.Second)
		time.Sleep(time.Second)
		f.onRelease = func(context.Context, string) (bool, error) { return false, errBackend }
		err := lease.Unlock(t.Context())
		assert.EqualError(t, err, `locker: unlock "k": the lock is not held: its deadline passed; backend down`)
		assert.ErrorIs(t, err, locker.ErrNotHeld)
		assert.ErrorIs(t, err, errBackend)
		f.onRelease = nil
		for range 2 {
			assert.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld)
		}
		_, _, released := f.counts()
		assert.Equal(t, 2, released, "the second one tried again, and the third had no reason to")
	})
	bubble(t, "after a Detach that came meanwhile", func(t *testing.T) {
		f := &fake{}
		f.onRelease = func(context.Context, string) (bool, error) { time.Sleep(time.Second); return false, errBackend }
		lease := tryLock(t, f, time.Minute)
		go func() { assert.ErrorIs(t, lease.Unlock(t.Context()), errBackend) }()
		synctest.Wait()
		lease.Detach()
		start := time.Now()
		assert.ErrorIs(t, lease.Unlock(t.Context()), errBackend, "it waits for the first, and tries again")
		assert.Equal(t, 2*time.Second, time.Since(start))
	})
	bubble(t, "after a panic", func(t *testing.T) {
		f := &fake{onRelease: func(context.Context, string) (bool, error) { panic("boom") }}
		lease := tryLock(t, f, time.Minute)
		assert.Panics(t, func() { _ = lease.Unlock(t.Context()) })
		f.onRelease = nil
		assert.NoError(t, lease.Unlock(t.Context()))
		assert.True(t, f.isFree("k"))
	})
}
