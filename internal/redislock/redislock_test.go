package redislock_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/redislock"
	"github.com/golockers/locker/internal/testserver"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func start(tb testing.TB) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: testserver.Redis(tb).Addr})
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

func run(tb testing.TB, client *redis.Client, script redislock.Script, args ...any) any {
	tb.Helper()
	keys := redislock.NewNamespace("", true).Keys("k")
	reply, err := client.Eval(context.Background(), script.Text, []string{keys.Queue, keys.Lock}, args...).Result()
	require.NoError(tb, err)
	return reply
}

// Go and Lua agree on which values are foreign, and an encoded token never is.
func TestForeignValues(t *testing.T) {
	client, ctx := start(t), t.Context()
	values := []string{"", "1", "123456789", "123456789.", "123456789.5", "1234567890123456", "1:", "1:x", ":x", "x1:y", "1:\n", "\x001:x",
		"token:", "token:1:x", "00000000000", "1763785000\n", "1763785000.1.1"}
	const alphabet = "0123456789:. tx\n\x00"
	for range 2000 {
		b := make([]byte, rand.N(20))
		for i := range b {
			b[i] = alphabet[rand.N(len(alphabet))]
		}
		values = append(values, string(b))
	}
	script := redislock.Holds.Text
	for _, value := range values {
		require.NoError(t, client.Set(ctx, "k", value, 0).Err())
		_, err := client.Eval(ctx, script, []string{"k"}, "another").Result()
		want := redislock.CheckHolder(value)
		assert.Equal(t, want != nil, err != nil, "%q", value)
		if err != nil {
			assert.ErrorIs(t, redislock.ForeignReply(err.Error()), redislock.ErrForeign)
		}
		encoded := redislock.EncodeToken(value)
		assert.NoError(t, redislock.CheckHolder(encoded), "%q", value)
		assert.Equal(t, want != nil || strings.HasPrefix(value, "token:"), encoded != value, "%q", value)
	}
	assert.NoError(t, redislock.ForeignReply("ERR something else"))
	assert.NotEqual(t, redislock.EncodeToken("1:x"), redislock.EncodeToken("token:1:x"))
}

// A lock's keys have the same hash tag, and everything but the lock begins with the mark, a word,
// and the prefix.
func TestNames(t *testing.T) {
	for _, prefix := range []string{"", "app:", "{app}", "a b*", "!"} {
		n := redislock.NewNamespace(prefix, false)
		for _, key := range []string{"k", "a{b}c", "a{b", "{", "{}", "}", "a b"} {
			keys := n.Keys(key)
			if keys.Queue == "" {
				continue
			}
			assert.Equal(t, tag(keys.Lock), tag(keys.Queue), "%q %q", prefix, key)
		}
		for _, name := range []string{n.NewChannel(), n.FenceCounter()} {
			assert.NotContains(t, name, " ")
			assert.Equal(t, name, tag(name), "it has no hash tag")
		}
		assert.NotEqual(t, n.NewChannel(), n.NewChannel())
	}
	assert.Equal(t, "!fence:%7Bapp%7D", redislock.NewNamespace("{app}", true).FenceCounter())
	assert.True(t, strings.HasPrefix(redislock.NewNamespace("", true).NewChannel(), "!wait:locker:"))
}

// tag returns the part of a key that a Cluster hashes.
func tag(key string) string {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			return tag
		}
	}
	return key
}

func TestParseInfo(t *testing.T) {
	for _, reply := range []any{nil, int64(1), []any{}, []any{"t", int64(1)}, []any{"t", "1", int64(0)},
		[]any{"t", int64(1), nil}, []any{int64(1), int64(1), int64(1)}} {
		info, err := redislock.ParseInfo(reply)
		assert.ErrorContains(t, err, "unexpected reply", reply)
		assert.Zero(t, info)
	}
	offer, err := redislock.ParseInfo([]any{"offer:!wait:c id", int64(1500), int64(3)})
	require.NoError(t, err)
	assert.Equal(t, "offer:!wait:c id", offer.Token, "to whom it is offered")
	for _, token := range []string{"t", "1:t", "1700000000", "token:", "token:t", "token:1:t", "\x00", "offer:", "offer:x y"} {
		info, err := redislock.ParseInfo([]any{redislock.EncodeToken(token), int64(1500), int64(3)})
		require.NoError(t, err)
		assert.Equal(t, locker.Info{Token: token, TTL: 1500 * time.Millisecond, Waiters: 3}, info)
	}
	_, err = redislock.ParseInfo([]any{"token:by hand", int64(1500), int64(3)})
	assert.ErrorIs(t, err, locker.ErrInvalidToken, "no token is stored like that")
	info, err := redislock.ParseInfo([]any{"by hand", int64(1 << 60), int64(-1)})
	require.NoError(t, err)
	assert.Equal(t, "by hand", info.Token)
	assert.Positive(t, info.TTL)
	assert.Equal(t, -1, info.Waiters)
}

