package redigo

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var background = context.Background()

// The data of the package and of other programs on the server.

func TestKeys(t *testing.T) {
	t.Parallel()
	for prefix, want := range map[string][]string{
		"":      {"!locker:fence", "locker:k"},
		"app/":  {"!app/fence", "app/k"},
		"!app/": {"!app/k", "#!app/fence"},
	} {
		srv := testserver.Redis(t)
		raw := newRaw(t, srv.Addr)
		l := New(newPool(t, srv.Addr), WithPrefix(prefix))
		isOK(t)(l.Acquire(background, "k", "t", time.Minute))
		isRefused(t)(l.Acquire(background, "k", "u", time.Minute))
		isOK(t)(l.Extend(background, "k", "t", time.Minute))
		_, ok, err := l.Fence(background, "k", "t")
		isOK(t)(ok, err)
		keys, err := redis.Strings(raw.do("KEYS", "*"), nil)
		require.NoError(t, err)
		slices.Sort(keys)
		assert.Equal(t, want, keys)
		isOK(t)(l.Release(background, "k", "t"))
		assert.EqualValues(t, 1, raw.do("DBSIZE"), "more is left than the counter")
	}
}

// A key has an expiry on the server from the moment it is there: a day after the lock's, whatever
// was written there before.
func TestGarbage(t *testing.T) {
	t.Parallel()
	_, l, raw := newServer(t)
	outlives := func(ttl time.Duration, when string) {
		t.Helper()
		left, err := redis.Int64(raw.do("PTTL", "locker:k"), nil)
		require.NoError(t, err)
		const day = 24 * time.Hour
		after := time.Duration(left)*time.Millisecond - ttl
		assert.LessOrEqual(t, after, day, when)
		assert.Greater(t, after, day-time.Minute, when)
	}
	isOK(t)(l.Acquire(background, "k", "t", time.Millisecond))
	outlives(time.Millisecond, "created")
	require.Eventually(t, func() bool {
		ok, err := l.Acquire(background, "k", "u", longest)
		return assert.NoError(t, err) && ok
	}, patience, time.Millisecond)
	outlives(longest, "taken over for longer")
	isOK(t)(l.Extend(background, "k", "u", time.Minute))
	outlives(time.Minute, "extended to less")
	isOK(t)(l.Extend(background, "k", "u", longest))
	outlives(longest, "extended to more")
	isRefused(t)(l.Acquire(background, "k", "loser", time.Millisecond))
	outlives(longest, "refused to another")
	isOK(t)(l.Acquire(background, "k", "u", time.Hour))
	outlives(time.Hour, "acquired again")
	raw.plant("locker:k", "t", -time.Second)
	isOK(t)(l.Acquire(background, "k", "u", longest))
	outlives(longest, "taken over without one")
}

func TestTTL(t *testing.T) {
	t.Parallel()
	_, l, raw := newServer(t)
	isOK(t)(l.Acquire(background, "k", "t", longest))
	assert.InDelta(t, longest, raw.remains("locker:k"), float64(time.Minute))
	for _, ttl := range []time.Duration{longest + 1, 31 * 24 * time.Hour, 1<<63 - 1, 0, -1, time.Millisecond - 1} {
		ok, err := l.Acquire(background, "other", "t", ttl)
		assert.ErrorIs(t, err, locker.ErrInvalidTTL, ttl)
		assert.False(t, ok)
		ok, err = l.Extend(background, "k", "t", ttl)
		assert.ErrorIs(t, err, locker.ErrInvalidTTL, ttl)
		assert.False(t, ok)
	}
	assert.EqualValues(t, 0, raw.do("EXISTS", "locker:other"))
	assert.InDelta(t, longest, raw.remains("locker:k"), float64(time.Minute))
}

