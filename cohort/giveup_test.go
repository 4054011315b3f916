package cohort_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/golockers/locker/memory"
	"github.com/stretchr/testify/require"
)

// slowReply is a backend whose replies to releases are late: the lock is free and its watchers are
// woken before Release returns.
type slowReply struct {
	*memory.Locker
	late time.Duration
}

func (s slowReply) Release(ctx context.Context, key, token string) (bool, error) {
	defer time.Sleep(s.late)
	return s.Locker.Release(ctx, key, token)
}

// A caller that a release has woken gets the lock, though its own process has not had the reply to that
// release: no other wake-up follows.
func TestAcquireAfterWakeUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := cohort.New(slowReply{memory.New(), time.Second})
		ctx := t.Context()
		lease, err := locker.TryLock(ctx, l, "k", time.Minute)
		require.NoError(t, err)
		woken, err := l.Watch(ctx, "k")
		require.NoError(t, err)
		unlocked := make(chan error)
		go func() { unlocked <- lease.Unlock(ctx) }()
		<-woken

		// One whose context ends first leaves nothing behind.
		short, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err = l.Acquire(short, "k", "a", time.Minute)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Millisecond, time.Since(start))

		acquired, err := l.Acquire(ctx, "k", "b", time.Minute)
		require.NoError(t, err)
		require.True(t, acquired)
		require.NoError(t, <-unlocked)
		released, err := l.Release(ctx, "k", "b")
		require.NoError(t, err)
		require.True(t, released)
	})
}

// An attempt does not wait for a release if others of the process wait for the lock.
func TestAcquireDuringAGiveUpForOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := cohort.New(slowReply{memory.New(), time.Second}, cohort.WithMaxHandoffs(0))
		lease := mustLock(t, l, time.Minute)
		queue := join(t.Context(), l, 1, time.Minute)
		go func() { _ = lease.Unlock(context.Background()) }()
		synctest.Wait()
		start := time.Now()
		acquired, err := l.Acquire(t.Context(), "k", "a", time.Minute)
		require.NoError(t, err)
		require.False(t, acquired)
		require.Zero(t, time.Since(start))
		require.NoError(t, queue.next(t).Unlock(t.Context()))
	})
}
