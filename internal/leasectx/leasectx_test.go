package leasectx_test

import (
	"context"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/leasectx"
	"github.com/golockers/locker/memory"
	"github.com/stretchr/testify/require"
)

type ignore struct{}

func (ignore) Observe(context.Context, locker.Event) {}

func TestCarrier(t *testing.T) {
	require.Nil(t, leasectx.Of(t.Context()))
	l := memory.New()
	lease, err := locker.TryLock(t.Context(), l, "k", time.Minute)
	require.NoError(t, err)
	ctx, cancel := lease.Context(t.Context())
	defer cancel()
	carries := func(ctx context.Context, l locker.Locker, key string) bool {
		c := leasectx.Of(ctx)
		return c != nil && c.Carries(l, key)
	}
	require.True(t, carries(ctx, l, "k"))
	require.True(t, carries(ctx, locker.Observed(l, ignore{}), "k"))
	require.False(t, carries(ctx, l, "other"))
	require.False(t, carries(ctx, memory.New(), "k"))

	type key struct{}
	hidden := leasectx.Hide(context.WithValue(ctx, key{}, "v"))
	require.False(t, carries(hidden, l, "k"))
	require.Nil(t, locker.FromContext(hidden))
	require.Equal(t, "v", hidden.Value(key{}))
	cancel()
	require.Error(t, hidden.Err())

	require.NoError(t, lease.Unlock(t.Context()))
	require.False(t, carries(ctx, l, "k"), "no longer held")
}
