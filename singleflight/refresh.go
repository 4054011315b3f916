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

// refresh loads key in the background, unless this process or another one is doing so, or this one is
// refreshing as many keys as it may: then a later miss starts it.
func (l *Loader[V]) refresh(ctx context.Context, key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.work.get(key); l.refreshes >= l.maxRefreshes || w != nil && w.refreshing {
		return
	}
	w := l.beginLocked(key)
	w.refreshing = true
	l.refreshes++
	end := sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.refreshes--
	})
	over := sync.OnceFunc(func() {
		end()
		l.mu.Lock()
		defer l.mu.Unlock()
		w.refreshing = false
		l.endLocked(key, w)
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer cancel()
		rest := time.Duration(0)
		defer func() {
			if rest == 0 {
				over()
				return
			}
			end()
			time.AfterFunc(rest, over)
		}()
		// A source that never returns must not be the last.
		defer time.AfterFunc(l.maxHold, func() { cancel(); over() }).Stop()
		lease, err := l.tryLock(ctx, key)
		if errors.Is(err, locker.ErrHeld) {
			rest = refreshRest
			return
		}
		// The callers have been served and have no use for the error.
		_, _ = l.loadWithLock(ctx, key, lease, err)
	}()
}
