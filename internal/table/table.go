// Package table provides a map that gives its memory back after a peak, which Go's maps do not.
package table

import "maps"

// Table is a map. The zero value is ready.
type Table[K comparable, V any] struct {
	m    map[K]V
	peak int // the length that the map has memory for
}

// small is a length whose memory is not worth giving back.
const small = 64

// Get returns the value of k and whether it has one.
func (t *Table[K, V]) Get(k K) (V, bool) {
	v, ok := t.m[k]
	return v, ok
}

// Set gives k the value v.
func (t *Table[K, V]) Set(k K, v V) {
	if t.m == nil {
		t.m = make(map[K]V)
	}
	t.m[k] = v
	t.peak = max(t.peak, len(t.m))
}

// Delete removes k. It copies what is left to a smaller map when that is less than a quarter of the
// peak, so it takes a constant time on average.
func (t *Table[K, V]) Delete(k K) {
	delete(t.m, k)
	if n := len(t.m); t.peak > small && n < t.peak/4 {
		left := make(map[K]V, n)
		maps.Copy(left, t.m)
		t.m, t.peak = left, n
	}
}

// Len returns how many keys have a value.
func (t *Table[K, V]) Len() int { return len(t.m) }
