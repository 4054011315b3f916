package redigo

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
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestInspect(t *testing.T) {
	t.Parallel()
	srv, other, raw := newServer(t)
	w, pool := newWire(t, srv.Addr)
	l := New(pool)
	inspect := func() locker.Info {
		t.Helper()
		info, err := l.Inspect(background, "k")
		require.NoError(t, err)
		return info
	}
	free := locker.Info{Key: "k", Waiters: -1}
	assert.Equal(t, free, inspect())
	assert.Equal(t, []string{"GET TIME"}, w.requests())
	for _, token := range []string{"t", "1:t", "\x00\xff"} {
		isOK(t)(other.Acquire(background, "k", token, time.Minute))
		info := inspect()
		assert.Equal(t, locker.Info{Key: "k", Token: token, TTL: info.TTL, Waiters: -1}, info)
		assert.LessOrEqual(t, info.TTL, time.Minute+late)
		assert.Greater(t, info.TTL, 30*time.Second)
		broken, err := locker.Break(background, l, "k")
		require.NoError(t, err)
		assert.Equal(t, token, broken.Token)
		assert.Equal(t, free, inspect())
	}
	raw.plant("locker:k", "t", -time.Millisecond)
	assert.Equal(t, free, inspect(), "it has expired")
	_, err := locker.Break(background, l, "k")
	assert.ErrorIs(t, err, locker.ErrNotHeld)
	raw.do("SET", "locker:k", "9223372036854775807:t")
	assert.Positive(t, inspect().TTL)

	for value, text := range map[string]string{
		"by hand": "by hand", fmt.Sprint(raw.now()/1e6 + 3600): "a plain time, ",
	} {
		raw.do("SET", "locker:k", value)
		info, err := l.Inspect(background, "k")
		assert.ErrorIs(t, err, errForeign)
		assert.ErrorContains(t, err, text)
		assert.Equal(t, locker.Info{Key: "k"}, info)
	}
	raw.do("SET", "locker:k", raw.now()/1e6-3600)
	assert.Equal(t, free, inspect(), "a plain time that has passed")
	raw.do("DEL", "locker:k")
	raw.do("SADD", "locker:k", "t")
	_, err = l.Inspect(background, "k")
	assert.ErrorIs(t, err, errForeign)

	_, err = New(nil).Inspect(background, "k")
	assert.EqualError(t, err, "redigo: nil pool")
}

func TestList(t *testing.T) {
	t.Parallel()
	_, l, raw := newServer(t)
	list := func(prefix string) (held []string, errs map[string]error) {
		t.Helper()
		errs = map[string]error{}
		for info, err := range l.List(background, prefix) {
			if err != nil {
				errs[info.Key] = err
				continue
			}
			require.Equal(t, "t", info.Token)
			require.Positive(t, info.TTL)
			held = append(held, info.Key)
		}
		slices.Sort(held)
		return held, errs
	}
	held, errs := list("")
	assert.Empty(t, held)
	assert.Empty(t, errs)

	const many = 1200 // more than a page
	var want []string
	for i := range many {
		key := fmt.Sprint("many/", i)
		raw.plant("locker:"+key, "t", time.Hour)
		want = append(want, key)
	}
	slices.Sort(want)
	held, errs = list("many/")
	assert.Equal(t, want, held)
	assert.Empty(t, errs)

	special := []string{"a*b", "a?b", "a[b]", `a\b`, "aXb", "ab"}
	for _, key := range special {
		isOK(t)(l.Acquire(background, key, "t", time.Hour))
	}
	raw.plant("locker:a expired", "t", -time.Second)
	mint(t, l, "ab", "t")
	for _, prefix := range append(special, "a", "none") {
		var want []string
		for _, key := range special {
			if strings.HasPrefix(key, prefix) {
				want = append(want, key)
			}
		}
		slices.Sort(want)
		held, errs = list(prefix)
		assert.Equal(t, want, held, prefix)
		assert.Empty(t, errs, prefix)
	}

	raw.do("SET", "locker:x/hand", "by hand")
	raw.do("SADD", "locker:x/set", "t")
	isOK(t)(l.Acquire(background, "x/ours", "t", time.Hour))
	held, errs = list("x/")
	assert.Equal(t, []string{"x/ours"}, held)
	assert.Equal(t, []string{"x/hand", "x/set"}, slices.Sorted(maps.Keys(errs)))
	for _, err := range errs {
		assert.ErrorIs(t, err, errForeign)
	}

	broken := 0
	for info, err := range l.List(background, "many/") {
		require.NoError(t, err)
		_, err = locker.Break(background, l, info.Key)
		require.NoError(t, err)
		if broken++; broken == 7 {
			break
		}
	}
	held, _ = list("many/")
	assert.Len(t, held, many-7)
}

func TestListFails(t *testing.T) {
	t.Parallel()
	fails := func(ctx context.Context, l *Locker, midway func()) error {
		t.Helper()
		var last error
		for info, err := range l.List(ctx, "") {
			require.NoError(t, last, "the iteration goes on")
			if last = err; err != nil {
				require.Zero(t, info)
			} else {
				midway()
			}
		}
		require.Error(t, last)
		return last
	}
	none := func() { t.Error("a lock") }
	srv, l, raw := newServer(t)
	for i := range 100 {
		raw.plant(fmt.Sprint("locker:", i), "t", time.Hour)
	}
	ctx, cancel := context.WithCancel(background)
	assert.ErrorIs(t, fails(ctx, l, cancel), context.Canceled)
	assert.ErrorIs(t, fails(ctx, l, none), context.Canceled)
	assert.EqualError(t, fails(background, New(nil), none), "redigo: nil pool")
	_, old, _ := newServer(t, "--rename-command", "SCAN", "")
	assert.ErrorIs(t, fails(background, old, none), errors.ErrUnsupported)
	fails(background, l, srv.Stop)
	fails(background, l, none)
	other, _, _ := newServer(t)
	odd := New(editedPool(t, other.Addr, func(replies []any) {
		if len(replies) > 0 {
			replies[0] = "odd"
		}
	}))
	assert.ErrorContains(t, fails(background, odd, none), "SCAN: unexpected reply")
}

// A replica reports what it knows, but Break changes nothing there.
func TestInspectOnReplica(t *testing.T) {
	t.Parallel()
	master := testserver.Redis(t)
	host, port, err := net.SplitHostPort(master.Addr)
	require.NoError(t, err)
	l := New(newPool(t, testserver.Redis(t, "--replicaof", host+" "+port).Addr))
	isOK(t)(New(newPool(t, master.Addr)).Acquire(background, "k", "t", time.Hour))
	require.Eventually(t, func() bool {
		info, err := l.Inspect(background, "k")
		return err == nil && info.Token == "t"
	}, 30*time.Second, 10*time.Millisecond)
	for info, err := range l.List(background, "") {
		require.NoError(t, err)
		assert.Equal(t, "k", info.Key)
	}
	_, err = locker.Break(background, l, "k")
	assert.ErrorContains(t, err, "READONLY")
}
