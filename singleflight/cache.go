package singleflight

import (
	"context"
	"fmt"
	"time"

	"github.com/golockers/locker/internal/lazyctx"
)

// Cache is what a [Loader] fills. It is shared by the fleet, such as a Redis or memcached server,
// and safe for concurrent use. It decides how long a value lasts.
//
// The contexts of its methods end after [WithBackendTimeout] at the latest, or sooner if the
// callers have little time. A method should return when its context has ended. If one does not,
// callers still return when their own contexts end, and later ones are served without the cache.
type Cache[V any] interface {
	// Get returns the value of key. ok is false if there is none that may be used, which is not
	// an error.
	Get(ctx context.Context, key string) (v V, ok bool, err error)

	// Set stores the value of key, replacing any other. Its error costs the fleet further loads
	// but reaches no caller, only the observer of WithLoadObserver.
	Set(ctx context.Context, key string, v V) error
}

// Adder is a [Cache] that can store a value only if there is none. The Loader does that with a
// value that was loaded without the lock, or whose lock was lost, since another process may have
// stored a newer one.
type Adder[V any] interface {
	// Add stores the value of key if Get would find none, as one atomic step, and reports whether
	// it did.
	Add(ctx context.Context, key string, v V) (added bool, err error)
}

// StaleCache is a [Cache] that keeps values for some time after Get has stopped returning them. The
// Loader returns such a value immediately, and one process of the fleet refreshes it in the
// background; see [WithMaxRefreshes].
//
// A refresh's error reaches no caller, only the observer of [WithLoadObserver]; the next miss
// starts another refresh. If the source panics during a refresh, the program ends, as it does for
// any goroutine.
type StaleCache[V any] interface {
	// Stale returns the last value of key, after Get has found none. ok is false if there is none
	// that may be used while it is refreshed.
	Stale(ctx context.Context, key string) (v V, ok bool, err error)
}

// read reads the cache, unless the value of key is outdated. After an error ok is false.
//
// It is most of a hit, which runs on a new goroutine. It must not be called at a depth at which
// the stack has to grow, which would cost more than everything else.
func (l *Loader[V]) read(ctx context.Context, key string) (v V, ok bool, err error) {
	if l.outdated.has(key) {
		return v, false, nil
	}
	if !l.cacheBreaker.allows(key) {
		return v, false, l.skipCache(ctx, key)
	}
	if l.refreshAhead > 0 && l.keeper != nil {
		return l.readAhead(ctx, key)
	}
	began := time.Now()
	r := l.request(ctx, began, &l.cacheBreaker)
	v, ok, err = l.cache.Get(r, key)
	if err != nil {
		v, err = l.notRead(r, key, began, err)
		return v, false, err
	}
	r.Cancel()
	l.cacheBreaker.succeeded(key, began)
	return v, ok, nil
}

// readStale returns the value of key that read no longer returns, if there is one, and starts a
// refresh.
func (l *Loader[V]) readStale(ctx context.Context, key string) (v V, ok bool, err error) {
	s, isStaleCache := l.cache.(StaleCache[V])
	if !isStaleCache || l.slotTTL > 0 || l.outdated.has(key) {
		return v, false, nil
	}
	if !l.cacheBreaker.allows(key) {
		return v, false, l.skipCache(ctx, key)
	}
	began := time.Now()
	r := l.request(ctx, began, &l.cacheBreaker)
	v, ok, err = s.Stale(r, key)
	if err != nil {
		v, err = l.notRead(r, key, began, err)
		return v, false, err
	}
	r.Cancel()
	l.cacheBreaker.succeeded(key, began)
	if ok {
		l.note(ctx, LoadStale, nil)
		l.refresh(ctx, key, 0)
	}
	return v, ok, nil
}

// notRead ends a request r to the cache that failed with err, and returns its error and no value.
func (l *Loader[V]) notRead(r *request, key string, began time.Time, err error) (zero V, _ error) {
	defer r.Cancel()
	if r.Err() != nil && time.Since(began) < l.cacheBreaker.patience() {
		return zero, err // it ended because its caller left, soon after it began
	}
	return zero, readError(l.cacheBreaker.failed(r, key, began, err))
}

func (l *Loader[V]) skipCache(ctx context.Context, key string) error {
	return readError(l.cacheBreaker.skip(key, func() { l.probeCache(ctx, key) }))
}

func readError(err error) error { return fmt.Errorf("read the cache: %w", err) }

// probeCache finds out whether the cache answers again.
func (l *Loader[V]) probeCache(ctx context.Context, key string) {
	began := time.Now()
	getCtx := lazyctx.WithoutCancel(ctx, began.Add(l.backendTimeout))
	defer getCtx.Cancel()
	err := recovered(key, func() error {
		_, _, err := l.cache.Get(getCtx, key)
		return err
	})
	if err != nil {
		if isNoAnswer(l.cacheBreaker.failed(getCtx, key, began, err)) {
			return
		}
	}
	l.cacheBreaker.succeeded(key, began)
}
