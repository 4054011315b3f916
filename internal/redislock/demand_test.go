package redislock_test

import (
	"fmt"
	"testing"

	"github.com/golockers/locker/internal/redislock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
	look := func(token string, more ...any) int64 {
		reply := run(t, client, redislock.Look, append([]any{token, 60_000}, more...)...)
		return reply.([]any)[0].(int64)
	}
	entry := func(i int) string { return fmt.Sprint("!wait:c ", i, ".0.k") }
	waits := func(i int, token string) int64 { return look(token, entry(i), "", 17, "", "") }
	assert.EqualValues(t, -1, run(t, client, redislock.Demand, "any", "c n"), "it is free")
	assert.EqualValues(t, 1, look("holder"))
	assert.EqualValues(t, 0, run(t, client, redislock.Demand, "any", "c n"), "its token has no mark")
	assert.EqualValues(t, 0, look("other"))
	waits(1, "w")
	assert.Empty(t, told())
	require.NoError(t, client.FlushAll(ctx).Err())

	look(owner)
	assert.EqualValues(t, -1, look("other"), "refused by an owner")
	assert.Empty(t, told())
	assert.EqualValues(t, 1, run(t, client, redislock.Demand, "any", "c n"))
	assert.Equal(t, []string{"!wait:locker:OWNER want c n locker:k"}, told())
	waits(1, next)
	assert.Equal(t, []string{"!wait:locker:OWNER want - - locker:k"}, told())
	waits(2, "x")
	assert.Equal(t, []string{"!wait:locker:OWNER want - - locker:k"}, told())
	waits(2, "x")
	assert.Empty(t, told(), "it knows, and the first in the queue repeats it")
	run(t, client, redislock.Release, owner)
	assert.Empty(t, told())
	assert.EqualValues(t, 1, waits(1, next))
	assert.Equal(t, []string{"!wait:locker:NEXT want - - locker:k"}, told(), "another waits behind it")
	run(t, client, redislock.Release, next)
	assert.EqualValues(t, 1, waits(2, "x"))
	assert.Empty(t, told())
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
