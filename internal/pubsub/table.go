package pubsub

import "maps"

// table is a map that gives its memory back after a peak, which Go's maps do not. The zero value is
// ready.
type table[K comparable, V any] struct {
	m    map[K]V
	peak int // the length that the map has memory for
}

func (t *table[K, V]) get(k K) (V, bool) {
	v, ok := t.m[k]
	return v, ok
}

func (t *table[K, V]) set(k K, v V) {
	if t.m == nil {
		t.m = make(map[K]V)
	}
	t.m[k] = v
	t.peak = max(t.peak, len(t.m))
}

// delete may replace the map. A loop over the old one that calls delete still meets each entry that
// was not deleted.
func (t *table[K, V]) delete(k K) {
	delete(t.m, k)
	switch n := len(t.m); {
	case t.peak <= 64:
	case n == 0:
		t.clear()
	case n < t.peak/4:
		small := make(map[K]V, n)
		maps.Copy(small, t.m)
		t.m, t.peak = small, n
	}
}

func (t *table[K, V]) clear() { t.m, t.peak = nil, 0 }
