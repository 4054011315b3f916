package memcache

import (
	"context"
	"strings"
	"testing"
	"time"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestInspect(t *testing.T) {
	t.Parallel()
	w, client := newWire(t, testserver.Memcached(t).Addr)
	l, ctx := New(client), t.Context()
	for _, key := range []string{"k", "a b", strings.Repeat("k", 1024)} {
		free := locker.Info{Key: key, Waiters: -1}
		w.requests()
		info, err := l.Inspect(ctx, key)
		require.NoError(t, err)
		assert.Equal(t, free, info)
		assert.Equal(t, "gets", w.requests())

		mustAcquire(t, l, key, "t")
		held := locker.Info{Key: key, Token: "t", TTL: -1, Waiters: -1}
		info, err = l.Inspect(ctx, key)
		require.NoError(t, err)
		assert.Equal(t, held, info)
		info, err = locker.Break(ctx, l, key)
		require.NoError(t, err)
		assert.Equal(t, held, info)
		info, err = locker.Break(ctx, l, key)
		assert.ErrorIs(t, err, locker.ErrNotHeld)
		assert.Equal(t, free, info)
	}
}

func TestInspectFails(t *testing.T) {
	t.Parallel()
	srv := testserver.Memcached(t)
	client := newClient(t, srv.Addr)
	l, ctx := New(client), t.Context()
	require.NoError(t, client.Set(&gomemcache.Item{Key: "locker:k", Value: []byte("t"), Expiration: 60}))
	info, err := l.Inspect(ctx, "k")
	assert.ErrorContains(t, err, `the item "locker:k" is not a lock of this package`)
	assert.Equal(t, locker.Info{Key: "k"}, info)
	_, err = New(nil).Inspect(ctx, "k")
	assert.EqualError(t, err, "memcache: nil client")

	dead, cancel := context.WithCancel(ctx)
	cancel()
	_, err = l.Inspect(dead, "k")
	assert.ErrorIs(t, err, context.Canceled)

	srv.Pause()
	near, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	_, err = l.Inspect(near, "k")
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	srv.Stop()
	_, err = l.Inspect(ctx, "k")
	assert.Error(t, err)
}
