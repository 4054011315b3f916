package singleflight

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// A table does not keep the map that it had at a peak.
func TestTableAfterAPeak(t *testing.T) {
	const peak = 20_000
	var m table[string, int]
	for i := range peak {
		m.set(strconv.Itoa(i), i+1)
	}
	largest := m.peak
	require.Equal(t, peak, largest)
	for i := range peak - 10 {
		m.set(strconv.Itoa(i), 0)
		if m.peak > max(8*(len(m.m)+1), smallTable) {
			t.Fatalf("a map of %d keys is kept for %d", m.peak, len(m.m))
		}
	}
	require.LessOrEqual(t, m.peak, smallTable)
	require.Len(t, m.m, 10)
	for i := peak - 10; i < peak; i++ {
		require.Equal(t, i+1, m.get(strconv.Itoa(i)))
		m.set(strconv.Itoa(i), 0)
	}
	require.Empty(t, m.m)
}
