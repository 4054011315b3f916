package doctest

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Breaking a lock hands it to the next in the queue.
func TestBreak(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{Addr: testserver.Redis(t).Addr})
	t.Cleanup(func() { assert.NoError(t, client.Close()) })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l := redisv9.New(client)
	holder, err := locker.Lock(ctx, redisv9.New(client), "invoice/42", time.Hour)
	require.NoError(t, err)
	waited := make(chan error, 1)
	go func() {
		lease, err := locker.Lock(ctx, redisv9.New(client), "invoice/42", time.Hour)
		if err == nil {
			err = lease.Unlock(ctx)
		}
		waited <- err
	}()
	require.Eventually(t, func() bool {
		info, err := l.Inspect(ctx, "invoice/42")
		return assert.NoError(t, err) && info.Waiters == 1
	}, 30*time.Second, 5*time.Millisecond)

	assert.Equal(t, holder.Token(), client.Get(ctx, "locker:invoice/42").Val(), "what the page says of the value")
	var listed []string
	for info, err := range l.List(ctx, "invoice/") {
		require.NoError(t, err)
		listed = append(listed, info.Key+" "+info.Token)
	}
	assert.Equal(t, []string{"invoice/42 " + holder.Token()}, listed)
	_, err = locker.Break(ctx, l, "invoice/42")
	require.NoError(t, err)
	require.NoError(t, <-waited)
	assert.ErrorIs(t, holder.Unlock(ctx), locker.ErrNotHeld)
}

// After a loss of data numbers are greater, and they go on from the counter that the page names if that is set.
func TestFencesAfterLossOfData(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	for name, counter := range map[string]string{"redisv9": "!fence:locker:", "redigo": "!locker:fence"} {
		require.True(t, strings.Contains(string(page), "`"+counter+"`"), "%s is not on the page", counter)
		addr := testserver.Redis(t).Addr
		l, _ := backends[name].locker(t, addr)
		client := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { assert.NoError(t, client.Close()) })
		fence := func() uint64 {
			lease, err := locker.TryLock(t.Context(), l, "k", time.Minute)
			require.NoError(t, err, name)
			n, err := lease.Fence(t.Context())
			require.NoError(t, err, name)
			require.NoError(t, lease.Unlock(t.Context()), name)
			return n
		}
		before := fence()
		require.NoError(t, client.FlushAll(t.Context()).Err())
		assert.Greater(t, fence(), before, name)
		const seen = uint64(1<<63 - 3)
		require.NoError(t, client.Set(t.Context(), counter, seen, 0).Err())
		assert.Equal(t, seen+1, fence(), name)
	}
}
