package redislock_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/golockers/locker/internal/redislock"
	"github.com/stretchr/testify/require"
)

// Different tokens have different values, and no token's value is a foreign one.
func FuzzEncodeToken(f *testing.F) {
	for _, token := range []string{"t", "token:", "token:1:t", "1:t", "1700000000", "1700000000.5", "1:", "\x00", "1"} {
		f.Add(token, "token:"+token)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		require.Equal(t, a == b, redislock.EncodeToken(a) == redislock.EncodeToken(b))
		require.NoError(t, redislock.CheckHolder(redislock.EncodeToken(a)))
		if err := redislock.CheckHolder(a); err != nil {
			require.ErrorIs(t, err, redislock.ErrForeign)
			require.Less(t, len(err.Error()), 600)
		}
		err := redislock.ForeignReply(a)
		require.Equal(t, strings.HasPrefix(a, "FOREIGN "), err != nil)
	})
}

// Two locks share no key, and all keys of a lock are in one slot of a cluster.
func FuzzKeys(f *testing.F) {
	for _, key := range []string{"a", "{a}b", "a}b", "{}a", "{a", "}{a}", "a{b}{c}", "{a}}", "\x00", "!queue:"} {
		f.Add("locker:", key, key+"}")
		f.Add("!{p}", key, "{"+key)
	}
	f.Fuzz(func(t *testing.T, prefix, a, b string) {
		for _, single := range []bool{true, false} {
			n := redislock.NewNamespace(prefix, single)
			of := n.Keys(a)
			if prefix == "" {
				require.Equal(t, redislock.DefaultPrefix+a, of.Lock)
			} else {
				require.Equal(t, prefix+a, of.Lock)
			}
			require.True(t, of.Queue != "" || !single)
			if of.Queue != "" && !single {
				require.Equal(t, slotName(of.Lock), slotName(of.Queue))
			}
			other := n.Keys(b)
			require.Equal(t, a == b, of.Lock == other.Lock)
			require.True(t, a == b || of.Queue == "" || of.Queue != other.Queue)
			for _, lock := range []string{of.Lock, other.Lock} {
				require.NotEqual(t, lock, of.Queue)
				require.NotEqual(t, lock, n.FenceCounter())
			}
			require.NotContains(t, n.NewChannel(), " ", "a channel is a field of an entry")
		}
	})
}

// slotName returns what decides where a cluster keeps a key, as its specification says.
func slotName(key string) string {
	if i := strings.IndexByte(key, '{'); i >= 0 {
		if j := strings.IndexByte(key[i+1:], '}'); j > 0 {
			return key[i+1 : i+1+j]
		}
	}
	return key
}

// The fields of an entry are read by scripts as they were written.
func FuzzEntry(f *testing.F) {
	f.Add("locker:", "token", int64(1000), int64(0))
	f.Add("a b {", " 1 2 ", int64(1), int64(time.Minute))
	f.Fuzz(func(t *testing.T, prefix, token string, ttl, claim int64) {
		e := redislock.Entry{
			Channel: redislock.NewNamespace(prefix, true).NewChannel(), Nonce: "nonce", TTL: ttl,
			Token: redislock.EncodeToken(token),
		}
		ofPermit := e
		ofPermit.Permits = 3
		require.True(t, strings.HasSuffix(ofPermit.String(time.Duration(claim)), fmt.Sprintf(" %d/3 %s", ttl, e.Token)))
		fields := strings.SplitN(e.String(time.Duration(claim)), " ", 5)
		require.Len(t, fields, 5)
		require.Equal(t, []string{e.Channel, e.Nonce, e.Token}, []string{fields[0], fields[1], fields[4]})
		require.Regexp(t, `^-?[0-9]+$`, fields[2])
		require.Regexp(t, `^-?[0-9]+$`, fields[3])
	})
}

