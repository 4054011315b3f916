package redislock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
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
	reply, err := client.Eval(context.Background(), script.Text, []string{keys.Lock, keys.Queue}, args...).Result()
	require.NoError(tb, err)
	return reply
}

func entry(channel string, i int) string {
	return redislock.Entry{Channel: channel, Nonce: fmt.Sprint("nonce", i), TTL: 1000, Token: fmt.Sprint("token", i)}.String(0)
}

// A script drops 1,024 entries of the dead, and no more. The next one goes on.
func TestWorkOfAScriptIsBounded(t *testing.T) {
	const dead = 5000
	client, ctx := start(t), t.Context()
	queue := redislock.NewNamespace("", true).Keys("k").Queue
	run(t, client, redislock.Look, "holder", 60_000)
	for i := range dead {
		run(t, client, redislock.Look, fmt.Sprint("token", i), 1000, entry("!wait:dead", i), "")
	}
	sub := client.Subscribe(ctx, "!wait:alive")
	t.Cleanup(func() { _ = sub.Close() })
	_, err := sub.Receive(ctx)
	require.NoError(t, err)
	run(t, client, redislock.Look, "alive", 1000, entry("!wait:alive", dead), "")
	left := func() int64 { return client.ZCount(ctx, queue, "1", "+inf").Val() }
	require.EqualValues(t, dead+1, left())

	freed, err := redislock.ParseFreed(run(t, client, redislock.Release, "holder"))
	require.NoError(t, err)
	require.Equal(t, redislock.Freed{Released: true, SweepIn: 0}, freed)
	require.EqualValues(t, dead+1-1024, left())
	for n := 2; freed.SweepIn == 0; n++ {
		freed, err = redislock.ParseFreed(run(t, client, redislock.Sweep, "sweeper"))
		require.NoError(t, err)
		require.EqualValues(t, max(0, dead+1-1024*n), left())
	}
	require.Equal(t, fmt.Sprint("token", dead), client.Get(ctx, "locker:k").Val())
	message, err := sub.ReceiveMessage(ctx)
	require.NoError(t, err)
	m, ok := redislock.ParseMessage(message.Payload)
	require.True(t, ok)
	assert.Equal(t, redislock.Granted, m.Kind)
	nonce := fmt.Sprint("nonce", dead)
	assert.Equal(t, redislock.Entry{Nonce: nonce}.ID(), m.ID)
	assert.False(t, m.IsForged(nonce))
	assert.True(t, m.IsForged("nonce0"))
	run(t, client, redislock.Release, nonce)
	run(t, client, redislock.Release, fmt.Sprint("token", dead))
	assert.Empty(t, client.Keys(ctx, "*").Val())
}

