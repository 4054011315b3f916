package singleflight

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/golockers/locker"
)

// refreshRest is how long a process leaves a key alone whose stale value another one refreshes.
const refreshRest = 100 * time.Millisecond

// work is what is under way for a key in this process. Loader.mu guards it.
type work struct {
	users      int  // calls of the source and refreshes; without one the work is dropped
	forgets    int  // how often Forget was called
	refreshing bool // whether the stale value is being refreshed, here or, a moment ago, elsewhere
}

// begin returns the work of key, which end gives back. The caller of both holds l.mu.
func (l *Loader[V]) begin(key string) *work {
	w := l.work[key]
	if w == nil {
		w = new(work)
		if l.work == nil {
			l.work = make(map[string]*work)
		}
		l.work[key] = w
	}
	w.users++
	return w
}

func (l *Loader[V]) end(key string, w *work) {
	w.users--
	if w.users == 0 {
		delete(l.work, key)
	}
}

// callSource calls the source. forgotten says that Forget was called meanwhile.
func (l *Loader[V]) callSource(ctx context.Context, key string) (v V, forgotten bool, err error) {
	l.mu.Lock()
	w := l.begin(key)
	forgets := w.forgets
	l.mu.Unlock()
	// Later callers must not wait for a source that never returns.
	stuck := time.AfterFunc(l.maxHold, func() { l.group.close(ctx) })
	defer func() {
		stuck.Stop()
		l.mu.Lock()
		defer l.mu.Unlock()
		forgotten = w.forgets != forgets
		l.end(key, w)
	}()
	v, err = l.source(ctx, key)
	return
}

// refresh loads key in the background, unless this process or another one is doing so.
func (l *Loader[V]) refresh(ctx context.Context, key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.work[key]; w != nil && w.refreshing {
		return
	}
	w := l.begin(key)
	w.refreshing = true
	over := sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		w.refreshing = false
		l.end(key, w)
	})
	ctx = context.WithoutCancel(ctx)
	go func() {
		defer over()
		defer time.AfterFunc(l.maxHold, over).Stop() // a source that never returns must not be the last
		lease, err := l.tryLock(ctx, key)
		if errors.Is(err, locker.ErrHeld) {
			time.Sleep(refreshRest)
			return
		}
		// Its callers have been served, and have no use for the error.
		_, _ = l.loadWithLock(ctx, key, lease, err)
	}()
}