// A refused attempt does not change the holder's remaining time and does not disturb its transactions.
func TestRefusedLeavesNoTrace(t *testing.T) {
	t.Parallel()
	srv, l, raw := newServer(t)
	w, pool := newWire(t, srv.Addr)
	holder := New(pool)
	isOK(t)(holder.Acquire(background, "k", "holder", 10*time.Minute))
	before, expires := raw.string("GET", "locker:k"), raw.do("PEXPIRETIME", "locker:k")
	for i := range 100 {
		isRefused(t)(l.Acquire(background, "k", fmt.Sprint("loser", i), time.Millisecond))
		isRefused(t)(l.Extend(background, "k", fmt.Sprint("loser", i), time.Millisecond))
		isRefused(t)(l.Release(background, "k", fmt.Sprint("loser", i)))
	}
	assert.Equal(t, before, raw.string("GET", "locker:k"))
	assert.Equal(t, expires, raw.do("PEXPIRETIME", "locker:k"))

	for op, run := range map[string]func() (bool, error){
		"RENAME": func() (bool, error) { return holder.Extend(background, "k", "holder", 10*time.Minute) },
		"DEL":    func() (bool, error) { return holder.Release(background, "k", "holder") },
	} {
		isOK(t)(holder.Acquire(background, "k", "holder", 10*time.Minute))
		w.requests()
		w.onSending(func(request string) {
			if has(request, op) {
				isRefused(t)(l.Acquire(background, "k", "loser", time.Millisecond))
			}
		})
		isOK(t)(run())
		w.quiet()
		sent := w.requests()
		assert.Equal(t, 1, strings.Count(strings.Join(sent, "\n"), op), "%v: had to begin again: %q", op, sent)
	}
}

// Plain timestamps of other programs are locks.
func TestLegacy(t *testing.T) {
	t.Parallel()
	_, l, raw := newServer(t)
	for name, format := range map[string]func(ms int64) string{
		"seconds":               func(ms int64) string { return fmt.Sprint(ms / 1000) },
		"seconds with fraction": func(ms int64) string { return fmt.Sprintf("%.2f", float64(ms)/1000) },
		"milliseconds":          func(ms int64) string { return fmt.Sprint(ms) },
	} {
		live := format(raw.now()/1000 + 3_600_000)
		raw.do("SET", "locker:k", live)
		isRefused(t)(l.Acquire(background, "k", "t", time.Minute))
		isRefused(t)(l.Extend(background, "k", "t", time.Minute))
		isRefused(t)(l.Release(background, "k", "t"))
		isRefused(t)(l.Release(background, "k", live))
		_, ok, err := l.Fence(background, "k", "t")
		isRefused(t)(ok, err)
		assert.Equal(t, live, raw.string("GET", "locker:k"), name)

		raw.do("SET", "locker:k", format(raw.now()/1000-5_000))
		isRefused(t)(l.Extend(background, "k", "t", time.Minute))
		isRefused(t)(l.Release(background, "k", "t"))
		isOK(t)(l.Acquire(background, "k", "t", time.Minute))
		assert.Equal(t, "t", raw.value("locker:k").token, name)
		isOK(t)(l.Extend(background, "k", "t", time.Minute))
		isOK(t)(l.Release(background, "k", "t"))
	}
	// A timestamp that is about to pass is a lock until then.
	raw.do("SET", "locker:k", raw.now()/1000+300)
	end := raw.value("locker:k").expiry
	require.Eventually(t, func() bool {
		ok, err := l.Acquire(background, "k", "t", time.Minute)
		assert.NoError(t, err)
		return ok
	}, patience, time.Millisecond)
	assert.GreaterOrEqual(t, raw.now()/1000, end)
}

