package locker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// inspected is a fake with an Inspector.
type inspected struct {
	fake
	info locker.Info
	err  error
}

func (i *inspected) Inspect(context.Context, string) (locker.Info, error) { return i.info, i.err }

func TestBreak(t *testing.T) {
	l, ctx := memory.New(), t.Context()
	holder, err := locker.Lock(ctx, l, "k", time.Hour)
	require.NoError(t, err)
	waited := make(chan error, 1)
	go func() {
		next, err := locker.Lock(ctx, l, "k", time.Hour)
		if err == nil {
			err = next.Unlock(ctx)
		}
		waited <- err
	}()
	require.Eventually(t, func() bool {
		info, err := l.Inspect(ctx, "k")
		return assert.NoError(t, err) && info.Waiters == 1
	}, 20*time.Second, time.Millisecond)

	info, err := locker.Break(ctx, l, "k")
	require.NoError(t, err)
	assert.Equal(t, "k", info.Key)
	assert.Equal(t, holder.Token(), info.Token)
	assert.Equal(t, 1, info.Waiters)
	assert.Greater(t, info.TTL, 59*time.Minute)
	require.NoError(t, <-waited, "the lock goes to the next in the queue")
	assert.ErrorIs(t, holder.Extend(ctx, time.Hour), locker.ErrNotHeld)
	assert.ErrorIs(t, holder.Unlock(ctx), locker.ErrNotHeld)

	info, err = locker.Break(ctx, l, "k")
	assert.EqualError(t, err, `locker: break "k": the lock is not held`)
	assert.ErrorIs(t, err, locker.ErrNotHeld)
	assert.Equal(t, locker.Info{Key: "k"}, info)
}

// The holder is another one when the release arrives.
func TestBreakMissesTheHolder(t *testing.T) {
	found := locker.Info{Key: "k", Token: "gone", TTL: time.Second, Waiters: -1}
	l := &inspected{info: found}
	lease, err := locker.Lock(t.Context(), l, "k", time.Hour)
	require.NoError(t, err)
	info, err := locker.Break(t.Context(), l, "k")
	assert.ErrorIs(t, err, locker.ErrNotHeld)
	assert.Equal(t, found, info)
	assert.NoError(t, lease.Unlock(t.Context()), "another's lock is left alone")
}

func TestBreakFails(t *testing.T) {
	ctx := t.Context()
	for name, c := range map[string]struct {
		l    locker.Locker
		key  string
		want error
		text string
	}{
		"nil":          {nil, "k", nil, `locker: break "k": nil Locker`},
		"no inspector": {&fake{}, "k", errors.ErrUnsupported, `"k": *locker_test.fake does not report holders: `},
		"empty key":    {memory.New(), "", locker.ErrInvalidKey, `locker: break "": invalid key`},
		"long key":     {memory.New(), strings.Repeat("k", 1025), locker.ErrInvalidKey, "1025 bytes"},
		"backend":      {&inspected{err: errBackend}, "k", errBackend, `"k": backend down`},
	} {
		_, err := locker.Break(ctx, c.l, c.key)
		require.Error(t, err, name)
		assert.ErrorContains(t, err, c.text, name)
		if c.want != nil {
			assert.ErrorIs(t, err, c.want, name)
		}
	}

	l := &inspected{info: locker.Info{Key: "k", Token: "t"}}
	l.onRelease = func(context.Context, string) (bool, error) { return false, errBackend }
	info, err := locker.Break(ctx, l, "k")
	assert.ErrorIs(t, err, errBackend)
	assert.NotErrorIs(t, err, locker.ErrNotHeld)
	assert.Equal(t, "t", info.Token)

	dead, cancel := context.WithCancel(ctx)
	cancel()
	_, err = locker.Break(dead, memory.New(), "k")
	assert.ErrorIs(t, err, context.Canceled)
}

// Which locks are held, by whom, and how to take one away from a holder that hangs.
func ExampleBreak() {
	ctx := context.Background()
	l := memory.New()
	lease, _ := locker.Lock(ctx, l, "invoice/42", time.Minute, locker.WithToken("host-7"))

	for info, err := range l.List(ctx, "invoice/") {
		fmt.Println(info.Key, info.Token, info.Waiters, err)
	}
	info, err := locker.Break(ctx, l, "invoice/42")
	fmt.Println(info.Token, err)
	fmt.Println(lease.Unlock(ctx))
	// Output:
	// invoice/42 host-7 0 <nil>
	// host-7 <nil>
	// locker: unlock "invoice/42": the lock is not held: the backend refused its token
}