// Any user of the server can send messages. Without a nonce, a message is not a grant. No message
// makes a waiter wait longer than it would without the message.
func FuzzParseMessage(f *testing.F) {
	for _, payload := range []string{
		"id 1 grant 1700000000 123456 0123456789abcdef0123456789abcdef01234567", "id 1 claim", "id 1 head 500",
		"id 1 head -1", "id 1 head -2", "id 1 head 9223372036854775807", "id 1 look", "id 1 drop", "", "  ",
		"id 1 grant -9223372036854775808 9223372036854775807 x", "id 1 grant 1 1 x y",
		"id 1 grant 1700000000 123456 0123456789abcdef0123456789abcdef01234567 3", "id 1 grant 1 1 x -1",
	} {
		f.Add(payload)
	}
	f.Fuzz(func(t *testing.T, payload string) {
		m, ok := redislock.ParseMessage(payload)
		if !ok {
			return
		}
		require.True(t, strings.HasPrefix(payload, m.ID+" "+m.Ticket+" "))
		require.GreaterOrEqual(t, m.Left, time.Duration(0))
		require.LessOrEqual(t, m.Left, redislock.LookAgain)
		require.Equal(t, m.Kind == redislock.Granted, m.IsForged("a nonce that no payload has a hash of"))
		require.True(t, m.Kind >= redislock.Granted && m.Kind <= redislock.Dropped)
		require.True(t, m.Permit == 0 || m.Permit > 0 && m.Kind == redislock.Granted)
	})
}

// Every reply is parsed as a place in the queue or is an error.
func FuzzParsePlace(f *testing.F) {
	f.Add(int64(1000), int64(3), "1700000000", "123456", "7", int64(1), int64(0), int64(1), uint8(8))
	f.Add(int64(-1), int64(0), "x", "", "", int64(0), int64(0), int64(0), uint8(0))
	f.Add(int64(0), int64(0), "9223372036854775808", "0", "", int64(0), int64(0), int64(0), uint8(0))
	f.Add(int64(-2), int64(-1), "9223372036854775807", "-1", "", int64(2), int64(-5), int64(0), uint8(9))
	f.Fuzz(func(t *testing.T, left, rank int64, seconds, micros, ticket string, isNew, unclaimed, listens int64, n uint8) {
		list := []any{left, rank, seconds, micros, ticket, isNew, unclaimed, listens, nil, seconds}
		whole := list[:8]
		if p, err := redislock.ParsePlace(whole, 0); err == nil {
			require.False(t, p.Acquired)
			require.GreaterOrEqual(t, p.Left, time.Duration(0))
			require.LessOrEqual(t, p.Left, redislock.LookAgain)
			require.Equal(t, ticket, p.Ticket)
		} else {
			require.Zero(t, p)
		}
		part := list[:int(n)%len(list)]
		if len(part) != len(whole) {
			_, err := redislock.ParsePlace(part, 0)
			require.Error(t, err)
		}
		for i := range whole { // a field of another type
			broken := append([]any(nil), whole...)
			broken[i] = 1.5
			_, err := redislock.ParsePlace(broken, 0)
			require.Error(t, err)
		}
		for _, other := range []any{nil, seconds, left, []byte(seconds), true} {
			p, err := redislock.ParsePlace(other, 0)
			if n, ok := other.(int64); ok && (n == 0 || n == 1) {
				require.Equal(t, n == 1, p.Acquired)
				continue
			}
			require.Error(t, err)
		}
		if p, err := redislock.ParsePlace(left, 3); err == nil {
			require.True(t, p.Acquired && int64(p.Permit) == left && left >= 1 && left <= 3)
		}
		if freed, err := redislock.ParseFreed(left); err == nil {
			require.False(t, freed.Released && freed.Left)
			require.Equal(t, left%10 == 1, freed.Released)
		}
		fence, err := redislock.ParseFence(seconds, nil)
		require.True(t, err == nil || fence == 0)
		_, err = redislock.ParseFence(left, nil)
		require.Equal(t, left == 0, err == nil)
	})
}