func TestForeign(t *testing.T) {
	t.Parallel()
	_, l, raw := newServer(t)
	const key = "locker:k"
	for name, plant := range map[string][]any{
		"garbage":       {"SET", key, "garbage"},
		"empty":         {"SET", key, ""},
		"SETNX 1":       {"SET", key, "1"},
		"without token": {"SET", key, "1700000000000:"},
		"binary":        {"SET", key, "\x80\x03}q\x00."},
		"long":          {"SET", key, strings.Repeat("long", 5000)},
		"list":          {"RPUSH", key, "1700000000000:t"},
		"hash":          {"HSET", key, "t", "1700000000000:t"},
		"set":           {"SADD", key, "1700000000000:t"},
		"sorted set":    {"ZADD", key, 1, "t"},
		"stream":        {"XADD", key, "*", "t", "1"},
	} {
		raw.do("DEL", key)
		raw.do(plant[0].(string), plant[1:]...)
		before := raw.string("DUMP", key)
		for op, run := range operations(l, "k", "t") {
			ok, err := run(background)
			assert.ErrorIs(t, err, errForeign, "%s on %s", op, name)
			assert.ErrorContains(t, err, "holds something other than a lock", name)
			assert.False(t, ok)
		}
		assert.Equal(t, before, raw.string("DUMP", key), name)
		assert.EqualValues(t, -1, raw.do("PTTL", key), name)
	}
	raw.do("DEL", key)
	isOK(t)(l.Acquire(background, "k", "t", time.Minute))

	raw.do("SET", "!locker:fence", "garbage")
	_, ok, err := l.Fence(background, "k", "t")
	assert.ErrorContains(t, err, "INCR")
	assert.False(t, ok)
}

// Everything works on a server without scripting and other later commands.
func TestOldCommandsOnly(t *testing.T) {
	t.Parallel()
	_, l, raw := newServer(t, "--rename-command", "EVAL", "", "--rename-command", "EVALSHA", "",
		"--rename-command", "SCRIPT", "", "--rename-command", "SET", "", "--rename-command", "SETNX", "",
		"--rename-command", "PEXPIRE", "")
	raw.do("CONFIG", "RESETSTAT")
	ctx, cancel := context.WithCancel(background)
	defer cancel()
	wake, err := l.Watch(ctx, "k")
	require.NoError(t, err)
	isOK(t)(l.Acquire(background, "k", "t", time.Minute))
	isOK(t)(l.Acquire(background, "k", "t", time.Minute))
	isRefused(t)(l.Acquire(background, "k", "u", time.Minute))
	_, ok, err := l.Fence(background, "k", "t")
	isOK(t)(ok, err)
	isOK(t)(l.Extend(background, "k", "t", time.Millisecond))
	require.Eventually(t, func() bool {
		ok, err := l.Acquire(background, "k", "u", time.Minute)
		return assert.NoError(t, err) && ok
	}, patience, time.Millisecond)
	isRefused(t)(l.Release(background, "k", "t"))
	isOK(t)(l.Release(background, "k", "u"))
	<-wake
	used := regexp.MustCompile(`cmdstat_([^:]+):`).FindAllStringSubmatch(raw.string("INFO", "commandstats"), -1)
	assert.Greater(t, len(used), 10)
	for _, m := range used {
		assert.Contains(t, []string{
			"multi", "exec", "watch", "time", "setex", "renamenx", "del", "get", "getset", "expire",
			"pexpireat", "rename",
			"incr", "publish", "subscribe", "config|resetstat", "info",
		}, m[1], "a command that old servers may not have")
	}
}

func TestServerErrors(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	raw := newRaw(t, srv.Addr)
	for name, c := range map[string]struct {
		spoil, heal []any
		want        string
	}{
		"read-only":     {[]any{"REPLICAOF", "127.0.0.1", "1"}, []any{"REPLICAOF", "NO", "ONE"}, "READONLY"},
		"out of memory": {[]any{"CONFIG", "SET", "maxmemory", "1"}, []any{"CONFIG", "SET", "maxmemory", "0"}, "OOM"},
	} {
		l := New(newPool(t, srv.Addr))
		isOK(t)(l.Acquire(background, "k", "t", time.Minute))
		before := raw.string("GET", "locker:k")
		raw.do(c.spoil[0].(string), c.spoil[1:]...)
		for op, run := range operations(l, "k", "t") {
			if op == "release" && c.want == "OOM" {
				continue // needs no memory
			}
			ok, err := run(background)
			assert.ErrorContains(t, err, c.want, "%s: %s", name, op)
			var cause redis.Error
			assert.ErrorAs(t, err, &cause, "%s: %s", name, op)
			assert.False(t, ok)
		}
		ok, err := l.Acquire(background, "free", "t", time.Minute)
		assert.ErrorContains(t, err, c.want, name)
		assert.False(t, ok)
		if c.want == "READONLY" { // it may lag behind, so what it does not know means nothing
			for op, run := range operations(l, "unknown", "t") {
				ok, err := run(background)
				assert.ErrorContains(t, err, c.want, "%s: %s", name, op)
				assert.False(t, ok)
			}
		}
		raw.do(c.heal[0].(string), c.heal[1:]...)
		assert.EqualValues(t, 0, raw.do("EXISTS", "locker:free"), "%s: something was left", name)
		assert.Equal(t, before, raw.string("GET", "locker:k"), name)
		isOK(t)(l.Release(background, "k", "t"))
	}
}