// Handing over the lock reads no more of a long queue than its first entry.
func TestHandoverInLongQueue(t *testing.T) {
	const waiters, turns = 300, 20
	client, ctx := start(t), t.Context()
	sub := client.Subscribe(ctx, "!wait:c")
	t.Cleanup(func() { _ = sub.Close() })
	_, err := sub.Receive(ctx)
	require.NoError(t, err)
	run(t, client, redislock.Look, "token", 60_000)
	for i := range waiters {
		run(t, client, redislock.Look, fmt.Sprint("token", i), 60_000, entry("!wait:c", i), "")
	}
	conn, err := net.Dial("tcp", client.Options().Addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
	commands := bufio.NewReader(conn)
	_, err = conn.Write([]byte("MONITOR\r\n"))
	require.NoError(t, err)
	next := func() string {
		line, err := commands.ReadString('\n')
		require.NoError(t, err)
		return line
	}
	require.Equal(t, "+OK\r\n", next())
	for i := range turns {
		run(t, client, redislock.Release, client.Get(ctx, "locker:k").Val())
		require.Equal(t, fmt.Sprint("token", i), client.Get(ctx, "locker:k").Val())
	}
	require.NoError(t, client.Echo(ctx, "that is all").Err())
	reads := 0
	for c := next(); !strings.Contains(c, "that is all"); c = next() {
		if strings.Contains(c, " lua]") && strings.Contains(c, `"LIMIT"`) {
			reads++
			assert.Contains(t, c, `"LIMIT" "0" "1"`, "it reads more than the first of the queue")
		}
	}
	assert.GreaterOrEqual(t, reads, turns)
}

// A process that has not been heard from for 25 seconds, but has a live connection, may have too
// many waiters. So it is offered a claim. If the claim lapses, all its entries are dropped.
func TestUnseenProcess(t *testing.T) {
	client, ctx := start(t), t.Context()
	queue := redislock.NewNamespace("", true).Keys("k").Queue
	sub := client.Subscribe(ctx, "!wait:stopped", "!wait:alive")
	t.Cleanup(func() { _ = sub.Close() })
	for range 2 {
		_, err := sub.Receive(ctx)
		require.NoError(t, err)
	}
	run(t, client, redislock.Look, "holder", 60_000)
	for i := range 3 {
		run(t, client, redislock.Look, fmt.Sprint("token", i), 1000, entry("!wait:stopped", i), "")
	}
	run(t, client, redislock.Look, "alive", 1000, entry("!wait:alive", 3), "")
	require.NoError(t, client.ZIncrBy(ctx, queue, 26_000, "!wait:stopped").Err())
	run(t, client, redislock.Release, "holder")
	require.Equal(t, "token0", client.Get(ctx, "locker:k").Val())
	require.LessOrEqual(t, client.PTTL(ctx, "locker:k").Val(), redislock.Claim(0))
	require.Eventually(t, func() bool {
		run(t, client, redislock.Sweep, "sweeper")
		return client.Get(ctx, "locker:k").Val() == "token3"
	}, 20*time.Second, 10*time.Millisecond)
	assert.Zero(t, client.ZCount(ctx, queue, "1", "+inf").Val())
}

// Waiters that are dropped without having been asked are notified, 256 by one script: they may be
// subscribed to a server that has become a replica.
func TestDroppedAreTold(t *testing.T) {
	const waiters = 300
	client, ctx := start(t), t.Context()
	overheard := client.PSubscribe(ctx, "!wait:*") // as a replica, it is not counted
	t.Cleanup(func() { _ = overheard.Close() })
	_, err := overheard.Receive(ctx)
	require.NoError(t, err)
	run(t, client, redislock.Look, "holder", 60_000)
	for i := range waiters {
		run(t, client, redislock.Look, fmt.Sprint("token", i), 1000, entry("!wait:elsewhere", i), "")
	}
	run(t, client, redislock.Release, "holder")
	require.NoError(t, client.Publish(ctx, "!wait:end", "the end").Err())
	told := 0
	for ; ; told++ {
		message, err := overheard.ReceiveMessage(ctx)
		require.NoError(t, err)
		m, ok := redislock.ParseMessage(message.Payload)
		if !ok {
			break
		}
		require.Equal(t, redislock.Dropped, m.Kind)
		require.Equal(t, redislock.Entry{Nonce: fmt.Sprint("nonce", told)}.ID(), m.ID)
	}
	assert.Equal(t, 256, told)
}

// A lock is released through an entry's nonce only while it is held because of that entry.
func TestReleaseByNonce(t *testing.T) {
	client, ctx := start(t), t.Context()
	sub := client.Subscribe(ctx, "!wait:c")
	t.Cleanup(func() { _ = sub.Close() })
	_, err := sub.Receive(ctx)
	require.NoError(t, err)
	leave := func() redislock.Freed {
		freed, err := redislock.ParseFreed(run(t, client, redislock.Release, "token1", entry("!wait:c", 1), "", "nonce1"))
		require.NoError(t, err)
		return freed
	}
	for _, c := range []struct {
		name string
		do   func()
		want bool
	}{
		{"granted", func() {}, true},
		{"extended since", func() { run(t, client, redislock.Extend, "token1", 1000) }, false},
		{"acquired since", func() { run(t, client, redislock.Look, "token1", 1000) }, false},
	} {
		require.NoError(t, client.FlushAll(ctx).Err())
		run(t, client, redislock.Look, "holder", 60_000)
		run(t, client, redislock.Look, "token1", 60_000, entry("!wait:c", 1), "")
		run(t, client, redislock.Release, "holder")
		require.Equal(t, "token1", client.Get(ctx, "locker:k").Val(), c.name)
		c.do()
		assert.Equal(t, c.want, leave().Released, c.name)
	}
	assert.EqualValues(t, 1, run(t, client, redislock.Release, "token1"))
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

func TestParseMessage(t *testing.T) {
	for payload, want := range map[string]redislock.Message{
		"n 1 grant 12 34 p": {ID: "n", Ticket: "1", Kind: redislock.Granted, Proof: "p",
			Time: redislock.ServerTime(12*time.Second + 34*time.Microsecond)},
		"n 1 claim":     {ID: "n", Ticket: "1", Kind: redislock.Claimed},
		"n 1 drop":      {ID: "n", Ticket: "1", Kind: redislock.Dropped},
		"n 1 look":      {ID: "n", Ticket: "1", Kind: redislock.Probe},
		"n 1 head 1500": {ID: "n", Ticket: "1", Kind: redislock.Head, Left: 1500 * time.Millisecond},
		"n 1 head -1":   {ID: "n", Ticket: "1", Kind: redislock.Head, Left: redislock.LookAgain},
		"n 1 head " + strconv.FormatInt(1<<62, 10): {ID: "n", Ticket: "1", Kind: redislock.Head, Left: redislock.LookAgain},
	} {
		m, ok := redislock.ParseMessage(payload)
		assert.True(t, ok, payload)
		assert.Equal(t, want, m, payload)
	}
	for _, payload := range []string{"", "n", "n 1", "n 1 grant", "n 1 grant 12 34", "n 1 grant x y p", "n 1 claim 1", "n 1 head", "n 1 what"} {
		_, ok := redislock.ParseMessage(payload)
		assert.False(t, ok, payload)
	}
}

// The head looks no more than four times a second, however short the ttl, others once in ten
// seconds, and those behind another one of their process once a minute.
func TestPace(t *testing.T) {
	var head, other, deaf redislock.Pace
	at := func(left time.Duration, rank int64) redislock.Place {
		return redislock.Place{Left: left, Rank: rank, Ticket: "1"}
	}
	assert.Less(t, head.After(at(100*time.Millisecond, 0), true, true), 110*time.Millisecond, "the first time on time")
	total := time.Duration(0)
	for range 100 {
		total += head.After(at(time.Millisecond, 0), true, true)
	}
	assert.Greater(t, total, 20*time.Second)
	for range 100 {
		assert.InEpsilon(t, redislock.LookAgain, other.After(at(time.Millisecond, 1), true, true), 0.05)
		assert.InEpsilon(t, 6*redislock.LookAgain, other.After(at(time.Millisecond, 1), true, false), 0.05)
		rest := deaf.After(at(time.Hour, 1000), false, false)
		assert.Positive(t, rest)
		assert.Less(t, rest, redislock.Claim(0), "or it would miss its claim")
	}
	assert.Zero(t, head.After(at(0, 3), true, false), "the lock is free, and there is more to drop")
	assert.Less(t, head.Told(50*time.Millisecond), 60*time.Millisecond)
	assert.Less(t, redislock.After(50*time.Millisecond, 1), redislock.After(50*time.Millisecond, 2), "in turn")
	assert.Less(t, redislock.After(50*time.Millisecond, 1e6), 1100*time.Millisecond)
}

func TestParseInfo(t *testing.T) {
	for _, reply := range []any{nil, int64(1), []any{}, []any{"t", int64(1)}, []any{"t", "1", int64(0)},
		[]any{"t", int64(1), nil}, []any{int64(1), int64(1), int64(1)}} {
		info, err := redislock.ParseInfo(reply)
		assert.ErrorContains(t, err, "unexpected reply", reply)
		assert.Zero(t, info)
	}
	for _, token := range []string{"t", "1:t", "1700000000", "token:", "token:t", "token:1:t", "\x00"} {
		info, err := redislock.ParseInfo([]any{redislock.EncodeToken(token), int64(1500), int64(3)})
		require.NoError(t, err)
		assert.Equal(t, locker.Info{Token: token, TTL: 1500 * time.Millisecond, Waiters: 3}, info)
	}
	_, err := redislock.ParseInfo([]any{"token:by hand", int64(1500), int64(3)})
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
