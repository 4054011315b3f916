package redigo

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	create  = "MULTI SETEX RENAMENX DEL GET TIME EXEC"
	look    = "WATCH GET TIME"
	rewrite = "MULTI GETSET EXPIRE EXEC"
	renew   = "MULTI GET SETEX PEXPIREAT RENAME EXPIRE EXEC"
	remove  = "MULTI DEL PUBLISH EXEC"
	giveUp  = "MULTI DEL EXEC"
	minting = "MULTI INCR GET TIME EXEC"
	seeding = "MULTI GETSET SETEX DEL INCR GET TIME EXEC"
)

func TestRoundTrips(t *testing.T) {
	t.Parallel()
	srv, other, raw := newServer(t)
	w, pool := newWire(t, srv.Addr)
	l := New(pool)
	isOK(t)(l.Acquire(background, "warm", "t", time.Minute))
	_, _, err := l.Fence(background, "warm", "t")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(background, time.Hour)
	defer cancel()
	acquire := func(token string) func() (bool, error) {
		return func() (bool, error) { return l.Acquire(ctx, "k", token, time.Minute) }
	}
	extend := func(token string) func() (bool, error) {
		return func() (bool, error) { return l.Extend(ctx, "k", token, time.Minute) }
	}
	release := func(token string) func() (bool, error) {
		return func() (bool, error) { return l.Release(ctx, "k", token) }
	}
	fence := func(token string) func() (bool, error) {
		return func() (bool, error) { _, ok, err := l.Fence(ctx, "k", token); return ok, err }
	}
	corrected := 0
	for range 50 {
		for _, step := range []struct {
			what string
			do   func() (bool, error)
			ok   bool
			sent []string
		}{
			{"acquire a free lock", acquire("a"), true, []string{create}},
			{"be refused", acquire("b"), false, []string{create}},
			{"acquire again", acquire("a"), true, []string{create, look, rewrite}},
			{"extend", extend("a"), true, []string{look, renew}},
			{"extend another's", extend("b"), false, []string{look, giveUp}},
			{"fence", fence("a"), true, []string{minting}},
			{"fence another's", fence("b"), false, []string{minting}},
			{"release another's", release("b"), false, []string{look, giveUp}},
			{"release", release("a"), true, []string{look, remove}},
			{"release again", release("a"), false, []string{look, giveUp}},
			{"take over", func() (bool, error) {
				raw.plant("locker:k", "gone", -time.Millisecond)
				return l.Acquire(ctx, "k", "a", time.Minute)
			}, true, []string{create, look, rewrite}},
			{"extend what has expired", func() (bool, error) {
				raw.plant("locker:k", "a", -time.Millisecond)
				return l.Extend(ctx, "k", "a", time.Minute)
			}, false, []string{look, giveUp}},
			{"fence what has expired", fence("a"), false, []string{minting}},
			{"release what has expired", func() (bool, error) {
				raw.plant("locker:k", "a", -time.Millisecond)
				return l.Release(ctx, "k", "a")
			}, false, []string{look, remove}},
		} {
			w.requests()
			ok, err := step.do()
			require.NoError(t, err, step.what)
			require.Equal(t, step.ok, ok, step.what)
			sent := w.requests()
			if step.what == "acquire a free lock" && len(sent) > 1 {
				// A request that was much slower than those before.
				require.Equal(t, []string{create, look, rewrite}, sent, step.what)
				corrected++
				continue
			}
			require.Equal(t, step.sent, sent, step.what)
		}
	}
	t.Logf("%d of 50 new locks were corrected", corrected)
	require.Less(t, corrected, 40)
	isOK(t)(other.Acquire(background, "k", "o", time.Minute))
}

