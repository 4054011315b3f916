package postgres

import (
	"strings"
	"testing"
	"time"

	"github.com/golockers/locker/conformance"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/window"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCounterConformance(t *testing.T) {
	t.Parallel()
	addr := testserver.Postgres(t).Addr
	require.NoError(t, EnsureWindowSchema(t.Context(), newPool(t, addr)))
	conformance.RunCounter(t, conformance.CounterConfig{
		Addr: addr,
		New:  func(tb testing.TB, addr string) window.Counter { return New(newPool(tb, addr)) },
	})
}

// Rows of windows that are over are deleted, and no others. One whose clock was ahead becomes a row
// of the present window.
func TestCounterRows(t *testing.T) {
	t.Parallel()
	pool := newPool(t, testserver.Postgres(t).Addr)
	ctx := t.Context()
	opts := WithTable("public.My locks")
	require.NoError(t, EnsureWindowSchema(ctx, pool, opts))
	require.NoError(t, EnsureWindowSchema(ctx, pool, opts))
	l := New(pool, opts)
	for _, per := range []time.Duration{time.Millisecond, time.Hour} {
		_, err := l.Count(ctx, "k", 1, per)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool {
		n, err := l.sweepWindows(ctx)
		require.NoError(t, err)
		return n == 1
	}, long, time.Millisecond)
	c, err := l.Count(ctx, "k", 0, time.Hour)
	require.NoError(t, err)
	assert.EqualValues(t, 1, c.Current+c.Previous)

	_, err = pool.Exec(ctx, `UPDATE "My locks_windows" SET at = at + 36000000000`)
	require.NoError(t, err)
	c, err = l.Count(ctx, "k", 1, time.Hour)
	require.NoError(t, err)
	assert.EqualValues(t, 2, c.Current)
	assert.LessOrEqual(t, c.Left, time.Hour)
}

func TestCounterBadTables(t *testing.T) {
	t.Parallel()
	pool := newPool(t, testserver.Postgres(t).Addr)
	_, err := New(pool).Count(t.Context(), "k", 1, time.Second)
	assert.ErrorContains(t, err, "there is no table \"locker_locks_windows\"; call postgres.EnsureWindowSchema")
	tooLong := WithTable(strings.Repeat("x", 60))
	_, err = New(pool, tooLong).Count(t.Context(), "k", 1, time.Second)
	assert.ErrorContains(t, err, "is longer than 63 bytes")
	assert.ErrorContains(t, EnsureWindowSchema(t.Context(), pool, tooLong), "is longer than 63 bytes")
	assert.Empty(t, WindowSchema(tooLong))
	assert.Contains(t, WindowSchema(), `"locker_locks_windows"`)
	_, err = New(nil).Count(t.Context(), "k", 1, time.Second)
	assert.EqualError(t, err, "postgres: nil pool")
}
