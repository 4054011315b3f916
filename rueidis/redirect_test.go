package rueidis_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/golockers/locker/internal/redislock/redistest"
	"github.com/redis/go-redis/v9"
	rueidisclient "github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A request that was redirected did nothing: a Release that was sent again for that reason alone is
// refused if its token holds nothing, before, during and after the migration of a slot.
func TestReleaseRedirected(t *testing.T) {
	t.Parallel()
	redistest.ReleaseRedirected(t, func(nodes []string) redistest.Locker {
		return newLocker(t, rueidisclient.ClientOption{InitAddress: nodes})
	})
}

// Acquire, Extend and Release work while a slot migrates, whether the lock has been moved or not.
func TestMigratingSlot(t *testing.T) {
	t.Parallel()
	redistest.MigratingSlot(t, func(nodes []string) redistest.Locker {
		return newLocker(t, rueidisclient.ClientOption{InitAddress: nodes})
	})
}

// Waiters for locks of a node that hangs do not hold up those for locks of another.
func TestWaitBesideHungNode(t *testing.T) {
	t.Parallel()
	const keys = 100 // more than may look at once
	ctx, m := t.Context(), redistest.NewMoving(t)
	l := newLocker(t, rueidisclient.ClientOption{InitAddress: m.Nodes})
	other, hung := "", m.From
	for i := 0; other == ""; i++ { // one of the node that is up
		if key := fmt.Sprint("k", i); m.To.Get(ctx, "locker:"+key).Err() == redis.Nil {
			other = key
		}
	}
	for i := range keys {
		key := fmt.Sprint(i, "{tag}")
		acquires(t, l, key, "holder", 4*time.Second)
		joins(t, hung, l, ctx, key, "waiter", time.Minute)
	}
	acquires(t, l, other, "holder", 5*time.Second) // and vanishes
	done := joins(t, m.To, l, ctx, other, "waiter", time.Minute)
	require.NoError(t, hung.Do(ctx, "client", "pause", 20_000).Err())
	start := time.Now()
	isServed(t, done, "its node is up")
	assert.Less(t, time.Since(start), 9*time.Second, "sooner than rueidis gives up a connection")
}
