package redigo

import (
	"context"
	"testing"
	"time"

	"github.com/golockers/locker/conformance"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/window"
	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCounterConformance(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	admin := newPool(t, addr)
	conformance.RunCounter(t, conformance.CounterConfig{
		Addr: addr,
		New:  func(tb testing.TB, addr string) window.Counter { return New(newPool(tb, addr)) },
		Eternal: func(ctx context.Context) (n int, err error) {
			const count = `
local n = 0
for _, key in ipairs(redis.call('KEYS', '*')) do
	if redis.call('PTTL', key) == -1 then
		n = n + 1
	end
end
return n`
			conn, err := admin.GetContext(ctx)
			if err != nil {
				return 0, err
			}
			defer conn.Close()
			return redis.Int(conn.Do("EVAL", count, 0))
		},
	})
}

// A count that was made for another window than the server is in is moved.
func TestCounterMoves(t *testing.T) {
	t.Parallel()
	pool := newPool(t, testserver.Redis(t).Addr)
	l := New(pool)
	ctx := t.Context()
	for _, off := range []time.Duration{-3 * time.Hour, -time.Hour, time.Hour, 3 * time.Hour} {
		first, err := l.Count(ctx, "k", 1, time.Hour)
		require.NoError(t, err)
		l.clock.ahead.Add(off.Microseconds())
		c, err := l.Count(ctx, "k", 1, time.Hour)
		require.NoError(t, err)
		if c.Left > first.Left {
			t.Skip("the hour has ended")
		}
		assert.Equal(t, first.Current+1, c.Current)
		assert.Zero(t, c.Previous)
	}
}

func TestCounterWithClientClock(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	conformance.RunCounter(t, conformance.CounterConfig{
		Addr: addr,
		New:  func(tb testing.TB, addr string) window.Counter { return New(newPool(tb, addr), WithClientClock()) },
		Skip: map[string]string{
			"clock/server": "it has the client's clock",
			"fault/paused": "a request that arrives late counts in the window in which it was sent",
		},
	})
}

func TestCounterOfNil(t *testing.T) {
	_, err := New(nil).Count(t.Context(), "k", 1, time.Second)
	assert.EqualError(t, err, "redigo: nil pool")
}
