package redisv9_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/redislock"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestInspect(t *testing.T) {
	t.Parallel()
	for name, client := range topologies(t) {
		ctx, l := t.Context(), redisv9.New(client)
		assert.Equal(t, locker.Info{Key: "k"}, inspect(t, l, "k"), name)

		// Tokens are shown as they were given, also those that are stored differently.
		for _, token := range []string{"t", "123:t", "1700000000", "token:t", "token:1700000000", "\x00\xff", "a b"} {
			acquires(t, l, "k", token, time.Minute)
			info := inspect(t, l, "k")
			assert.Equal(t, locker.Info{Key: "k", Token: token, TTL: info.TTL}, info, name)
			assert.LessOrEqual(t, info.TTL, time.Minute, name)
			assert.Greater(t, info.TTL, 30*time.Second, name)
			releases(t, l, "k", token)
		}
		acquires(t, l, "k", "t", 1<<63-1)
		assert.Greater(t, inspect(t, l, "k").TTL, 290*365*24*time.Hour, name)
		releases(t, l, "k", "t")

		// By hand, without an expiry.
		require.NoError(t, client.Set(ctx, "locker:k", "by hand", 0).Err())
		assert.Equal(t, locker.Info{Key: "k", Token: "by hand", TTL: -1}, inspect(t, l, "k"), name)
		broken, err := locker.Break(ctx, l, "k")
		require.NoError(t, err, name)
		assert.Equal(t, "by hand", broken.Token)
		assert.Equal(t, locker.Info{Key: "k"}, inspect(t, l, "k"), name)

		for value, want := range map[string]error{
			"1700000000": redislock.ErrForeign, "1:t": redislock.ErrForeign, "": locker.ErrInvalidToken,
			"token:by hand": locker.ErrInvalidToken, // the value of no token
		} {
			require.NoError(t, client.Set(ctx, "locker:k", value, 0).Err())
			info, err := l.Inspect(ctx, "k")
			assert.ErrorIs(t, err, want, "%s: %q", name, value)
			assert.Empty(t, info.Token)
			_, err = locker.Break(ctx, l, "k")
			assert.ErrorIs(t, err, want, "%s: %q", name, value)
			assert.Equal(t, value, client.Get(ctx, "locker:k").Val(), name)
		}
		require.NoError(t, client.Del(ctx, "locker:k").Err())
		require.NoError(t, client.HSet(ctx, "locker:k", "f", "v").Err())
		_, err = l.Inspect(ctx, "k")
		assert.ErrorContains(t, err, "WRONGTYPE", name)
	}
}

// Break hands the lock to the next in the queue.
func TestBreak(t *testing.T) {
	t.Parallel()
	client := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
	l, other := redisv9.New(client), redisv9.New(client)
	ctx := t.Context()
	acquires(t, l, "k", "holder", time.Hour)
	first := joins(t, client, other, ctx, "k", "first", time.Minute)
	second := joins(t, client, l, ctx, "k", "second", time.Minute)
	info, err := locker.Break(ctx, l, "k")
	require.NoError(t, err)
	assert.Equal(t, locker.Info{Key: "k", Token: "holder", TTL: info.TTL, Waiters: 2}, info)
	isServed(t, first, "the lock was broken")
	info = inspect(t, l, "k")
	assert.Equal(t, locker.Info{Key: "k", Token: "first", TTL: info.TTL, Waiters: 1}, info)
	releases(t, l, "k", "first")
	isServed(t, second, "the lock was released")
	_, err = locker.Break(ctx, l, "free")
	assert.ErrorIs(t, err, locker.ErrNotHeld)
}

