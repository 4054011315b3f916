package redislock_test

import (
	"testing"

	"github.com/golockers/locker/internal/redislock"
	"github.com/stretchr/testify/require"
)

// A waiter that leaves the queue of a lock without a holder hands the lock to the next one. The reply
// is that it has left, not that it has released a lock.
func TestLeavesWhileFree(t *testing.T) {
	t.Parallel()
	client, ctx := start(t), t.Context()
	sub := client.Subscribe(ctx, "!wait:c")
	t.Cleanup(func() { _ = sub.Close() })
	_, err := sub.Receive(ctx)
	require.NoError(t, err)
	left := redislock.Freed{Left: true, SweepIn: -1}
	for _, next := range []string{"token1", ""} {
		run(t, client, redislock.Look, "holder", 60_000)
		run(t, client, redislock.Look, "token0", 60_000, entry("!wait:c", 0), "")
		if next != "" {
			run(t, client, redislock.Look, next, 60_000, entry("!wait:c", 1), "")
		}
		require.NoError(t, client.Del(ctx, "locker:k").Err())
		freed, err := redislock.ParseFreed(run(t, client, redislock.Release, "token0", entry("!wait:c", 0), ""))
		require.NoError(t, err)
		require.Equal(t, left, freed)
		require.Equal(t, next, client.Get(ctx, "locker:k").Val())
		run(t, client, redislock.Release, next)
	}
	require.Empty(t, client.Keys(ctx, "*").Val())
}
