package redistest

import (
	"context"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Moving is a Cluster of two nodes. The slot of {tag} moves from one node to the other.
type Moving struct {
	Nodes    []string
	From, To *redis.Client
	slot     int64
}

// NewMoving starts the Cluster.
func NewMoving(tb testing.TB) *Moving {
	tb.Helper()
	m := &Moving{Nodes: testserver.RedisCluster(tb, 2)}
	m.From, m.To = NewClient(tb, m.Nodes[0]), NewClient(tb, m.Nodes[1])
	if m.From.Get(tb.Context(), "{tag}").Err() != redis.Nil {
		m.From, m.To = m.To, m.From
	}
	m.slot = m.From.ClusterKeySlot(tb.Context(), "{tag}").Val()
	return m
}

func (m *Moving) setSlot(tb testing.TB, node *redis.Client, state string, other *redis.Client) {
	tb.Helper()
	id := other.Do(tb.Context(), "cluster", "myid").Val()
	require.NoError(tb, node.Do(tb.Context(), "cluster", "setslot", m.slot, state, id).Err())
}

// Begin begins to move the slot, but not its keys.
func (m *Moving) Begin(tb testing.TB) {
	tb.Helper()
	m.setSlot(tb, m.To, "importing", m.From)
	m.setSlot(tb, m.From, "migrating", m.To)
}

// End ends the move. The slot must not have keys.
func (m *Moving) End(tb testing.TB) {
	tb.Helper()
	m.setSlot(tb, m.To, "node", m.To)
	m.setSlot(tb, m.From, "node", m.To)
}

// ReleaseRedirected checks that a Release that was sent again only because it was redirected is
// refused if its token holds nothing: before, during and after the migration of a slot.
func ReleaseRedirected(t *testing.T, newLocker func(nodes []string) Locker) {
	t.Helper()
	m := NewMoving(t)
	l, other := newLocker(m.Nodes), newLocker(m.Nodes)
	releasesNothing := func() {
		t.Helper()
		ok, err := l.Release(t.Context(), "k{tag}", "t")
		require.NoError(t, err)
		require.False(t, ok)
	}
	lease, err := locker.Lock(t.Context(), l, "k{tag}", time.Minute)
	require.NoError(t, err)
	_, err = locker.Break(t.Context(), other, "k{tag}")
	require.NoError(t, err)
	releasesNothing()
	m.Begin(t)
	releasesNothing()
	m.End(t)
	Eventually(t, "another takes the lock", func() bool {
		ok, err := newLocker(m.Nodes).Acquire(t.Context(), "k{tag}", "other", time.Minute)
		return ok && err == nil
	})
	require.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld)
	releasesNothing()
}

// MigratingSlot checks that Acquire, Extend and Release work while a slot migrates, whether the
// lock has been moved or not.
func MigratingSlot(t *testing.T, newLocker func(nodes []string) Locker) {
	t.Helper()
	ctx, m := t.Context(), NewMoving(t)
	l := newLocker(m.Nodes)
	Acquires(t, l, "old{tag}", "t", time.Minute)
	Acquires(t, l, "queued{tag}", "t", time.Minute)
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	done := Joins(t, m.From, newLocker(m.Nodes), waiting, "queued{tag}", "next", time.Minute)
	m.Begin(t)
	Acquires(t, l, "new{tag}", "t", time.Minute)
	for _, key := range []string{"old{tag}", "queued{tag}", "new{tag}"} {
		ok, err := l.Extend(ctx, key, "t", time.Hour)
		require.NoError(t, err, key)
		require.True(t, ok, key)
		Acquires(t, l, key, "t", time.Minute)
		ok, err = l.Extend(ctx, key, "another", time.Hour)
		require.NoError(t, err, key)
		require.False(t, ok, key)
	}
	for _, key := range []string{"old{tag}", "queued{tag}", "new{tag}"} {
		Releases(t, l, key, "t")
	}
	IsServed(t, done, "the lock was released")
}
