package memory

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func (u user) inspect() locker.Info {
	u.t.Helper()
	info, err := u.l.Inspect(context.Background(), key)
	require.NoError(u.t, err)
	return info
}

func TestInspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUser(t)
		free := locker.Info{Key: key}
		require.Equal(t, free, u.inspect())
		require.Zero(t, count(t, u.l), "it leaves nothing")

		require.True(t, u.acquire("a", time.Minute))
		time.Sleep(time.Second)
		require.Equal(t, locker.Info{Key: key, Token: "a", TTL: 59 * time.Second}, u.inspect())

		b, c := u.wait(context.Background(), "b", time.Hour), u.wait(context.Background(), "c", time.Minute)
		require.Equal(t, 2, u.inspect().Waiters)
		time.Sleep(59 * time.Second) // the lock expires
		require.NoError(t, b.result().err)
		require.Equal(t, locker.Info{Key: key, Token: "b", TTL: time.Hour, Waiters: 1}, u.inspect())
		require.True(t, u.release("b"))
		require.NoError(t, c.result().err)
		time.Sleep(time.Minute)
		require.Equal(t, free, u.inspect())
	})
}

func TestList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUser(t)
		list := func(prefix string) (keys []string) {
			for info, err := range u.l.List(t.Context(), prefix) {
				require.NoError(t, err)
				require.Equal(t, "t", info.Token)
				require.Positive(t, info.TTL)
				keys = append(keys, info.Key)
			}
			slices.Sort(keys)
			return keys
		}
		var all, odd []string
		for i := range 300 {
			k := fmt.Sprintf("even/%d", i)
			if i%2 == 1 {
				k = fmt.Sprintf("odd/%d", i)
				odd = append(odd, k)
			}
			all = append(all, k)
			_, err := u.l.Acquire(t.Context(), k, "t", time.Minute)
			require.NoError(t, err)
		}
		slices.Sort(all)
		slices.Sort(odd)
		_, err := u.l.Acquire(t.Context(), "odd/expired", "t", time.Second)
		require.NoError(t, err)
		_, err = u.l.Watch(t.Context(), "odd/watched")
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.Equal(t, all, list(""))
		require.Equal(t, odd, list("odd/"))
		require.Empty(t, list("odd/*"), "a prefix is no pattern")

		// The body of the loop may release what it is given, and leave the loop.
		seen := 0
		for info, err := range u.l.List(t.Context(), "odd/") {
			require.NoError(t, err)
			released, err := u.l.Release(t.Context(), info.Key, info.Token)
			require.NoError(t, err)
			require.True(t, released)
			if seen++; seen == 10 {
				break
			}
		}
		require.Len(t, list("odd/"), len(odd)-10)
		require.False(t, slices.ContainsFunc(list("even/"), func(k string) bool { return !strings.HasPrefix(k, "even/") }))
	})
}

func TestInspectFails(t *testing.T) {
	dead, cancel := context.WithCancel(t.Context())
	cancel()
	for l, ctx := range map[*Locker]context.Context{New(): dead, nil: t.Context()} {
		_, err := l.Inspect(ctx, key)
		assert.Error(t, err)
		var errs []error
		for info, err := range l.List(ctx, "") {
			assert.Zero(t, info)
			errs = append(errs, err)
		}
		require.Len(t, errs, 1, "the iteration ends with an error")
		assert.Equal(t, err, errs[0])
	}
}
