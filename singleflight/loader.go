package singleflight

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/golockers/locker"
)

// Cache is what a [Loader] fills. It is shared by the fleet, such as a Redis or memcached server, and safe
// for concurrent use. How long a value lasts is its own affair. The contexts that it is given end after two
// seconds at the latest; a client with shorter timeouts, or one that minds its context, is of advantage
// when the server hangs.
type Cache[V any] interface {
	// Get returns the value of key. ok is false when there is none that is to be used; that is no error.
	Get(ctx context.Context, key string) (v V, ok bool, err error)

	// Set stores the value of key, in place of one that may be there. An error costs the fleet another load
	// but no caller its value: a Cache whose errors somebody should know of reports them itself.
	Set(ctx context.Context, key string, v V) error
}

// Adder is a [Cache] that can store a value only if there is none. The Loader does that with what it loaded
// without holding the lock, or after losing it, when another process may have stored something newer.
type Adder[V any] interface {
	// Add stores the value of key if Get would find none, as one atomic step. added says whether it did.
	Add(ctx context.Context, key string, v V) (added bool, err error)
}

// Staler is a [Cache] that keeps values for some time after Get has ceased to return them. The Loader serves
// such a value at once, and has one process of the fleet refresh it in the background.
//
// An error of that refresh is not seen by anybody, the next miss begins another. A source that panics in
// it ends the program, as in any goroutine.
type Staler[V any] interface {
	// Stale returns the last value of key, after Get has found none. ok is false when there is none that may
	// be served while it is refreshed.
	Stale(ctx context.Context, key string) (v V, ok bool, err error)
}

// Loader fills a cache: of all callers in the fleet who miss a key at the same time, one loads it from the
// source, and the others get what it stored. It keeps nothing for a key that nobody is loading.
//
// The order is: join a load that is under way in this process; read the cache; try the lock; read the cache
// again under the lock; call the source; store the value; release the lock; hand the value to all who wait
// in this process. Whoever does not get the lock waits for the value to appear in the cache, woken by the
// release where the Locker is a [locker.Watcher].
//
// Create one with [NewLoader].
type Loader[V any] struct {
	locker locker.Locker
	cache  Cache[V]
	source func(ctx context.Context, key string) (V, error)
	loaderOptions

	group Group[V]

	mu   sync.Mutex
	work map[string]*work // by key; only while something is under way

	lockOutage, cacheOutage outage
}

type loaderOptions struct {
	lockTTL, maxHold, maxWait time.Duration
	failClosed                bool
}

// LoaderOption adjusts [NewLoader].
type LoaderOption func(*loaderOptions)

// WithLockTTL sets the ttl of the lock: how long the fleet waits for a process that died while loading. The
// lock is kept alive while the source is at work, so this need not be longer than a load. It is 10 seconds
// by default, which 0 or less stand for, too; under a millisecond every Load that misses is
// [locker.ErrInvalidTTL].
func WithLockTTL(d time.Duration) LoaderOption {
	return func(o *loaderOptions) { o.lockTTL = orDefault(d, defaultLockTTL) }
}

// WithMaxHold limits how long the lock is kept alive for one load, so that a source that never returns stops
// blocking the others: after that, later callers in this process do not wait for that load either, and when
// the ttl has passed the lock is free. The value of a load that takes even longer is still handed to those
// who wait for it. It is a minute by default, which 0 or less stand for, too.
func WithMaxHold(d time.Duration) LoaderOption {
	return func(o *loaderOptions) { o.maxHold = orDefault(d, defaultMaxHold) }
}

// WithMaxWait limits how long a process that did not get the lock waits for the value: after that it calls
// the source itself. It is a minute by default, which 0 or less stand for, too.
func WithMaxWait(d time.Duration) LoaderOption {
	return func(o *loaderOptions) { o.maxWait = orDefault(d, defaultMaxWait) }
}

// WithFailClosed has Load return the error when the backend of the lock or of the cache fails. Otherwise
// it calls the source nevertheless, one caller at a time for a key in each process.
func WithFailClosed() LoaderOption {
	return func(o *loaderOptions) { o.failClosed = true }
}

const (
	defaultLockTTL = 10 * time.Second
	defaultMaxHold = time.Minute
	defaultMaxWait = time.Minute
)

func orDefault(d, otherwise time.Duration) time.Duration {
	if d <= 0 {
		return otherwise
	}
	return d
}

// NewLoader returns a Loader that fills c from source, under the locks of l. The lock of a key has the key's
// own name, so keys of Loaders that load different things must differ where they share a Locker. Without a
// Locker, a Cache or a source every Load fails.
//
// source gets the values of the context of the first caller who waits for it, but a cancellation only
// when all of them have left. It defines what it means that there is nothing: a value, which is cached, or
// an error, which is not.
func NewLoader[V any](l locker.Locker, c Cache[V], source func(ctx context.Context, key string) (V, error),
	opts ...LoaderOption) *Loader[V] {
	loader := &Loader[V]{
		locker: l, cache: c, source: source,
		loaderOptions: loaderOptions{lockTTL: defaultLockTTL, maxHold: defaultMaxHold, maxWait: defaultMaxWait},
	}
	for _, opt := range opts {
		opt(&loader.loaderOptions)
	}
	return loader
}

// Load returns the value of key from the cache, or loads it. All callers of one key in this process share
// what the first of them gets, and each leaves promptly when its ctx ends, with ctx's error, as with
// [Group.Do]; so do panics reach them.
//
// An error of the source goes to the callers who waited for that load, as it is, and is not cached; the
// processes that wait for the lock then try one at a time. When the backend of the lock or of the cache
// fails, or takes longer than two seconds to answer, Load calls the source without it, and leaves that
// backend alone for a second; with [WithFailClosed] it returns the error instead. An error of storing the
// value is not Load's.
//
// A key that is empty or longer than 1,024 bytes is [locker.ErrInvalidKey]. Calling Load for the same key
// from within the source with its context is an error.
func (l *Loader[V]) Load(ctx context.Context, key string) (V, error) {
	if err := l.check(key); err != nil {
		var zero V
		return zero, loadError(key, err)
	}
	v, _, err := l.group.Do(ctx, key, func(ctx context.Context) (V, error) { return l.load(ctx, key) })
	return v, err
}

// Forget is for a caller that has just changed what the source returns for key. A later Load in this
// process does not join a load that began before, and what that one gets is not stored any more, unless
// storing it has begun. Take the old value out of the cache after Forget, so that no load that began before
// puts it back; one that was storing it at that moment still may.
//
// Loads in other processes are not reached: one that is under way there may still store what it read before
// the change. Where that matters, the values need a version, or a short life.
func (l *Loader[V]) Forget(key string) {
	if l == nil {
		return
	}
	l.mu.Lock()
	if w := l.work[key]; w != nil {
		w.forgets++
	}
	l.mu.Unlock()
	l.group.Forget(key)
}

func (l *Loader[V]) check(key string) error {
	switch {
	case l == nil:
		return errors.New("the Loader is nil")
	case l.locker == nil:
		return errors.New("the Locker is nil")
	case l.cache == nil:
		return errors.New("the Cache is nil")
	case l.source == nil:
		return errors.New("the source is nil")
	case len(key) == 0 || len(key) > 1024:
		return locker.ErrInvalidKey
	}
	return nil
}

func loadError(key string, err error) error {
	return fmt.Errorf("singleflight: load %.64q: %w", key, err)
}
