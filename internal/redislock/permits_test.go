package redislock_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/golockers/locker/internal/redislock"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const permitsQueue = "!queue:locker:@permits{locker:s}"

// permits runs the scripts for permits, on the first n permits.
type permits struct {
	testing.TB
	*redis.Client
	n   int
	sub *redis.PubSub // on the channel of all entries
}

func startPermits(tb testing.TB, n int) permits {
	tb.Helper()
	client := start(tb)
	sub := client.Subscribe(tb.Context(), "!wait:c")
	tb.Cleanup(func() { _ = sub.Close() })
	_, err := sub.Receive(tb.Context())
	require.NoError(tb, err)
	return permits{tb, client, n, sub}
}

// with returns p as a process that counts n permits.
func (p permits) with(n int) permits {
	p.n = n
	return p
}

func (p permits) run(script redislock.Script, args ...any) any {
	p.Helper()
	reply, err := p.Eval(p.Context(), script.Text, p.keys(), args...).Result()
	require.NoError(p, err)
	return reply
}

func (p permits) keys() []string {
	keys := []string{permitsQueue}
	for i := range p.n {
		keys = append(keys, fmt.Sprintf("locker:s/%d", i+1))
	}
	return keys
}

// takes requires that a token gets a permit without waiting.
func (p permits) takes(permit int, token string, ttl int) {
	p.Helper()
	require.EqualValues(p, permit, p.run(redislock.PermitsLook, token, ttl))
}

// waiter is the entry of a waiter whose token is its name.
func (p permits) waiter(name string, claim time.Duration) string {
	return redislock.Entry{
		Channel: "!wait:c", Nonce: "nonce-" + name, TTL: 60_000, Permits: p.n, Token: name,
	}.String(claim)
}

// joins requires that a waiter gets a place in the queue.
func (p permits) joins(name string, claim time.Duration) redislock.Place {
	p.Helper()
	place, err := redislock.ParsePlace(p.run(redislock.PermitsLook, name, 60_000, p.waiter(name, claim), ""), p.n)
	require.NoError(p, err)
	require.False(p, place.Acquired)
	return place
}

func (p permits) release(token string, args ...any) redislock.Freed {
	p.Helper()
	freed, err := redislock.ParseFreed(p.run(redislock.PermitsRelease, append([]any{token}, args...)...))
	require.NoError(p, err)
	return freed
}

func (p permits) leaves(name string) redislock.Freed {
	p.Helper()
	return p.release(name, p.waiter(name, 0), "", "nonce-"+name)
}

// hears requires that the next message is for that waiter.
func (p permits) hears(name string, kind redislock.Kind) redislock.Message {
	p.Helper()
	received, err := p.sub.ReceiveTimeout(p.Context(), 20*time.Second)
	require.NoError(p, err)
	message, ok := received.(*redis.Message)
	require.True(p, ok, received)
	m, ok := redislock.ParseMessage(message.Payload)
	require.True(p, ok, message.Payload)
	require.Equal(p, redislock.Entry{Nonce: "nonce-" + name}.ID(), m.ID, message.Payload)
	require.Equal(p, kind, m.Kind, message.Payload)
	require.False(p, m.IsForged("nonce-"+name))
	return m
}

// hold requires that the permits have these holders. A permit that is free has "".
func (p permits) hold(want ...string) {
	p.Helper()
	for i, token := range want {
		value, err := p.Get(p.Context(), fmt.Sprintf("locker:s/%d", i+1)).Result()
		if err != redis.Nil {
			require.NoError(p, err)
		}
		require.Equal(p, token, value, "permit %d", i+1)
	}
}