func TestList(t *testing.T) {
	t.Parallel()
	for name, client := range topologies(t) {
		ctx, l := t.Context(), redisv9.New(client)
		held, errs := list(t, l, "")
		assert.Empty(t, held, name)
		assert.Empty(t, errs, name)

		const many = 1200 // more than a page
		want := map[string]string{}
		_, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for i := range many {
				key := fmt.Sprint("many/", i)
				pipe.Set(ctx, "locker:"+key, "t", time.Hour)
				want[key] = "t"
			}
			return nil
		})
		require.NoError(t, err, name)
		held, errs = list(t, l, "many/")
		assert.Equal(t, want, held, name)
		assert.Empty(t, errs, name)

		// A prefix is no pattern.
		special := []string{"a*b", "a?b", "a[b]", `a\b`, "a{b}c", "aXb", "ab", "a\nb"}
		for _, key := range special {
			acquires(t, l, key, "123:"+key, time.Hour)
		}
		for _, prefix := range append(special, "a", "none") {
			want := map[string]string{}
			for _, key := range special {
				if strings.HasPrefix(key, prefix) {
					want[key] = "123:" + key
				}
			}
			held, errs = list(t, l, prefix)
			assert.Equal(t, want, held, "%s: %q", name, prefix)
			assert.Empty(t, errs, name)
		}
		held, _ = list(t, l, "")
		assert.Len(t, held, many+len(special), name)
		apart, _ := list(t, redisv9.New(client, redisv9.WithPrefix("app:")), "")
		assert.Empty(t, apart, "%s: another prefix", name)

		// Neither queues nor the counter are locks; what others have left is reported.
		mint(t, l, "ab", "123:ab")
		require.NoError(t, client.HSet(ctx, "locker:x/hash", "f", "v").Err())
		require.NoError(t, client.Set(ctx, "locker:x/redigo", "1700000000000:t", 0).Err())
		require.NoError(t, client.Set(ctx, "locker:x/ours", "t", time.Hour).Err())
		held, errs = list(t, l, "x/")
		assert.Equal(t, map[string]string{"x/ours": "t"}, held, name)
		assert.Equal(t, []string{"x/hash", "x/redigo"}, slices.Sorted(maps.Keys(errs)), name)
		assert.ErrorIs(t, errs["x/redigo"], redislock.ErrForeign, name)
		assert.ErrorContains(t, errs["x/hash"], "WRONGTYPE", name)

		// The body of the loop may break locks, and leave the loop.
		broken := 0
		for info, err := range l.List(ctx, "many/") {
			require.NoError(t, err)
			_, err = locker.Break(ctx, l, info.Key)
			require.NoError(t, err)
			if broken++; broken == 7 {
				break
			}
		}
		held, _ = list(t, l, "many/")
		assert.Len(t, held, many-7, name)
	}
}

func TestListFails(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	client := newClient(t, &redis.Options{Addr: srv.Addr, MaxRetries: -1})
	l := redisv9.New(client)
	for i := range 100 {
		acquires(t, l, fmt.Sprint(i), "t", time.Hour)
	}
	fails := func(ctx context.Context, l *redisv9.Locker, midway func()) error {
		t.Helper()
		var last error
		for info, err := range l.List(ctx, "") {
			require.NoError(t, last, "the iteration goes on")
			if last = err; err != nil {
				require.Zero(t, info)
			} else if midway != nil {
				midway()
			}
		}
		require.Error(t, last)
		return last
	}
	ctx, cancel := context.WithCancel(t.Context())
	assert.ErrorIs(t, fails(ctx, l, cancel), context.Canceled)
	assert.ErrorIs(t, fails(ctx, l, nil), context.Canceled)
	assert.EqualError(t, fails(t.Context(), redisv9.New(nil), nil), "redisv9: nil client")
	wrapped := redisv9.New(struct{ redis.UniversalClient }{client})
	assert.ErrorIs(t, fails(t.Context(), wrapped, nil), errors.ErrUnsupported)
	fails(t.Context(), l, srv.Stop)
	fails(t.Context(), l, nil)
}

// A replica reports what it knows, but Break changes nothing there.
func TestInspectOnReplica(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	master := testserver.Redis(t)
	host, port, err := net.SplitHostPort(master.Addr)
	require.NoError(t, err)
	replica := newClient(t, &redis.Options{Addr: testserver.Redis(t, "--replicaof", host+" "+port).Addr})
	onMaster := newLocker(t, &redis.Options{Addr: master.Addr})
	acquires(t, onMaster, "k", "t", time.Hour)
	eventually(t, "the replica has it", func() bool { return replica.Get(ctx, "locker:k").Val() == "t" })
	l := redisv9.New(replica)
	assert.Equal(t, "t", inspect(t, l, "k").Token)
	held, errs := list(t, l, "")
	assert.Equal(t, map[string]string{"k": "t"}, held)
	assert.Empty(t, errs)
	_, err = locker.Break(ctx, l, "k")
	assert.ErrorContains(t, err, "READONLY")

	require.NoError(t, replica.SlaveOf(ctx, "127.0.0.1", "1").Err()) // it lags from here on
	acquires(t, onMaster, "later", "t", time.Hour)
	_, err = locker.Break(ctx, l, "later")
	assert.ErrorIs(t, err, locker.ErrNotHeld)
}
