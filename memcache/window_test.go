package memcache

import (
	"context"
	"strings"
	"testing"
	"time"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker/conformance"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/window"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCounterConformance(t *testing.T) {
	t.Parallel()
	addr := testserver.Memcached(t).Addr
	conformance.RunCounter(t, conformance.CounterConfig{
		Addr: addr,
		New: func(tb testing.TB, addr string) window.Counter {
			client := gomemcache.New(addr)
			client.Timeout, client.MaxIdleConns = 3*time.Second, 16
			tb.Cleanup(func() { assert.NoError(tb, client.Close()) })
			return New(client)
		},
		Eternal: func(ctx context.Context) (int, error) { return eternal(ctx, addr) },
		Skip: map[string]string{
			"clock/server": "memcached does not tell the client its time",
			"fault/paused": "a request that arrives late counts in the window in which it was sent",
		},
	})
}

// eternal returns how many items of a server have no expiration.
func eternal(ctx context.Context, addr string) (n int, err error) {
	items, err := testserver.MemcachedItems(ctx, addr)
	for _, item := range items {
		if strings.Contains(item, " exp=-1 ") {
			n++
		}
	}
	return n, err
}

// The next process counts on where a decrement has left spaces, or an item was evicted.
func TestCounterTakesBack(t *testing.T) {
	t.Parallel()
	client := newClient(t, testserver.Memcached(t).Addr)
	l := New(client)
	ctx := t.Context()
	rule := window.Rule{Limit: 10, Per: window.MaxPer}
	_, counted, err := l.CountUnder(ctx, "k", 9, rule)
	require.NoError(t, err)
	assert.True(t, counted)
	c, counted, err := l.CountUnder(ctx, "k", 2, rule)
	require.NoError(t, err)
	assert.False(t, counted)
	assert.EqualValues(t, 9, c.Current)
	c, err = l.Count(ctx, "k", 0, rule.Per)
	require.NoError(t, err)
	assert.EqualValues(t, 9, c.Current)

	require.NoError(t, client.Set(&gomemcache.Item{Key: l.windowOf("k", rule.Per).item(0), Value: []byte("x")}))
	_, err = l.Count(ctx, "k", 0, rule.Per)
	require.ErrorContains(t, err, "is not a count: 1 bytes")
	_, err = l.Count(ctx, "k", 1, rule.Per)
	require.Error(t, err)
}

func TestCounterOfNil(t *testing.T) {
	_, err := New(nil).Count(t.Context(), "k", 1, time.Second)
	assert.EqualError(t, err, "memcache: nil client")
}
