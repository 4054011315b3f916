package cache_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cache"
	"github.com/golockers/locker/singleflight/slots"
)

// A Cache without a Store returns an error from every method.
func TestCacheWithoutStore(t *testing.T) {
	ctx := t.Context()
	for want, c := range map[string]*cache.Cache[string]{
		"cache": new(cache.Cache[string]),
		"mine":  cache.New("mine", nil, cache.Config[string]{TTL: time.Hour}),
	} {
		_, _, err := c.Get(ctx, "k")
		require.EqualError(t, err, want+`: cache get "k": nil Store`)
		require.ErrorIs(t, err, locker.ErrInvalidLocker)
		_, _, err = c.Stale(ctx, "k")
		assert.ErrorContains(t, err, "nil Store")
		assert.ErrorContains(t, c.Set(ctx, "k", "v"), "nil Store")
		_, err = c.Add(ctx, "k", "v")
		assert.ErrorContains(t, err, "nil Store")
		assert.ErrorContains(t, c.Delete(ctx, "k"), "nil Store")
		s := &slots.Slot[string]{Key: "k"}
		assert.ErrorContains(t, c.Look(ctx, s), "nil Store")
		require.NoError(t, c.Put(ctx, s))
		assert.ErrorContains(t, s.Err, "nil Store")
	}
}

// The longest times, too, are shortened at random.
func TestJitterOfLongTimes(t *testing.T) {
	c := cache.Config[string]{TTL: math.MaxInt64, Jitter: 1}
	const century = 100 * 365 * 24 * time.Hour
	shortest, longest := time.Duration(math.MaxInt64), time.Duration(0)
	for range 1000 {
		d := c.Lifetime("v")
		shortest, longest = min(shortest, d), max(longest, d)
	}
	assert.Less(t, shortest, century/2)
	assert.Greater(t, longest, century/2)
	assert.LessOrEqual(t, longest, century)
}
