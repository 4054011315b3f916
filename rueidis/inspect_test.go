package rueidis_test

import (
	"context"
	"fmt"
	"strings"
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

// topology is a kind of server, with a client of each library.
type topology struct {
	admin  redis.UniversalClient
	client rueidisclient.Client
}

func topologies(tb testing.TB) map[string]topology {
	tb.Helper()
	single, cluster := testserver.Redis(tb).Addr, testserver.RedisCluster(tb, 3)
	admin := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster})
	tb.Cleanup(func() { _ = admin.Close() })
	return map[string]topology{
		"single":  {newAdmin(tb, single), newClient(tb, rueidisclient.ClientOption{InitAddress: []string{single}})},
		"Cluster": {admin, newClient(tb, rueidisclient.ClientOption{InitAddress: cluster})},
	}
}

func TestInspect(t *testing.T) {
	t.Parallel()
	for name, c := range topologies(t) {
		ctx, l := t.Context(), rueidis.New(c.client)
		assert.Equal(t, locker.Info{Key: "k"}, inspect(t, l, "k"), name)
		for _, token := range []string{"t", "123:t", "1700000000", "token:t", "\x00\xff", "a b"} {
			acquires(t, l, "k", token, time.Minute)
			info := inspect(t, l, "k")
			assert.Equal(t, locker.Info{Key: "k", Token: token, TTL: info.TTL}, info, name)
			assert.LessOrEqual(t, info.TTL, time.Minute, name)
			assert.Greater(t, info.TTL, 30*time.Second, name)
			releases(t, l, "k", token)
		}
		require.NoError(t, c.admin.Set(ctx, "locker:k", "by hand", 0).Err())
		assert.Equal(t, locker.Info{Key: "k", Token: "by hand", TTL: -1}, inspect(t, l, "k"), name)
		_, err := locker.Break(ctx, l, "k")
		require.NoError(t, err, name)

		acquires(t, l, "k", "holder", time.Hour)
		first := joins(t, c.admin, l, ctx, "k", "first", time.Minute)
		second := stands(t, l, ctx, "k", "second", time.Minute)
		info, err := locker.Break(ctx, l, "k")
		require.NoError(t, err, name)
		assert.Equal(t, locker.Info{Key: "k", Token: "holder", TTL: info.TTL, Waiters: 1}, info, name)
		isServed(t, first, "the lock was broken")
		releases(t, l, "k", "first")
		isServed(t, second, "the lock was released")
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	for name, c := range topologies(t) {
		l := rueidis.New(c.client)
		held, errs := list(t, l, "")
		assert.Empty(t, held, name)
		assert.Empty(t, errs, name)
		want := map[string]string{}
		for i := range 1200 { // more than a page
			key := fmt.Sprint("many/", i)
			acquires(t, l, key, "t", time.Hour)
			want[key] = "t"
		}
		held, errs = list(t, l, "many/")
		assert.Equal(t, want, held, name)
		assert.Empty(t, errs, name)

		// A prefix is no pattern, and neither queues nor the counter are locks.
		special := []string{"a*b", "a?b", "a[b]", `a\b`, "a{b}c", "aXb", "ab", "a\nb"}
		for _, key := range special {
			acquires(t, l, key, key, time.Hour)
		}
		mint(t, l, "ab", "ab")
		for _, prefix := range append(special, "a", "none") {
			want := map[string]string{}
			for _, key := range special {
				if strings.HasPrefix(key, prefix) {
					want[key] = key
				}
			}
			held, errs = list(t, l, prefix)
			assert.Equal(t, want, held, "%s: %q", name, prefix)
			assert.Empty(t, errs, name)
		}
	}
}

func TestListFails(t *testing.T) {
	t.Parallel()
	l := at(t, testserver.Redis(t).Addr)
	for i := range 10 {
		acquires(t, l, fmt.Sprint(i), "t", time.Hour)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	for _, err := range l.List(ctx, "") {
		if n++; n == 1 {
			require.NoError(t, err)
			cancel()
			continue
		}
		require.ErrorIs(t, err, context.Canceled)
	}
	assert.Equal(t, 2, n)
}

// Numbers go on above all earlier ones when the counter is lost, goes back, or overflows.
func TestFenceOutlivesTheCounter(t *testing.T) {
	t.Parallel()
	const counter = "!fence:locker:"
	for name, c := range topologies(t) {
		ctx, l := t.Context(), rueidis.New(c.client)
		acquires(t, l, "k", "t", time.Hour)
		before := uint64(time.Now().UnixMicro()) // the server's clock is this machine's
		last := mint(t, l, "k", "t")
		assert.GreaterOrEqual(t, last, before, name)
		for range 10 {
			require.NoError(t, c.admin.Del(ctx, counter).Err())
			next := mint(t, l, "k", "t")
			require.Greater(t, next, last, name)
			last = next
		}
		_, ok, err := l.Fence(ctx, "k", "another")
		require.NoError(t, err, name)
		assert.False(t, ok, name)
		require.NoError(t, c.admin.Set(ctx, counter, uint64(1<<63-2), 0).Err())
		assert.Equal(t, uint64(1<<63-1), mint(t, l, "k", "t"), name)
		_, ok, err = l.Fence(ctx, "k", "t")
		assert.ErrorContains(t, err, "overflow", name)
		assert.False(t, ok, name)
	}
}
