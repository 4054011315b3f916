package cache_test

import (
	"testing"
	"time"

	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/singleflight/slots"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// This file has how long the caches keep what a load needs.

// A load that begins beside a stale value does not shorten its life.
func TestLoadKeepsStaleValue(t *testing.T) {
	onEach(t, config{TTL: 10 * time.Millisecond, Stale: time.Hour}, func(t *testing.T, c valueCache, _ *testserver.Server) {
		require.NoError(t, c.Set(t.Context(), "k", "old"))
		time.Sleep(50 * time.Millisecond)
		s := &slots.Slot[string]{Key: "k", Hold: time.Second}
		require.NoError(t, c.(slots.Keeper[string]).Look(t.Context(), s))
		require.NoError(t, s.Err)
		require.NotZero(t, s.Version)
		time.Sleep(5 * time.Second)
		v, ok, err := c.Stale(t.Context(), "k")
		require.NoError(t, err)
		assert.True(t, ok, "the stale value is gone")
		assert.Equal(t, "old", v)
	})
}

// A load that joins another one lasts for its own Hold.
func TestLoadIsHeldForTheLongest(t *testing.T) {
	onEach(t, config{TTL: time.Hour}, func(t *testing.T, c valueCache, _ *testserver.Server) {
		k := c.(slots.Keeper[string])
		first := &slots.Slot[string]{Key: "k", Hold: time.Second}
		require.NoError(t, k.Look(t.Context(), first))
		second := &slots.Slot[string]{Key: "k", Hold: time.Minute}
		require.NoError(t, k.Look(t.Context(), second))
		require.Equal(t, first.Version, second.Version)
		time.Sleep(5 * time.Second)
		second.Value = "v"
		require.NoError(t, k.Put(t.Context(), second))
		assert.True(t, second.Stored)
	})
}