// The reply to each request is lost, at each step. The results are true, and the same call succeeds
// when repeated.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	srv, other, raw := newServer(t)
	w, pool := newWire(t, srv.Addr)
	l := New(pool)
	isOK(t)(l.Acquire(background, "warm", "t", time.Minute))
	lose := func(request string) {
		w.onReceived(func(r string) error {
			if r == request {
				w.quiet()
				return io.ErrUnexpectedEOF
			}
			return nil
		})
	}
	fails := func(ok bool, err error) {
		t.Helper()
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		require.False(t, ok)
	}
	acquire := func() (bool, error) { return l.Acquire(background, "k", "t", time.Minute) }

	lose(create)
	fails(acquire())
	isRefused(t)(other.Acquire(background, "k", "o", time.Minute))
	isOK(t)(acquire())

	for _, request := range []struct{ ofExtend, ofAcquire string }{{look, look}, {renew, rewrite}} {
		lose(request.ofExtend)
		fails(l.Extend(background, "k", "t", time.Minute))
		isOK(t)(l.Extend(background, "k", "t", time.Minute))
		lose(request.ofAcquire)
		fails(acquire()) // again, by the same token
		isOK(t)(acquire())
	}

	lose(look)
	fails(l.Release(background, "k", "t"))
	isRefused(t)(other.Acquire(background, "k", "o", time.Minute))
	isOK(t)(l.Release(background, "k", "t"))
	isOK(t)(acquire())
	lose(remove)
	fails(l.Release(background, "k", "t"))
	isOK(t)(other.Acquire(background, "k", "o", time.Minute)) // it was done
	isRefused(t)(l.Release(background, "k", "t"))
	isOK(t)(other.Release(background, "k", "o"))

	for _, request := range []string{create, look, rewrite} {
		raw.plant("locker:k", "gone", -time.Second)
		lose(request)
		fails(acquire())
		isOK(t)(acquire())
		isRefused(t)(other.Acquire(background, "k", "o", time.Minute))
	}

	first, ok, err := l.Fence(background, "k", "t")
	isOK(t)(ok, err)
	lose(minting)
	_, ok, err = l.Fence(background, "k", "t")
	fails(ok, err)
	next, ok, err := l.Fence(background, "k", "t")
	isOK(t)(ok, err)
	assert.Greater(t, next, first)
}

// A step is paused on the wire until the lock has expired and another has taken it. The other's
// lock is left alone.
func TestPaused(t *testing.T) {
	t.Parallel()
	srv, other, raw := newServer(t)
	for name, c := range map[string]struct {
		at  string // the command that is held back
		run func(l *Locker) (bool, error)
	}{
		"release":   {"DEL", func(l *Locker) (bool, error) { return l.Release(background, "k", "t") }},
		"extend":    {"RENAME", func(l *Locker) (bool, error) { return l.Extend(background, "k", "t", time.Minute) }},
		"take over": {"GETSET", func(l *Locker) (bool, error) { return l.Acquire(background, "k", "t", time.Minute) }},
	} {
		w, pool := newWire(t, srv.Addr)
		l := New(pool)
		isOK(t)(l.Acquire(background, "warm", "t", time.Minute))
		isOK(t)(l.Release(background, "warm", "t"))
		owner := "t"
		if name == "take over" {
			owner = "gone"
			raw.plant("locker:k", owner, -time.Second)
		} else {
			raw.plant("locker:k", owner, 3*time.Second)
		}
		paused, resume := w.pauseBefore(t, c.at)
		type result struct {
			ok  bool
			err error
		}
		results := make(chan result, 1)
		go func() {
			ok, err := c.run(l)
			results <- result{ok, err}
		}()
		<-paused
		require.Eventually(t, func() bool {
			ok, err := other.Acquire(background, "k", "other", 10*time.Minute)
			assert.NoError(t, err)
			return ok
		}, patience, time.Millisecond)
		held, expires := raw.string("GET", "locker:k"), raw.do("PEXPIRETIME", "locker:k")
		resume()
		r := <-results
		isRefused(t)(r.ok, r.err)
		assert.Equal(t, held, raw.string("GET", "locker:k"), name)
		assert.Equal(t, expires, raw.do("PEXPIRETIME", "locker:k"), name)
		isRefused(t)(l.Acquire(background, "k", "t", time.Minute))
		isOK(t)(other.Release(background, "k", "other"))
	}
}

// A step of an Extend is paused on the wire until others have seen that the lock has expired. It does
// not bring the lock back.
func TestExtendsNothingThatHasExpired(t *testing.T) {
	t.Parallel()
	srv, other, raw := newServer(t)
	w, pool := newWire(t, srv.Addr)
	l := New(pool)
	raw.plant("locker:k", "t", time.Second)
	paused, resume := w.pauseBefore(t, "RENAME")
	type result struct {
		ok  bool
		err error
	}
	results := make(chan result, 1)
	go func() {
		ok, err := l.Extend(background, "k", "t", 10*time.Minute)
		results <- result{ok, err}
	}()
	<-paused
	held := raw.string("GET", "locker:k")
	require.Eventually(t, func() bool {
		_, ok, err := other.Fence(background, "k", "t")
		assert.NoError(t, err)
		return !ok
	}, patience, time.Millisecond)
	resume()
	r := <-results
	isRefused(t)(r.ok, r.err)
	assert.Equal(t, held, raw.string("GET", "locker:k"))
	isOK(t)(other.Acquire(background, "k", "other", time.Minute))
	assert.ElementsMatch(t, []any{[]byte("locker:k"), []byte("!locker:fence")}, raw.do("KEYS", "*"))
}

