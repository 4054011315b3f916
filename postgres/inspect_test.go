package postgres

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/stretchr/testify/require"
)

func TestInspect(t *testing.T) {
	t.Parallel()
	l := New(newPool(t, newServer(t).Addr))
	info, err := l.Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, locker.Info{Key: "k"}, info)
	acquire(t, l, "k", "t", time.Hour)
	info, err = l.Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, "t", info.Token)
	require.InDelta(t, time.Hour, info.TTL, float64(time.Minute))
	broken, err := locker.Break(t.Context(), l, "k")
	require.NoError(t, err)
	require.Equal(t, "t", broken.Token)
	info, err = l.Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, locker.Info{Key: "k"}, info)
}

func TestList(t *testing.T) {
	t.Parallel()
	l := New(newPool(t, newServer(t).Addr))
	keys := []string{"a", "a%", "a/1", "a/2", "a\x00", "a\xff", "a\xff\xff", "b", "\xff", "\xff\xff", "\x00"}
	for _, key := range keys {
		acquire(t, l, key, "t", time.Hour)
	}
	acquire(t, l, "a/free", "t", time.Hour)
	release(t, l, "a/free", "t")
	acquire(t, l, "a/expired", "t", time.Millisecond)
	list := func(prefix string) (found []string) {
		for info, err := range l.List(t.Context(), prefix) {
			require.NoError(t, err)
			require.Equal(t, "t", info.Token)
			found = append(found, info.Key)
		}
		slices.Sort(found)
		return found
	}
	require.Eventually(t, func() bool { return len(list("")) == len(keys) }, long, time.Millisecond)
	for prefix, want := range map[string][]string{
		"": keys, "a": {"a", "a\x00", "a%", "a/1", "a/2", "a\xff", "a\xff\xff"}, "a/": {"a/1", "a/2"}, "a%": {"a%"},
		"a\xff": {"a\xff", "a\xff\xff"}, "\xff": {"\xff", "\xff\xff"}, "c": nil,
	} {
		slices.Sort(want)
		require.Equal(t, want, list(prefix), fmt.Sprintf("%q", prefix))
	}
	for range l.List(t.Context(), "a") {
		break
	}
}