// A grant names its permit, and its proof covers the number.
func TestPermitGrant(t *testing.T) {
	p := startPermits(t, 3)
	for i, token := range []string{"a", "b", "c"} {
		p.takes(i+1, token, 60_000)
		p.takes(-i-1, token, 1) // no other one, and no other time
	}
	require.EqualValues(t, 0, p.run(redislock.PermitsLook, "d", 60_000))
	assert.Equal(t, time.Second, p.joins("first", 0).Left, "a permit may be released as a lock")
	assert.Equal(t, 4*time.Second, p.joins("second", 0).Left, "the first may die before it looks")
	require.True(t, p.release("b").Released)
	m := p.hears("first", redislock.Granted)
	assert.Equal(t, 2, m.Permit)
	for _, permit := range []int{0, 1, 3} {
		m.Permit = permit
		assert.True(t, m.IsForged("nonce-first"), permit)
	}
	p.hears("second", redislock.Head)
	p.hold("a", "first", "c")
	p.takes(-2, "first", 1)
	assert.Greater(t, p.PTTL(t.Context(), "locker:s/2").Val(), 50*time.Second)
	require.True(t, p.release("c").Released)
	assert.Equal(t, 3, p.hears("second", redislock.Granted).Permit)
	for _, token := range []string{"a", "first", "second"} {
		require.True(t, p.release(token).Released)
		require.False(t, p.release(token).Released)
	}
	assert.Empty(t, p.Keys(t.Context(), "*").Val(), "nothing is left")
}

// Each permit has a mark of its own: a ghost releases the permit that it was granted, whatever
// happens to the others, and no permit that its token holds by a later request.
func TestPermitMarks(t *testing.T) {
	for _, claim := range []time.Duration{0, 10 * time.Second} {
		p := startPermits(t, 3)
		for i, token := range []string{"a", "b", "c"} {
			p.takes(i+1, token, 60_000)
		}
		for _, name := range []string{"w1", "w2", "w3"} {
			p.joins(name, claim)
		}
		for _, token := range []string{"a", "b", "c"} {
			p.release(token)
		}
		p.hold("w1", "w2", "w3")
		require.EqualValues(t, 2, p.run(redislock.PermitsExtend, "w2", 60_000))
		require.False(t, p.leaves("w2").Released, "extended since")
		p.hold("w1", "w2", "w3")
		require.True(t, p.leaves("w1").Released)
		p.hold("", "w2", "w3")
		p.takes(1, "w1", 60_000)
		require.False(t, p.leaves("w1").Released, "acquired since")
		require.True(t, p.leaves("w3").Released)
		p.hold("w1", "w2", "")
		require.True(t, p.release("w1").Released)
		require.True(t, p.release("w2").Released)
		assert.Empty(t, p.Keys(t.Context(), "*").Val(), "nothing is left")
	}
}

// Late copies of a waiter's requests may put both forms of its entry in the queue, and both may be
// served. Its ghost releases the permit that was served last, and the token keeps the other one.
func TestPermitsOfOneNonce(t *testing.T) {
	for _, second := range []string{"a", "b"} {
		p := startPermits(t, 2)
		p.takes(1, "a", 60_000)
		p.takes(2, "b", 60_000)
		p.joins("w", 0)
		p.joins("w", 10*time.Second)
		if second == "a" {
			p.release("b")
		} else {
			p.release("a")
		}
		p.release(second)
		p.hold("w", "w")
		require.True(t, p.leaves("w").Released, second)
		require.False(t, p.leaves("w").Released, second)
		if second == "a" {
			p.hold("", "w")
		} else {
			p.hold("w", "")
		}
		require.True(t, p.release("w").Released)
		assert.Empty(t, p.Keys(t.Context(), "*").Val(), "nothing is left")
	}
}

// A confirmed claim lasts as long as its waiter asked for, and the others remain to be claimed.
func TestPermitClaims(t *testing.T) {
	p := startPermits(t, 2)
	p.takes(1, "a", 60_000)
	p.takes(2, "b", 60_000)
	const claim = 3 * time.Second
	p.joins("w1", claim)
	p.joins("w2", claim)
	p.joins("w3", claim)
	require.Equal(t, redislock.Claim(0), p.release("a").SweepIn.Truncate(time.Second))
	p.release("b")
	p.hold("w1", "w2")
	require.EqualValues(t, 1, p.run(redislock.PermitsLook, "w1", 60_000, p.waiter("w1", claim), ""))
	require.Greater(t, p.PTTL(t.Context(), "locker:s/1").Val(), 50*time.Second)
	require.LessOrEqual(t, p.PTTL(t.Context(), "locker:s/2").Val(), claim)
	require.Eventually(t, func() bool { // w2 has not claimed its permit
		_, err := redislock.ParseFreed(p.run(redislock.PermitsSweep, "sweeper"))
		require.NoError(t, err)
		return p.Get(t.Context(), "locker:s/2").Val() == "w3"
	}, 20*time.Second, 10*time.Millisecond)
	p.hold("w1", "w3")
	require.True(t, p.leaves("w3").Released)
	require.EqualValues(t, 0, p.run(redislock.PermitsSweep, "sweeper"))
	require.True(t, p.release("w1").Released)
	assert.Empty(t, p.Keys(t.Context(), "*").Val(), "nothing is left")
}