// The server drops the key, by the expiry that is garbage collection, between the steps.
func TestGarbageCollectedMidway(t *testing.T) {
	t.Parallel()
	srv, _, raw := newServer(t)
	for name, c := range map[string]struct {
		at  string
		run func(l *Locker) (bool, error)
		ok  bool
	}{
		"release": {"DEL", func(l *Locker) (bool, error) { return l.Release(background, "k", "t") }, false},
		"extend":  {"RENAME", func(l *Locker) (bool, error) { return l.Extend(background, "k", "t", time.Minute) }, false},
		"acquire": {"GETSET", func(l *Locker) (bool, error) { return l.Acquire(background, "k", "t", time.Minute) }, true},
	} {
		w, pool := newWire(t, srv.Addr)
		l := New(pool)
		raw.plant("locker:k", "t", time.Minute)
		dropped := false
		w.onSending(func(request string) {
			if has(request, c.at) && !has(request, "RENAMENX") {
				w.quiet()
				raw.do("PEXPIRE", "locker:k", 1)
				for raw.do("EXISTS", "locker:k") != int64(0) {
					time.Sleep(time.Millisecond)
				}
				dropped = true
			}
		})
		ok, err := c.run(l)
		require.NoError(t, err, name)
		require.Equal(t, c.ok, ok, name)
		require.True(t, dropped, name)
		require.Equal(t, c.ok, raw.do("EXISTS", "locker:k") == int64(1), "%s: brought back, or not there", name)
	}
}

// If the value changes before every step, the operation gives up with an error after three repetitions.
func TestChangingValue(t *testing.T) {
	t.Parallel()
	srv, _, raw := newServer(t)
	w, pool := newWire(t, srv.Addr)
	l := New(pool)
	for name, run := range operations(l, "k", "t") {
		if name == "fence" {
			continue // makes one step
		}
		raw.plant("locker:k", "t", time.Minute)
		w.onSending(func(request string) {
			if has(request, "EXEC") && !has(request, "RENAMENX") {
				raw.plant("locker:k", "t", time.Minute)
			}
		})
		w.requests()
		ok, err := run(background)
		w.quiet()
		assert.ErrorIs(t, err, errChanged, name)
		assert.False(t, ok, name)
		assert.Equal(t, 1+maxRaces, strings.Count(strings.Join(w.requests(), "\n"), look), name)
		isOK(t)(l.Release(background, "k", "t"))
	}
}

// edited changes the replies of a connection.
type edited struct {
	redis.Conn
	edit func(replies []any)
}

func (c edited) ReceiveWithTimeout(timeout time.Duration) (any, error) {
	return redis.ReceiveWithTimeout(c.Conn, timeout)
}

func (c edited) DoWithTimeout(timeout time.Duration, name string, args ...any) (any, error) {
	reply, err := redis.DoWithTimeout(c.Conn, timeout, name, args...)
	if replies, ok := reply.([]any); ok {
		c.edit(replies)
	}
	return reply, err
}

func editedPool(tb testing.TB, addr string, edit func(replies []any)) *redis.Pool {
	pool := newPool(tb, addr)
	dial := pool.Dial
	pool.Dial = func() (redis.Conn, error) {
		conn, err := dial()
		return edited{conn, edit}, err
	}
	return pool
}

