package singleflight

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/leasectx"
)

// refreshContext is the context of a refresh. No caller waits for that, so it may wait for a flight that
// one of them is within. It must not wait for itself: the flight that it is within stands for it.
type refreshContext[V any] struct {
	context.Context
	within *flight[V]
}

// Value implements [context.Context].
func (r *refreshContext[V]) Value(key any) any {
	if key == any(r.within.group) {
		return r.within
	}
	if _, ok := key.(grouping); ok {
		return nil
	}
	return r.Context.Value(key)
}

// refreshRest is how long a process leaves a key alone while another process refreshes its stale
// value.
const refreshRest = 100 * time.Millisecond

// refresh loads key in the background, unless that is being done, here or in another process, or
// this process refreshes as many keys as it may. Then a later miss starts it.
// afterFailure is how long it then leaves the key alone if the refresh fails.
func (l *Loader[V]) refresh(ctx context.Context, key string, afterFailure time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.work.get(key); l.refreshes >= l.maxRefreshes || w != nil && w.refreshing {
		return
	}
	if l.lifetime.closing.Load() {
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
	within := &flight[V]{group: &l.group, key: key, first: context.Background()}
	// No caller waits for the refresh, so it may wait for a lock that one of them holds.
	ctx, cancel := context.WithCancel(&refreshContext[V]{leasectx.Hide(context.WithoutCancel(ctx)), within})
	e := &background{cancel}
	go func() {
		defer cancel()
		defer within.setFinished()
		rest := time.Duration(0)
		defer func() {
			if rest == 0 {
				over()
				return
			}
			end()
			time.AfterFunc(rest, over)
		}()
		// A source that never returns must not prevent the next refresh.
		defer time.AfterFunc(l.maxHold, func() { cancel(); over() }).Stop()
		if !l.lifetime.begin(e) {
			return
		}
		defer l.lifetime.end(e)
		began := time.Now()
		lease, err := l.tryLock(ctx, key)
		if errors.Is(err, locker.ErrHeld) {
			rest = refreshRest
			return
		}
		t, err := l.withLock(ctx, key, time.Time{}, lease, err)
		if err == nil {
			_, err = l.loadOn(ctx, key, nil, t)
		}
		if err != nil { // for the observer alone: the callers have been served
			rest = afterFailure
			l.observeWork(ctx, RefreshFailed, key, began, err)
		} else {
			l.observeWork(ctx, Refreshed, key, began, nil)
		}
	}()
}
