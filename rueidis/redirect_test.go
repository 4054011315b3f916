package rueidis_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/rueidis"
	"github.com/redis/go-redis/v9"
	rueidisclient "github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// moving is a Cluster of two nodes, and a slot, that of {tag}, which moves from one to the other.
type moving struct {
	nodes    []string
	from, to *redis.Client
	slot     int64
}

func newMoving(tb testing.TB) *moving {
	tb.Helper()
	m := &moving{nodes: testserver.RedisCluster(tb, 2)}
	m.from, m.to = newAdmin(tb, m.nodes[0]), newAdmin(tb, m.nodes[1])
	if m.from.Get(tb.Context(), "{tag}").Err() != redis.Nil {
		m.from, m.to = m.to, m.from
	}
	m.slot = m.from.ClusterKeySlot(tb.Context(), "{tag}").Val()
	return m
}

func (m *moving) setSlot(tb testing.TB, node *redis.Client, state string, other *redis.Client) {
	tb.Helper()
	id := other.Do(tb.Context(), "cluster", "myid").Val()
	require.NoError(tb, node.Do(tb.Context(), "cluster", "setslot", m.slot, state, id).Err())
}

// begin begins to move the slot; its keys stay.
func (m *moving) begin(tb testing.TB) {
	tb.Helper()
	m.setSlot(tb, m.to, "importing", m.from)
	m.setSlot(tb, m.from, "migrating", m.to)
}

// end ends it. The slot has no keys.
func (m *moving) end(tb testing.TB) {
	tb.Helper()
	m.setSlot(tb, m.to, "node", m.to)
	m.setSlot(tb, m.from, "node", m.to)
}

func (m *moving) locker(tb testing.TB) *rueidis.Locker {
	tb.Helper()
	return newLocker(tb, rueidisclient.ClientOption{InitAddress: m.nodes})
}

// A request that was redirected did nothing: a Release that was sent again for that reason alone is
// refused if its token holds nothing, before, during and after the migration of a slot.
func TestReleaseRedirected(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	l := m.locker(t)
	releasesNothing := func() {
		t.Helper()
		ok, err := l.Release(t.Context(), "k{tag}", "t")
		require.NoError(t, err)
		require.False(t, ok)
	}
	lease, err := locker.Lock(t.Context(), l, "k{tag}", time.Minute)
	require.NoError(t, err)
	_, err = locker.Break(t.Context(), m.locker(t), "k{tag}")
	require.NoError(t, err)
	releasesNothing()
	m.begin(t)
	releasesNothing()
	m.end(t)
	acquires(t, m.locker(t), "k{tag}", "other", time.Minute)
	assert.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld)
	releasesNothing()
}

// Acquire, Extend and Release work while a slot migrates, whether the lock has been moved or not.
func TestMigratingSlot(t *testing.T) {
	t.Parallel()
	ctx, m := t.Context(), newMoving(t)
	l := m.locker(t)
	acquires(t, l, "old{tag}", "t", time.Minute)
	acquires(t, l, "queued{tag}", "t", time.Minute)
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	done := joins(t, m.from, m.locker(t), waiting, "queued{tag}", "next", time.Minute)
	m.begin(t)
	acquires(t, l, "new{tag}", "t", time.Minute)
	for _, key := range []string{"old{tag}", "queued{tag}", "new{tag}"} {
		ok, err := l.Extend(ctx, key, "t", time.Hour)
		require.NoError(t, err, key)
		require.True(t, ok, key)
		acquires(t, l, key, "t", time.Minute)
		ok, err = l.Extend(ctx, key, "another", time.Hour)
		require.NoError(t, err, key)
		require.False(t, ok, key)
	}
	for _, key := range []string{"old{tag}", "queued{tag}", "new{tag}"} {
		releases(t, l, key, "t")
	}
	isServed(t, done, "the lock was released")
}

// Waiters for locks of a node that hangs do not hold up those for locks of another.
func TestWaitBesideHungNode(t *testing.T) {
	t.Parallel()
	const keys = 100 // more than may look at once
	ctx, m := t.Context(), newMoving(t)
	l := m.locker(t)
	other, hung := "", m.from
	for i := 0; other == ""; i++ { // one of the node that is up
		if key := fmt.Sprint("k", i); m.to.Get(ctx, "locker:"+key).Err() == redis.Nil {
			other = key
		}
	}
	for i := range keys {
		key := fmt.Sprint(i, "{tag}")
		acquires(t, l, key, "holder", 4*time.Second)
		joins(t, hung, l, ctx, key, "waiter", time.Minute)
	}
	acquires(t, l, other, "holder", 5*time.Second) // and vanishes
	done := joins(t, m.to, l, ctx, other, "waiter", time.Minute)
	require.NoError(t, hung.Do(ctx, "client", "pause", 20_000).Err())
	start := time.Now()
	isServed(t, done, "its node is up")
	assert.Less(t, time.Since(start), 9*time.Second, "sooner than rueidis gives up a connection")
}