// A key that could not be created, and that has no value when it is read, has gone. It is created
// again, and not taken over as if it had expired.
func TestGoneIsNotExpired(t *testing.T) {
	t.Parallel()
	srv, other, raw := newServer(t)
	isOK(t)(other.Acquire(background, "k", "o", time.Minute))
	edits := 0
	l := New(editedPool(t, srv.Addr, func(replies []any) {
		results, ok := replies[len(replies)-1].([]any)
		if ok && len(results) == 5 && edits < 2 {
			results[3] = nil // GET, after RENAMENX was refused
			edits++
		}
	}))
	isRefused(t)(l.Acquire(background, "k", "t", time.Minute))
	assert.Equal(t, 2, edits)
	assert.Equal(t, "o", raw.value("locker:k").token)

	// If it comes and goes every time, that is an error.
	edits = -100
	ok, err := l.Acquire(background, "k", "t", time.Minute)
	assert.ErrorIs(t, err, errChanged)
	assert.False(t, ok)
	isOK(t)(other.Extend(background, "k", "o", time.Minute))
}

// A look-alike that carries out transactions although a watched key has changed is detected.
func TestNoWatch(t *testing.T) {
	t.Parallel()
	srv, _, raw := newServer(t)
	raw.plant("locker:k", "gone", -time.Second)
	old := []byte("1700000000000:other")
	l := New(editedPool(t, srv.Addr, func(replies []any) {
		if len(replies) == 4 { // MULTI GETSET EXPIRE EXEC
			replies[3].([]any)[0] = old
		}
	}))
	ok, err := l.Acquire(background, "k", "t", time.Minute)
	assert.ErrorContains(t, err, "although a watched key had changed")
	assert.False(t, ok)
}

// Replies that make no sense are errors, and the connection is not used again.
func TestNonsense(t *testing.T) {
	t.Parallel()
	srv, _, raw := newServer(t)
	for _, nonsense := range []struct {
		name string
		edit func(replies []any)
	}{
		{"too few results", func(r []any) {
			if results, ok := r[len(r)-1].([]any); ok && len(results) > 2 {
				r[len(r)-1] = results[:2]
			}
		}},
		{"EXEC is a number", func(r []any) {
			if len(r) > 3 {
				r[len(r)-1] = int64(1)
			}
		}},
		{"a time that is none", func(r []any) {
			if results, ok := r[len(r)-1].([]any); ok && len(results) > 0 {
				results[len(results)-1] = []any{[]byte("soon")}
				if len(r) < 4 {
					r[len(r)-1] = "soon"
				}
			}
		}},
		{"GET is a number", func(r []any) {
			for i := range r {
				if results, ok := r[i].([]any); ok && len(results) > 3 {
					results[3], results[1] = int64(1), int64(0)
				}
			}
			if len(r) == 3 {
				r[1] = int64(1)
			}
		}},
	} {
		raw.plant("locker:k", "t", -time.Second)
		l := New(editedPool(t, srv.Addr, nonsense.edit))
		ok, err := l.Acquire(background, "k", "t", time.Minute)
		assert.Error(t, err, nonsense.name)
		assert.False(t, ok, nonsense.name)
		assert.Equal(t, "t", raw.value("locker:k").token)
	}
}

// redigo panics on an impossible length, which is an error like any other bad reply.
func TestHugeLength(t *testing.T) {
	t.Parallel()
	srv, _, raw := newServer(t)
	w, pool := newWire(t, srv.Addr)
	l := New(pool)
	isOK(t)(l.Acquire(background, "k", "t", time.Minute))
	huge := []byte("$4611686018427387904\r\n")
	w.onReceived(func(string) error { return replaced(huge) })
	for name, run := range operations(l, "k", "t") {
		ok, err := run(background)
		assert.ErrorContains(t, err, "panic", name)
		assert.False(t, ok)
	}
	w.quiet()
	assert.Zero(t, pool.IdleCount(), "a broken connection went back to the pool")
	assert.Equal(t, "t", raw.value("locker:k").token)
	isOK(t)(l.Release(background, "k", "t"))
}

// Requests that were sent before a connection broke are not sent again when it goes back to the pool.
func TestBrokenWrite(t *testing.T) {
	t.Parallel()
	srv, _, raw := newServer(t)
	w, pool := newWire(t, srv.Addr)
	l := New(pool)
	isOK(t)(l.Acquire(background, "warm", "t", time.Minute))
	broken := errors.New("broken")
	w.refuse.Store(&broken)
	ok, err := l.Acquire(background, "k", "t", time.Minute)
	assert.ErrorIs(t, err, broken)
	assert.False(t, ok)
	w.refuse.Store(nil)
	assert.EqualValues(t, 0, raw.do("EXISTS", "locker:k"))
	assert.Zero(t, pool.IdleCount())
	isOK(t)(l.Acquire(background, "k", "t", time.Minute))
}
