package redisv9_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// waiters adds up how many acquisitions wait.
type waiters struct{ n atomic.Int64 }

func (w *waiters) Observe(_ context.Context, e locker.Event) { w.n.Add(int64(e.Waiters)) }

// Every caller that waits is reported, including callers that join the queue at once because others
// of the process already wait.
func TestAllWaitersAreObserved(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var w waiters
	l := locker.Observed(newLocker(t, &redis.Options{Addr: testserver.Redis(t).Addr}), &w)
	lease, err := locker.TryLock(ctx, l, "k", time.Minute)
	require.NoError(t, err)
	var callers sync.WaitGroup
	for i := range int64(4) {
		callers.Go(func() {
			assert.NoError(t, locker.Do(ctx, l, "k", time.Minute, func(context.Context) error { return nil }))
		})
		require.Eventually(t, func() bool { return w.n.Load() == i+1 }, time.Minute, time.Millisecond)
	}
	require.NoError(t, lease.Unlock(ctx))
	callers.Wait()
	require.Zero(t, w.n.Load())
}
