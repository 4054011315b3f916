package singleflight

// table is a map whose keys come and go, and which gives its memory back after a peak. A key that has the zero
// value is not in it. The zero table is empty and ready.
type table[T comparable] struct {
	m    map[string]T
	peak int // the most keys since m was made
}

// smallTable is a number of keys whose memory is not worth giving back.
const smallTable = 1024

func (t *table[T]) get(key string) T { return t.m[key] }

func (t *table[T]) set(key string, v T) {
	var zero T
	if v == zero {
		delete(t.m, key)
		t.shrink()
		return
	}
	if t.m == nil {
		t.m = make(map[string]T)
	}
	t.m[key] = v
	t.peak = max(t.peak, len(t.m))
}

// shrink copies the keys to a new map when few are left of many. It runs only after many deletions, so it
// adds a constant time to each, on average.
func (t *table[T]) shrink() {
	if t.peak <= smallTable || len(t.m) > t.peak/8 {
		return
	}
	m := make(map[string]T, len(t.m))
	for k, v := range t.m {
		m[k] = v
	}
	t.m, t.peak = m, len(m)
}