// The first in the queue is told when the first of its permits ends, or to look at once if one is
// free or the script does not know all of them.
func TestPermitHead(t *testing.T) {
	p := startPermits(t, 3)
	const soon = 900 // less than the time after which the first looks in any case
	var replies []*redis.Cmd
	_, err := p.TxPipelined(t.Context(), func(pipe redis.Pipeliner) error { // without a delay in between
		do := func(script redislock.Script, args ...any) {
			replies = append(replies, pipe.Eval(t.Context(), script.Text, p.keys(), args...))
		}
		do(redislock.PermitsLook, "a", 60_000)
		do(redislock.PermitsLook, "b", soon)
		do(redislock.PermitsLook, "c", 60_000)
		do(redislock.PermitsLook, "w1", 60_000, p.waiter("w1", 0), "")
		do(redislock.PermitsLook, "w2", 60_000, p.waiter("w2", 0), "")
		do(redislock.PermitsRelease, "a")
		do(redislock.PermitsExtend, "b", 60_000)
		return nil
	})
	require.NoError(t, err)
	place, err := redislock.ParsePlace(replies[3].Val(), 3)
	require.NoError(t, err)
	assert.LessOrEqual(t, place.Left, soon*time.Millisecond)
	p.hears("w1", redislock.Granted)
	left := p.hears("w2", redislock.Head).Left
	assert.LessOrEqual(t, left, soon*time.Millisecond)
	p.joins("w3", 0)
	p.release("b")
	assert.Equal(t, 2, p.hears("w2", redislock.Granted).Permit)
	assert.Equal(t, time.Second, p.hears("w3", redislock.Head).Left, "a release of the lock alone is noticed")
	p.joins("w4", 0)
	require.NoError(t, p.Del(t.Context(), "locker:s/2").Err())
	p.release("c")
	assert.Equal(t, 3, p.hears("w3", redislock.Granted).Permit)
	assert.Zero(t, p.hears("w4", redislock.Head).Left, "one of its permits is free")
	require.EqualValues(t, 2, p.run(redislock.PermitsLook, "w4", 60_000, p.waiter("w4", 0), ""))

	p.with(4).takes(4, "d", 60_000)
	p.joins("w5", 0)
	p.with(4).joins("w6", 0)
	p.release("w1")
	p.hears("w5", redislock.Granted)
	assert.Zero(t, p.hears("w6", redislock.Head).Left, "its fourth permit is not known to the releaser")
	p.with(4).joins("w7", 0)
	p.with(4).release("w5")
	p.hears("w6", redislock.Granted)
	assert.NotZero(t, p.hears("w7", redislock.Head).Left)
}

// A waiter gets none of the permits beyond its own number, and those with more wait behind it.
func TestPermitsOfDifferentN(t *testing.T) {
	p := startPermits(t, 1)
	wide := p.with(3)
	for i, token := range []string{"a", "b", "c"} {
		wide.takes(i+1, token, 60_000)
	}
	p.joins("narrow", 0)
	wide.joins("wide", 0)
	require.True(t, wide.release("c").Released)
	require.True(t, wide.release("b").Released)
	wide.hold("a", "", "")
	require.EqualValues(t, 0, wide.run(redislock.PermitsLook, "d", 60_000), "waiters are first")
	place := wide.joins("wide", 0)
	assert.Positive(t, place.Left, "it would look again and again")
	assert.LessOrEqual(t, place.Left, time.Second, "the first may have died")
	require.True(t, p.release("a").Released)
	p.hears("narrow", redislock.Granted)
	assert.Zero(t, wide.hears("wide", redislock.Head).Left)
	require.EqualValues(t, 2, wide.run(redislock.PermitsLook, "wide", 60_000, wide.waiter("wide", 0), ""))
	wide.hold("narrow", "wide", "")

	p.joins("narrow2", 0)
	wide.joins("wide2", 0)
	require.True(t, p.release("narrow2", p.waiter("narrow2", 0), "").Left)
	assert.Zero(t, wide.hears("wide2", redislock.Head).Left, "the first has left")
	require.EqualValues(t, 3, wide.run(redislock.PermitsLook, "wide2", 60_000, wide.waiter("wide2", 0), ""))
}

