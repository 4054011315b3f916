package singleflight

// table is a map whose keys come and go, and which frees its memory after a peak. A key with the
// zero value is not in it. The zero table is empty and ready.
type table[K, T comparable] struct {
	m    map[K]T
	peak int // the most keys since m was made
}

// smallTable is a number of keys whose memory is not worth freeing.
const smallTable = 1024

func (t *table[K, T]) get(key K) T { return t.m[key] }

func (t *table[K, T]) set(key K, v T) {
	var zero T
	if v == zero {
		delete(t.m, key)
		t.shrink()
		return
	}
	if t.m == nil {
		t.m = make(map[K]T)
	}
	t.m[key] = v
	t.peak = max(t.peak, len(t.m))
}

// shrink copies the keys to a new map when few of many are left. It copies only after many
// deletions, so it adds a constant time to each, on average.
func (t *table[K, T]) shrink() {
	if t.peak <= smallTable || len(t.m) > t.peak/8 {
		return
	}
	m := make(map[K]T, len(t.m))
	for k, v := range t.m {
		m[k] = v
	}
	t.m, t.peak = m, len(m)
}