// The requests to which a server replied that it did nothing do not count, each once.
func TestSendingCounts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		replies []string // to each time that the token is sent; "": none
		want    int
	}{
		"answered":                    {[]string{"ok"}, 1},
		"no answer":                   {[]string{"", "ok"}, 2},
		"redirected":                  {[]string{"MOVED 1 a:1", "ASK 1 a:1", "ok"}, 1},
		"redirected to the end":       {[]string{"TRYAGAIN", "TRYAGAIN"}, 0},
		"redirected, then no answer":  {[]string{"MOVED 1 a:1", "", "ok"}, 2},
		"no answer, then redirected":  {[]string{"", "MOVED 1 a:1", "ok"}, 2},
		"an answer that means no":     {[]string{"WRONGTYPE", "ok"}, 2},
		"with the prefix of an error": {[]string{"ERR CLUSTERDOWN", "ok"}, 1},
		"the server may not write":    {[]string{"OOM", "NOREPLICAS", "MISCONF", "ok"}, 1},
	} {
		s := redislock.NewSending(t.Context(), "t")
		var cmd fakeCommand
		s.Begin(&cmd, false)
		for _, reply := range c.replies {
			_, err := s.MarshalBinary()
			require.NoError(t, err)
			switch reply {
			case "": // a client that repeats a request by itself sets no error
			case "ok":
				cmd.err = nil
			default:
				cmd.err = errors.New(reply)
			}
		}
		s.End()
		assert.Equal(t, c.want, s.Sends(), name)
	}

	// The error of an OnConnect is no reply to the request before.
	for word, want := range map[string]int{"LOADING": 2, "READONLY": 2, "OOM": 2, "MOVED": 1} {
		s := redislock.NewSending(t.Context(), "t")
		cmd := new(fakeCommand)
		s.Begin(cmd, true)
		for range 2 {
			_, err := s.MarshalBinary()
			require.NoError(t, err)
			cmd.err = errors.New(word)
		}
		cmd.err = nil
		s.End()
		assert.Equal(t, want, s.Sends(), word)
	}

	// A command that is not sent takes nothing back.
	s := redislock.NewSending(t.Context(), "t")
	s.Begin(new(fakeCommand), false)
	_, err := s.MarshalBinary()
	require.NoError(t, err)
	s.End()
	s.Begin(&fakeCommand{errors.New("CLUSTERDOWN")}, false)
	s.End()
	s.Undo()
	assert.Equal(t, 1, s.Sends())
}

// A client that sends a command once counts it once, unless the server did nothing or ctx has ended.
func TestSendingOnce(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	s := redislock.NewSending(ctx, "t")
	for _, c := range []struct {
		reply error
		want  int
	}{{nil, 1}, {errors.New("EOF"), 2}, {errors.New("TRYAGAIN"), 2}, {errors.New("NOSCRIPT No matching script"), 2}, {nil, 3}} {
		assert.Equal(t, c.reply, s.Once(func() error { return c.reply }))
		assert.Equal(t, c.want, s.Sends())
	}
	s.Undo()
	s.Undo()
	assert.Equal(t, 2, s.Sends(), "only the last command's")
	cancel()
	assert.ErrorIs(t, s.Once(func() error { t.Error("sent"); return nil }), context.Canceled)
	assert.Equal(t, 2, s.Sends())
}

// A token that travels with others is sent even if its caller has left, but only once. Then it can be
// sent alone, which counts as the second time.
func TestSendingInBatch(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	s := redislock.NewSending(ctx, "t")
	cancel()
	s.BeginInBatch(new(fakeCommand), false)
	b, err := s.MarshalBinary()
	require.NoError(t, err)
	assert.Equal(t, "t", string(b))
	_, err = s.MarshalBinary()
	require.ErrorIs(t, err, redislock.ErrSentBefore)
	s.End()
	assert.Equal(t, 1, s.Sends())

	s.Begin(new(fakeCommand), false)
	_, err = s.MarshalBinary()
	require.ErrorIs(t, err, context.Canceled)
	s.Ctx = t.Context()
	_, err = s.MarshalBinary()
	require.NoError(t, err)
	assert.Equal(t, 2, s.Sends())

	s.BeginInBatch(new(fakeCommand), false)
	s.Begin(new(fakeCommand), false) // the command goes alone after all
	for want := range 2 {
		_, err = s.MarshalBinary()
		require.NoError(t, err)
		assert.Equal(t, 3+want, s.Sends())
	}
}

type fakeCommand struct{ err error }

func (c *fakeCommand) Err() error       { return c.err }
func (c *fakeCommand) SetErr(err error) { c.err = err }
