package redisv9_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/golockers/locker/conformance"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/golockers/locker/window"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCounterConformance(t *testing.T) {
	for name, c := range map[string]struct {
		client redis.Options
		locker []redisv9.Option
	}{
		"defaults":              {},
		"ContextTimeoutEnabled": {client: redis.Options{ContextTimeoutEnabled: true, MaxRetries: 5}},
		"batching":              {locker: []redisv9.Option{redisv9.WithBatching(2)}},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "defaults" {
				testserver.Variant(t, variants)
			}
			t.Parallel()
			addr := testserver.Redis(t).Addr
			admin := newClient(t, &redis.Options{Addr: addr})
			conformance.RunCounter(t, conformance.CounterConfig{
				Addr: addr,
				New: func(tb testing.TB, addr string) window.Counter {
					o := c.client
					o.Addr = addr
					return redisv9.New(newClient(tb, &o), c.locker...)
				},
				Eternal: func(ctx context.Context) (int, error) { return eternal(ctx, admin) },
			})
		})
	}
	t.Run("Cluster", func(t *testing.T) {
		testserver.Variant(t, variants)
		t.Parallel()
		client := newCluster(t, testserver.RedisCluster(t, 3))
		conformance.RunCounter(t, conformance.CounterConfig{
			New: func(testing.TB, string) window.Counter { return redisv9.New(client) },
		})
	})
}

// eternal returns how many keys of a server have no expiry.
func eternal(ctx context.Context, client *redis.Client) (n int, err error) {
	const count = `
local n = 0
for _, key in ipairs(redis.call('KEYS', '*')) do
	if redis.call('PTTL', key) == -1 then
		n = n + 1
	end
end
return n`
	return client.Eval(ctx, count, nil).Int()
}

// The counts of a key are one string, which expires when the next window ends.
func TestCounterOnServer(t *testing.T) {
	t.Parallel()
	client := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
	l := redisv9.New(client)
	ctx := t.Context()
	c, err := l.Count(ctx, "user/42", 3, time.Hour)
	require.NoError(t, err)
	const key = "!window:locker:3600000:user/42"
	assert.Regexp(t, `^\d+ 3 0$`, client.Get(ctx, key).Val())
	assert.InDelta(t, c.Left+time.Hour, client.PTTL(ctx, key).Val(), float64(20*time.Second))

	require.NoError(t, client.Set(ctx, key, "a string", 0).Err())
	_, err = l.Count(ctx, "user/42", 3, time.Hour)
	require.ErrorContains(t, err, "the key holds something other than a count")
	require.NoError(t, client.Del(ctx, key).Err())
	require.NoError(t, client.RPush(ctx, key, "a list").Err())
	_, err = l.Count(ctx, "user/42", 3, time.Hour)
	require.ErrorContains(t, err, "WRONGTYPE")
}

// After a clock was set back, a key is not denied for longer than the current window.
func TestCounterClockSetBack(t *testing.T) {
	t.Parallel()
	client := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
	l := redisv9.New(client)
	ctx := t.Context()
	const key, per = "!window:locker:500:k", 500 * time.Millisecond
	require.NoError(t, client.Set(ctx, key, "99999999999999 10 10", time.Hour).Err())
	limiter := window.New(l, 10, per)
	d, err := limiter.Allow(ctx, "k")
	require.NoError(t, err)
	assert.False(t, d.Allowed)
	assert.Less(t, client.PTTL(ctx, key).Val(), 2*per)
	require.NoError(t, limiter.Wait(ctx, "k"))
}

func TestCounterReadOnly(t *testing.T) {
	t.Parallel()
	host, port, err := net.SplitHostPort(testserver.Redis(t).Addr)
	require.NoError(t, err)
	replica := testserver.Redis(t, "--replicaof", host+" "+port)
	client := newClient(t, &redis.Options{Addr: replica.Addr})
	l := redisv9.New(client)
	for _, n := range []int64{0, 1} {
		require.Eventually(t, func() bool {
			_, err := l.Count(t.Context(), "k", n, time.Hour)
			return err != nil && redis.HasErrorPrefix(err, "READONLY")
		}, 20*time.Second, 50*time.Millisecond)
	}
}

func TestCounterOfNil(t *testing.T) {
	_, err := redisv9.New(nil).Count(t.Context(), "k", 1, time.Second)
	assert.EqualError(t, err, "redisv9: nil client")
}
