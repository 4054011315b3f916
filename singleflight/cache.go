package singleflight

import (
	"context"
)

// This file has what the user of a Loader brings as a cache.

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