// A late look does not shorten the time for which the token has extended its permit, and the queue
// outlives all permits.
func TestPermitTimes(t *testing.T) {
	p := startPermits(t, 2)
	left := func(key string) time.Duration { return p.PTTL(t.Context(), key).Val() }
	p.takes(1, "a", 60_000)
	p.takes(2, "b", 600_000)
	require.EqualValues(t, 1, p.run(redislock.PermitsExtend, "a", 300_000))
	require.EqualValues(t, 1, p.run(redislock.PermitsLook, "a", 60_000, p.waiter("a", 0), ""))
	require.Greater(t, left("locker:s/1"), 200*time.Second)
	p.joins("w1", 0)
	require.Greater(t, left(permitsQueue), 600*time.Second)
	p.joins("w2", 0)
	p.release("a")
	p.hold("w1", "b")
	require.Less(t, left("locker:s/1"), 61*time.Second)
	require.Greater(t, left(permitsQueue), 600*time.Second)
}

// If several permits have ended, the next look or sweep serves as many waiters.
func TestPermitsEndTogether(t *testing.T) {
	for _, sweeps := range []bool{false, true} {
		p := startPermits(t, 3)
		for i := range 3 {
			p.takes(i+1, fmt.Sprint(i), 60_000)
		}
		p.joins("w1", 0)
		p.joins("w2", 0)
		require.NoError(t, p.Del(t.Context(), "locker:s/1", "locker:s/2", "locker:s/3").Err())
		if sweeps {
			require.EqualValues(t, 0, p.run(redislock.PermitsSweep, "sweeper"))
			p.hold("w1", "w2", "")
		}
		p.takes(3, "other", 60_000)
		p.hold("w1", "w2", "other")
		assert.Equal(t, 1, p.hears("w1", redislock.Granted).Permit)
		p.hears("w2", redislock.Head)
		assert.Equal(t, 2, p.hears("w2", redislock.Granted).Permit)
	}
}

// A value that is no lock is an error, and stays.
func TestPermitIsNoLock(t *testing.T) {
	p := startPermits(t, 2)
	keys := []string{permitsQueue, "locker:s/1", "locker:s/2"}
	look := func() error { return p.Eval(t.Context(), redislock.PermitsLook.Text, keys, "token", 1000).Err() }
	require.NoError(t, p.LPush(t.Context(), "locker:s/1", "x").Err())
	require.ErrorContains(t, look(), "WRONGTYPE")
	require.Equal(t, "list", p.Type(t.Context(), "locker:s/1").Val())
	require.NoError(t, p.Del(t.Context(), "locker:s/1").Err())

	const redigo = "1700000000:token"
	require.NoError(t, p.Set(t.Context(), "locker:s/1", redigo, 0).Err())
	p.takes(2, "other", 60_000)
	err := look()
	require.Error(t, err)
	require.ErrorIs(t, redislock.ForeignReply(err.Error()), redislock.ErrForeign)
	require.Equal(t, redigo, p.Get(t.Context(), "locker:s/1").Val())
}

// The queue's name is that of no lock's, and the longest names have room in it.
func TestPermitsQueueName(t *testing.T) {
	names := redislock.NewNamespace("", true)
	for _, key := range []string{"s", "s/1", "s/permits", "s}", "{s}", "{locker:s}", "{locker:s}@permits", "@permits"} {
		keys := names.Keys(key)
		assert.NotEqual(t, permitsQueue, keys.Queue)
		assert.NotEqual(t, permitsQueue, keys.Lock)
	}
	assert.True(t, strings.HasPrefix(permitsQueue, "!queue:locker:"), "the pattern that is documented")
}
