package redislock_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/golockers/locker/internal/redislock"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// runAlone runs a script on the lock alone, as while a Cluster moves its slot.
func runAlone(tb testing.TB, client *redis.Client, script redislock.Script, args ...any) any {
	tb.Helper()
	reply, err := client.Eval(tb.Context(), script.Text, []string{"locker:k"}, args...).Result()
	require.NoError(tb, err)
	return reply
}

// A Look that claims the lock gives it its ttl, which may be shorter than the claim. A copy of it
// that arrives late does not shorten a lock that was extended while the slot migrated.
func TestLateLook(t *testing.T) {
	client, ctx := start(t), t.Context()
	sub := client.Subscribe(ctx, "!wait:c")
	t.Cleanup(func() { _ = sub.Close() })
	_, err := sub.Receive(ctx)
	require.NoError(t, err)
	for name, claim := range map[string]time.Duration{"claimed": 5 * time.Second, "granted": 0} {
		for _, extended := range []bool{false, true} {
			require.NoError(t, client.FlushAll(ctx).Err())
			e := redislock.Entry{Channel: "!wait:c", Nonce: "nonce", TTL: 1000, Token: "token"}.String(claim)
			look := []any{"token", 1000, e, ""}
			run(t, client, redislock.Look, "holder", 60_000)
			run(t, client, redislock.Look, look...)
			run(t, client, redislock.Release, "holder")
			require.Equal(t, "token", client.Get(ctx, "locker:k").Val(), name)
			left := func() time.Duration { return client.PTTL(ctx, "locker:k").Val() }
			if extended {
				require.EqualValues(t, 1, runAlone(t, client, redislock.Look, look...), name)
				require.EqualValues(t, 1, runAlone(t, client, redislock.Extend, "token", 60_000), name)
			}
			require.EqualValues(t, 1, run(t, client, redislock.Look, look...), name)
			if extended {
				assert.Greater(t, left(), 50*time.Second, name)
			} else {
				assert.LessOrEqual(t, left(), time.Second, name)
			}
		}
	}
}

// The scripts notify the owner of a lock when it has to know, and no other process.
func TestWant(t *testing.T) {
	client, ctx := start(t), t.Context()
	sub := client.Subscribe(ctx, "!wait:locker:OWNER", "!wait:locker:NEXT", "!wait:c")
	t.Cleanup(func() { _ = sub.Close() })
	for range 3 {
		_, err := sub.Receive(ctx)
		require.NoError(t, err)
	}
	told := func() (messages []string) { // but for those to waiters
		require.NoError(t, client.Publish(ctx, "!wait:c", "the end").Err())
		for {
			m, err := sub.ReceiveMessage(ctx)
			require.NoError(t, err)
			if m.Payload == "the end" {
				return messages
			}
			if m.Channel != "!wait:c" {
				messages = append(messages, m.Channel+" "+m.Payload)
			}
		}
	}
	const owner, next = "a~@OWNER~1", "b~@NEXT~1"
	waiter := func(i int, token string) []any {
		e := redislock.Entry{Channel: "!wait:c", Nonce: fmt.Sprint("nonce", i), TTL: 60_000, Token: token}
		return []any{token, 60_000, e.String(0), ""}
	}
	assert.EqualValues(t, -1, run(t, client, redislock.Demand, "any", "c n"), "it is free")
	run(t, client, redislock.Look, "holder", 60_000)
	assert.EqualValues(t, 0, run(t, client, redislock.Demand, "any", "c n"), "its token has no mark")
	assert.EqualValues(t, 0, run(t, client, redislock.Look, "other", 60_000))
	run(t, client, redislock.Look, waiter(1, "w")...)
	assert.Empty(t, told())
	require.NoError(t, client.FlushAll(ctx).Err())

	run(t, client, redislock.Look, owner, 60_000)
	assert.EqualValues(t, 2, run(t, client, redislock.Look, "other", 60_000), "refused by an owner")
	assert.Empty(t, told())
	assert.EqualValues(t, 1, run(t, client, redislock.Demand, "any", "c n"))
	assert.Equal(t, []string{"!wait:locker:OWNER want c n locker:k"}, told())
	run(t, client, redislock.Look, waiter(1, next)...)
	assert.Equal(t, []string{"!wait:locker:OWNER want - - locker:k"}, told())
	run(t, client, redislock.Look, waiter(2, "x")...)
	assert.Equal(t, []string{"!wait:locker:OWNER want - - locker:k"}, told())
	run(t, client, redislock.Look, waiter(2, "x")...)
	assert.Empty(t, told(), "it knows, and the first in the queue repeats it")
	run(t, client, redislock.Release, owner)
	assert.Equal(t, []string{"!wait:locker:NEXT want - - locker:k"}, told(), "another waits behind it")
	run(t, client, redislock.Release, next)
	assert.Empty(t, told())
	assert.Equal(t, "x", client.Get(ctx, "locker:k").Val())
}

func TestAnswer(t *testing.T) {
	client, ctx := start(t), t.Context()
	sub := client.Subscribe(ctx, "!wait:locker:C")
	t.Cleanup(func() { _ = sub.Close() })
	_, err := sub.Receive(ctx)
	require.NoError(t, err)
	run(t, client, redislock.Answer, "any", "!wait:locker:C", "free n")
	m, err := sub.ReceiveMessage(ctx)
	require.NoError(t, err)
	assert.Equal(t, "free n", m.Payload)
	assert.Empty(t, client.Keys(ctx, "*").Val())
}
