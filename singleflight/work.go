package singleflight

// work is what a Loader has in progress for a key. Loader.mu guards it.
type work[V any] struct {
	users      int       // calls of the source, stores and refreshes; without one the work is dropped
	forgets    int       // how often Forget was called
	store      *store[V] // in progress; nil: none
	refreshing bool      // the stale value is being refreshed, here or, a moment ago, elsewhere
}

// beginLocked returns the work of key, which endLocked gives back. The caller of both holds l.mu.
func (l *Loader[V]) beginLocked(key string) *work[V] {
	w := l.work.get(key)
	if w == nil {
		w = new(work[V])
		l.work.set(key, w)
	}
	w.users++
	return w
}

func (l *Loader[V]) endLocked(key string, w *work[V]) {
	w.users--
	if w.users == 0 {
		l.work.set(key, nil)
	}
}
