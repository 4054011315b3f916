//go:build linux

package belief

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOverlaps(t *testing.T) {
	b := func(key, holder uint32, from, until time.Duration) Interval {
		return Interval{Key: key, Holder: holder, From: from, Until: until}
	}
	for name, c := range map[string]struct {
		beliefs []Interval
		want    []Overlap
	}{
		"none":                {},
		"one after the other": {beliefs: []Interval{b(1, 2, 10, 20), b(1, 1, 0, 10)}},
		"other keys":          {beliefs: []Interval{b(1, 1, 0, 10), b(2, 2, 0, 10)}},
		"one that is over":    {beliefs: []Interval{b(1, 1, 0, 10), b(1, 2, 5, 5), b(1, 3, 6, 4)}},
		"the same holder":     {[]Interval{b(1, 1, 0, 10), b(1, 1, 9, 20)}, []Overlap{{b(1, 1, 0, 10), b(1, 1, 9, 20)}}},
		"the same moment":     {[]Interval{b(1, 1, 0, 10), b(1, 2, 0, 5)}, []Overlap{{b(1, 1, 0, 10), b(1, 2, 0, 5)}}},
		"one that encloses more": {
			[]Interval{b(1, 1, 0, 9), b(1, 2, 1, 2), b(1, 3, 8, 20)},
			[]Overlap{{b(1, 1, 0, 9), b(1, 2, 1, 2)}, {b(1, 1, 0, 9), b(1, 3, 8, 20)}},
		},
	} {
		assert.Equal(t, c.want, Overlaps(c.beliefs), name)
	}
	assert.EqualValues(t, 1, Overlap{b(1, 1, 0, 9), b(1, 2, 1, 2)}.For())
}

func TestMost(t *testing.T) {
	b := func(key, holder uint32, from, until time.Duration) Interval {
		return Interval{Key: key, Holder: holder, From: from, Until: until}
	}
	for name, c := range map[string]struct {
		beliefs []Interval
		most    int
		last    Interval
	}{
		"none":                {},
		"one after the other": {[]Interval{b(1, 2, 10, 20), b(1, 1, 0, 10)}, 1, b(1, 1, 0, 10)},
		"other keys":          {[]Interval{b(2, 1, 0, 10), b(1, 2, 0, 10)}, 1, b(1, 2, 0, 10)},
		"one that is over":    {[]Interval{b(1, 1, 0, 10), b(1, 2, 5, 5), b(1, 3, 6, 4)}, 1, b(1, 1, 0, 10)},
		"two of three": {
			[]Interval{b(1, 1, 0, 9), b(1, 2, 1, 3), b(1, 3, 3, 20)}, 2, b(1, 2, 1, 3),
		},
		"three": {
			[]Interval{b(1, 1, 0, 9), b(2, 2, 0, 9), b(1, 1, 1, 4), b(1, 3, 3, 20)}, 3, b(1, 3, 3, 20),
		},
	} {
		most, last := Most(c.beliefs)
		assert.Equal(t, c.most, most, name)
		assert.Equal(t, c.last, last, name)
	}
}

func TestClock(t *testing.T) {
	before, at, after := Clock(), At(time.Now()), Clock()
	assert.LessOrEqual(t, before, at+time.Millisecond) // early by what the base is uncertain
	assert.LessOrEqual(t, at, after)
	assert.Equal(t, time.Hour, At(time.Now().Add(time.Hour)).Round(time.Hour)-At(time.Now()).Round(time.Hour))
}

func TestLedger(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	require.NoError(t, Create(path, 2, 3))
	a, err := Open(path, 2)
	require.NoError(t, err)
	b, err := Open(path, 2)
	require.NoError(t, err)
	a.Word(0).Store(1)
	b.Word(1).Store(2)
	first, second := Interval{Key: 0, Holder: 7, From: 1, Until: 2}, Interval{Key: 5, Holder: 8, From: 3, Until: 4}
	claim := a.Add(first)
	b.Add(second)
	claim.Until(9)
	first.Until = 9
	require.NoError(t, a.Close()) // as if its process had ended
	assert.Equal(t, []Interval{first, second}, b.Beliefs())
	assert.EqualValues(t, 1, b.Word(0).Load())
	assert.EqualValues(t, 2, b.Word(1).Load())
	b.Add(second)
	assert.Panics(t, func() { b.Add(second) })
	assert.Len(t, b.Beliefs(), 3)
	require.NoError(t, b.Close())
}
