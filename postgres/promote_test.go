package postgres

import (
	"testing"
	"time"

	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A standby is promoted while processes wait. Those whose pools find it go on there, in the queue
// that it has, and are told of the release.
func TestStandbyIsPromotedUnderWaiters(t *testing.T) {
	t.Parallel()
	primary := newServer(t)
	standby := testserver.PostgresStandby(t, primary)
	addrs := primary.Addr + "," + standby.Addr
	a := New(newPool(t, addrs, "target_session_attrs", "read-write"))
	b := New(newPool(t, addrs, "target_session_attrs", "read-write"))
	admin := newPool(t, standby.Addr)
	acquire(t, a, "k", "a", time.Hour)
	done := waits(t.Context(), t, b, "k", "b", time.Hour)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		info, err := New(admin).Inspect(t.Context(), "k")
		assert.NoError(c, err)
		assert.Equal(c, 1, info.Waiters)
	}, long, time.Millisecond)
	listens := b.listens()
	primary.Stop()
	_, err := admin.Exec(t.Context(), "SELECT pg_promote()")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return len(done) > 0 || b.listens() != listens && b.listens() != 0 && placesOf(t, New(admin), "k") == 1
	}, long, time.Millisecond)
	require.Eventually(t, func() bool { // its pool may have connections that are broken
		ok, err := a.Release(t.Context(), "k", "a")
		return err == nil && ok
	}, long, time.Millisecond)
	served(t, done)
	release(t, b, "k", "b")
}
