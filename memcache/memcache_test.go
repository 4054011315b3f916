package memcache

import (
	"context"
	"testing"
	"time"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// newClient returns a client of its own, as another process would have.
func newClient(tb testing.TB, addrs ...string) *gomemcache.Client {
	tb.Helper()
	client := gomemcache.New(addrs...)
	client.Timeout = 5 * time.Second // a busy machine is no dead server
	tb.Cleanup(func() { assert.NoError(tb, client.Close()) })
	return client
}

func TestLock(t *testing.T) {
	srv := testserver.Memcached(t)
	a, b := New(newClient(t, srv.Addr)), New(newClient(t, srv.Addr))
	ctx := context.Background()

	for _, key := range []string{"plain", "with a space", "\x00", string(make([]byte, 1024))} {
		ok, err := a.Acquire(ctx, key, "a", time.Minute)
		require.NoError(t, err)
		require.True(t, ok, "a free lock")
		ok, err = b.Acquire(ctx, key, "b", time.Minute)
		require.NoError(t, err)
		require.False(t, ok, "a held lock")
		ok, err = a.Acquire(ctx, key, "a", time.Minute)
		require.NoError(t, err)
		require.True(t, ok, "by its own token")
		ok, err = b.Extend(ctx, key, "b", time.Minute)
		require.NoError(t, err)
		require.False(t, ok, "by another token")
		ok, err = b.Release(ctx, key, "b")
		require.NoError(t, err)
		require.False(t, ok, "by another token")
		ok, err = a.Extend(ctx, key, "a", time.Minute)
		require.NoError(t, err)
		require.True(t, ok)
		ok, err = a.Release(ctx, key, "a")
		require.NoError(t, err)
		require.True(t, ok)
		ok, err = a.Release(ctx, key, "a")
		require.NoError(t, err)
		require.False(t, ok, "twice")
		ok, err = b.Acquire(ctx, key, "b", time.Minute)
		require.NoError(t, err)
		require.True(t, ok, "free at once")
	}
}

func TestTTL(t *testing.T) {
	l := New(newClient(t, testserver.Memcached(t).Addr))
	ctx := context.Background()
	const most = 30*24*time.Hour - 2*time.Second
	for _, ttl := range []time.Duration{most + 1, 30 * 24 * time.Hour, 31 * 24 * time.Hour, 1<<63 - 1, 0, -1, time.Millisecond - 1} {
		ok, err := l.Acquire(ctx, "k", "t", ttl)
		require.ErrorIs(t, err, locker.ErrInvalidTTL, "%v", ttl)
		require.False(t, ok)
	}
	ok, err := l.Acquire(ctx, "k", "t", most)
	require.NoError(t, err)
	require.True(t, ok)
	ok, err = l.Extend(ctx, "k", "t", most+1)
	require.ErrorIs(t, err, locker.ErrInvalidTTL)
	require.False(t, ok)
	ok, err = l.Extend(ctx, "k", "t", most)
	require.NoError(t, err)
	require.True(t, ok, "the longest ttl is not over at once")
}
