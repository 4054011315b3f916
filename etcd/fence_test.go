package etcd

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fence takes the lock of k, mints a number and releases the lock.
func fence(t *testing.T, l locker.Locker) uint64 {
	t.Helper()
	lease, err := locker.Lock(t.Context(), l, "k", time.Minute)
	require.NoError(t, err)
	n, err := lease.Fence(t.Context())
	require.NoError(t, err)
	require.NoError(t, lease.Unlock(t.Context()))
	return n
}

// Numbers grow when a program changes to a cluster, from it to another backend, back, and to an empty
// cluster, each time at once.
func TestFenceMoves(t *testing.T) {
	t.Parallel()
	first, other := New(newClient(t, testserver.Etcd(t).Addr)), memory.New()
	last := uint64(0)
	moves := slices.Repeat([]locker.Locker{other, first}, 20)
	for i, l := range append(moves, New(newClient(t, testserver.Etcd(t).Addr))) {
		time.Sleep(2 * fenceLag)
		n := fence(t, l)
		assert.Greater(t, n, last, "step %d", i)
		assert.InDelta(t, time.Now().UnixMicro(), n, float64(time.Minute.Microseconds()), "step %d", i)
		last = n
	}
}

// A clock that is behind makes no number smaller, and what is added can be set by hand.
func TestFenceIsAheadOfTheClock(t *testing.T) {
	t.Parallel()
	client := newClient(t, testserver.Etcd(t).Addr)
	l := New(client)
	const ahead = 1 << 62
	_, err := client.Put(t.Context(), "locker/fence", "4611686018427387904")
	require.NoError(t, err)
	n := fence(t, l)
	assert.Greater(t, n, uint64(ahead))
	assert.Greater(t, fence(t, l), n)

	for _, foreign := range []string{"", "x", "-1"} {
		_, err := client.Put(t.Context(), "locker/fence", foreign)
		require.NoError(t, err)
		lease, err := locker.Lock(t.Context(), l, "k", time.Minute)
		require.NoError(t, err)
		_, err = lease.Fence(t.Context())
		assert.ErrorIs(t, err, errForeign)
		assert.NoError(t, lease.Unlock(t.Context()))
	}
}

// Processes that raise what is added at the same moment mint different numbers, which grow for each.
func TestFenceRaisedByMany(t *testing.T) {
	t.Parallel()
	addr := testserver.Etcd(t).Addr
	admin := newClient(t, addr)
	var mu sync.Mutex
	seen := make(map[uint64]bool)
	var processes sync.WaitGroup
	for _, key := range []string{"a", "b", "c", "d"} {
		l := New(newClient(t, addr))
		isOK(t)(l.Acquire(t.Context(), key, "t", time.Minute))
		processes.Go(func() {
			last := uint64(0)
			for range 100 {
				n, ok, err := l.Fence(t.Context(), key, "t")
				if !assert.NoError(t, err) || !assert.True(t, ok) {
					return
				}
				assert.Greater(t, n, last)
				last = n
				mu.Lock()
				assert.False(t, seen[n], "minted twice")
				seen[n] = true
				mu.Unlock()
			}
		})
	}
	for range 5 {
		_, err := admin.Delete(t.Context(), "locker/fence") // the next Fence of each raises
		require.NoError(t, err)
		time.Sleep(200 * time.Millisecond)
	}
	processes.Wait()
}
