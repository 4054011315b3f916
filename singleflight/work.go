package singleflight

// work is what a Loader has in progress for a key. Loader.mu guards it.
type work[V any] struct {
	users      int       // calls of the source, stores and refreshes; the work is dropped when there are none
	forgets    int       // how many times Forget was called
	store      *store[V] // in progress; nil: none
	refreshing bool      // the stale value is being refreshed here, or was elsewhere a moment ago
}

// beginLocked returns the work of key, until endLocked. The caller of both holds l.mu.
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
