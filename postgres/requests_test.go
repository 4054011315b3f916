package postgres

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// counted is a connection that counts what is written: pgx writes each request in one piece.
type counted struct {
	net.Conn
	writes *atomic.Int64
}

func (c counted) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}

// newCounted returns a pool of one connection, whose requests are counted.
func newCounted(t *testing.T, addr string, writes *atomic.Int64) *pgxpool.Pool {
	t.Helper()
	config := newPool(t, addr, "pool_max_conns", "1").Config()
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return counted{conn, writes}, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// Each operation takes one request, once its statement is prepared. A refused Extend or Release takes
// two, and so does one beside waiters of other processes only.
func TestRequests(t *testing.T) {
	t.Parallel()
	var writes atomic.Int64
	addr := newServer(t).Addr
	l, ctx := New(newCounted(t, addr, &writes)), t.Context()
	acquire(t, l, "held", "other", time.Hour)
	acquire(t, l, "waited for", "t", time.Hour)
	waitCtx, leave := context.WithCancel(ctx)
	waiting := waits(waitCtx, t, New(newPool(t, addr)), "waited for", "waiter", time.Hour)
	defer func() { leave(); <-waiting }()
	want := func(want bool) func(bool, error) {
		return func(ok bool, err error) {
			t.Helper()
			require.NoError(t, err)
			require.Equal(t, want, ok)
		}
	}
	operations := []struct {
		name string
		do   func()
	}{
		{"acquire", func() { want(true)(l.Acquire(ctx, "k", "t", time.Minute)) }},
		{"acquire again", func() { want(true)(l.Acquire(ctx, "k", "t", time.Minute)) }},
		{"be refused", func() { want(false)(l.Acquire(ctx, "held", "t", time.Minute)) }},
		{"extend", func() { want(true)(l.Extend(ctx, "k", "t", time.Minute)) }},
		{"extend, refused", func() { want(false)(l.Extend(ctx, "held", "t", time.Minute)) }},
		{"release, refused", func() { want(false)(l.Release(ctx, "held", "t")) }},
		{"extend, others wait", func() { want(true)(l.Extend(ctx, "waited for", "t", time.Hour)) }},
		{"fence", func() { _, ok, err := l.Fence(ctx, "k", "t"); want(true)(ok, err) }},
		{"inspect", func() { _, err := l.Inspect(ctx, "k"); require.NoError(t, err) }},
		{"release", func() { want(true)(l.Release(ctx, "k", "t")) }},
		{"release again", func() { want(false)(l.Release(ctx, "k", "t")) }},
	}
	for round := range 3 {
		for _, o := range operations {
			before := writes.Load()
			o.do()
			if round > 1 {
				want := 1
				switch o.name {
				case "extend, refused", "release, refused", "extend, others wait":
					want = 2
				case "release again": // the queue of a lock that is free may have to be served
					want = 2
				}
				assert.EqualValues(t, want, writes.Load()-before, o.name)
			}
		}
	}
}

// A turn in the queue takes two requests: one for a place, and the release before it.
func TestRequestsOfATurn(t *testing.T) {
	t.Parallel()
	addr := newServer(t).Addr
	var writes atomic.Int64
	l := New(newCounted(t, addr, &writes))
	other := New(newPool(t, addr))
	ctx, cancel := context.WithCancel(t.Context())
	acquire(t, other, "busy", "a", time.Hour)
	waiting := waits(ctx, t, l, "busy", "b", time.Hour) // so the Locker listens
	least := int64(99)
	for range 10 {
		acquire(t, other, "k", "a", time.Hour)
		before := writes.Load()
		done := make(chan waited, 1)
		go func() {
			deadline, err := l.Wait(ctx, "k", "b", time.Hour)
			done <- waited{deadline, err}
		}()
		require.Eventually(t, func() bool {
			info, err := other.Inspect(ctx, "k")
			return err == nil && info.Waiters == 1
		}, long, time.Millisecond)
		release(t, other, "k", "a")
		served(t, done)
		least = min(least, writes.Load()-before)
		release(t, l, "k", "b")
	}
	require.EqualValues(t, 1, least, "beside the release")
	cancel()
	require.ErrorIs(t, (<-waiting).err, context.Canceled)
}