// A user of the server that may not publish can lock and release.
func TestNoPublish(t *testing.T) {
	t.Parallel()
	srv, l, raw := newServer(t)
	raw.do("ACL", "SETUSER", "u", "on", ">p", "+@all", "~*", "resetchannels")
	w, pool := newWire(t, srv.Addr)
	pool.Dial = withUser(pool.Dial, "u", "p")
	mute := New(pool)
	for range 3 {
		isOK(t)(mute.Acquire(background, "k", "t", time.Minute))
		isOK(t)(mute.Release(background, "k", "t"))
		isOK(t)(l.Acquire(background, "k", "t", time.Minute))
		isOK(t)(l.Release(background, "k", "t"))
	}
	assert.Equal(t, 1, strings.Count(strings.Join(w.requests(), "\n"), "PUBLISH"), "it asks again and again")
	_, err := mute.Watch(background, "k")
	assert.ErrorIs(t, err, errors.ErrUnsupported)
	assert.ErrorContains(t, err, "NOPERM")
}

// If publishing on one channel is not allowed, releases of other keys still wake their watchers.
func TestNoPublishOfOneKey(t *testing.T) {
	t.Parallel()
	srv, _, raw := newServer(t)
	raw.do("ACL", "SETUSER", "u", "on", ">p", "+@all", "~*", "resetchannels", "&locker:mine*")
	w, pool := newWire(t, srv.Addr)
	pool.Dial = withUser(pool.Dial, "u", "p")
	l := New(pool)
	mine, _ := watches(t, l, "mine")
	for range 3 {
		cycle(t, l, "theirs")
		cycle(t, l, "mine")
		woken(t, mine, "by the release")
	}
	assert.Equal(t, 4, strings.Count(strings.Join(w.requests(), "\n"), "PUBLISH"), "once in vain")
}

// A Locker remembers a bounded number of refused channels, for a bounded time.
func TestMutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m mutes
		m.add("k")
		assert.True(t, m.has("k"))
		assert.False(t, m.has("other"))
		time.Sleep(muteFor)
		assert.False(t, m.has("k"))
		for i := range 10 * muteMax {
			m.add(fmt.Sprint(i))
			assert.LessOrEqual(t, len(m.until), muteMax)
		}
	})
}

func withUser(dial func() (redis.Conn, error), user, password string) func() (redis.Conn, error) {
	return func() (redis.Conn, error) {
		conn, err := dial()
		if err != nil {
			return nil, err
		}
		_, err = conn.Do("AUTH", user, password)
		return conn, err
	}
}

// After a command is refused within a transaction, the connection can go back to the pool.
func TestRefusalLeavesConnectionClean(t *testing.T) {
	t.Parallel()
	srv, _, raw := newServer(t)
	w, pool := newWire(t, srv.Addr)
	pool.MaxActive, pool.MaxIdle = 1, 1
	l := New(pool)
	raw.plant("locker:k", "other", time.Minute)
	for _, run := range operations(l, "k", "t") {
		isRefused(t)(run(background))
	}
	// A remaining WATCH would make the next transaction fail.
	conn := pool.Get()
	defer conn.Close()
	_, err := conn.Do("MULTI")
	require.NoError(t, err)
	raw.plant("locker:k", "another", time.Minute)
	_, err = conn.Do("PING")
	require.NoError(t, err)
	reply, err := conn.Do("EXEC")
	require.NoError(t, err)
	assert.NotNil(t, reply, "the connection was still watching the key")
	assert.EqualValues(t, 1, w.dials.Load(), "connections are thrown away")
}
