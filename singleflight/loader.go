package singleflight

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/singleflight/slots"
)

// Loader fills a cache: of all callers in the fleet that miss a key at the same time, one loads
// it from the source, and the others get the value that it stored.
//
// A load takes these steps: join a load that is in progress in this process; look in the cache; try the
// lock, and wait for the value if another process has it; look again, and take a version there; call the
// source; give the value to the callers; store it, if the version is still the present one; release the
// lock. The callers do not wait for the last two steps. A caller that comes meanwhile gets the value.
//
// A Loader keeps nothing for a key that is not being loaded, unless [Loader.Update] could not
// delete its value. Create one with [NewLoader], and close it before the process ends.
type Loader[V any] struct {
	locker locker.Locker
	cache  Cache[V]
	many   batchSource[V]  // nil if source was given
	keeper slots.Keeper[V] // cache, or nil if it is none
	source func(ctx context.Context, key string) (V, error)
	loaderOptions
	simple bool // made by NewLoader with all that it needs, and without an observer

	group Group[V]

	mu        sync.Mutex
	work      table[string, *work[V]] // by key; only while something is in progress
	refreshes int                     // in progress

	stores atomic.Int32 // in progress

	lockBreaker, cacheBreaker breaker

	unstored  marks // keys whose value the cache refused a moment ago
	forgotten marks // keys that were forgotten a moment ago
	published marks // keys that failed here: since when the others can know it
	outdated  outdated
	lifetime  lifetime
}

// NewLoader returns a Loader that fills c from source, under the locks of l. The lock of a key and its
// value in c have the name of the key. Loaders that load different things and share a Locker or a Cache
// need [WithKeyPrefix], or different keys. Without a source, or if the Locker or the Cache can never
// work, such as a nil one, every Load that needs it returns an error.
//
// The context of source is described in the package documentation, under Sources. If there is nothing
// for a key, source may return a value, which is cached, or an error, which is not. If it panics when
// all its callers have left, the program ends.
func NewLoader[V any](l locker.Locker, c Cache[V], source func(ctx context.Context, key string) (V, error),
	opts ...LoaderOption) *Loader[V] {
	loader := newLoader(l, c, source, opts)
	loader.slotTTL = 0
	return loader
}

func newLoader[V any](l locker.Locker, c Cache[V], source func(ctx context.Context, key string) (V, error),
	opts []LoaderOption) *Loader[V] {
	loader := &Loader[V]{locker: l, cache: c, source: source, loaderOptions: defaultOptions}
	loader.keeper, _ = c.(slots.Keeper[V])
	for _, opt := range opts {
		opt(&loader.loaderOptions)
	}
	loader.simple = l != nil && c != nil && source != nil && !loader.hasObserver
	for _, b := range []*breaker{&loader.lockBreaker, &loader.cacheBreaker} {
		b.timeout, b.pause = loader.backendTimeout, loader.outagePause
	}
	return loader
}

// Load returns the value of key from the cache, or loads it. All callers of a key in this process
// share the result of the first one. Each leaves promptly when its ctx ends, with ctx's error. A
// load that its callers have left goes on. A panic of the source reaches the callers as one in
// [Group.Do] does. After [Loader.Close] the error is [locker.ErrClosed].
//
// An error of the source goes unchanged to the callers that waited for that load, or to those in
// other processes as a [*RemoteError], and is not cached. If a backend does not answer, Load calls the
// source without it. See Errors and Outages in the package documentation.
//
// A key has 1 to 1,024 bytes, including the prefix of [WithKeyPrefix]; any other is
// [locker.ErrInvalidKey]. If ctx carries the lock of key, Load returns what is in the cache, and
// otherwise [locker.ErrDeadlock]: see Sources there.
func (l *Loader[V]) Load(ctx context.Context, key string) (V, error) {
	v, _, err := l.call(ctx, key)
	return v, err
}

// Forget makes sure that what loads in progress in this process have read is neither stored nor
// returned to later callers. Where the Cache is a [Deleter], use [Loader.Update] instead, which
// includes Forget and also orders the change with the loads of other processes. Otherwise call
// Forget after a change in the source, and take the old value out of the cache after Forget has
// returned, within the backend timeout ([WithBackendTimeout], 2 seconds by default):
//
//	change(key)
//	loader.Forget(key)
//	cache.Delete(ctx, key)
//
// In this process, a Load that begins after that does not return the old value, and no load puts
// it back: what a load in progress got from the source is not stored, and Forget waits for a
// store that has begun. It waits no longer than a backend timeout: a store that takes longer, or
// whose request the client left behind, may still arrive after the deletion.
//
// Forget does not reach other processes. A load in progress there may store what it read before
// the change, even after the deletion, and that is then a hit here.
func (l *Loader[V]) Forget(key string) {
	if l == nil {
		return
	}
	l.mu.Lock()
	var s *store[V]
	if w := l.work.get(key); w != nil {
		w.forgets++
		if s = w.store; s != nil {
			s.served = false
		}
	}
	l.mu.Unlock()
	// The mark comes first: a flight that begins after group.Forget sees it, and the others take
	// no more callers.
	if s == nil {
		l.forgotten.extend(key, time.Now().Add(l.backendTimeout))
		l.group.Forget(key)
		return
	}
	l.forgotten.extend(key, time.Now().Add(2*l.backendTimeout)) // the deletion may come that late
	l.group.Forget(key)
	timer := time.NewTimer(l.backendTimeout)
	defer timer.Stop()
	select {
	case <-s.done:
	case <-timer.C:
	}
	l.forgotten.extend(key, time.Now().Add(l.backendTimeout))
}

// acceptsUnobserved reports whether check returns no error and there is no observer. It is short
// enough to be inlined.
func (l *Loader[V]) acceptsUnobserved(key string) bool {
	return l != nil && l.simple && key != "" && len(l.keyPrefix)+len(key) <= maxKey && !l.lifetime.closing.Load()
}

// check returns what is wrong with a call for key.
func (l *Loader[V]) check(key string) error {
	switch {
	case l == nil:
		return errors.New("nil Loader")
	case l.locker == nil:
		return errors.New("nil Locker")
	case l.cache == nil && l.slotTTL > 0:
		return errors.New("nil slots")
	case l.cache == nil:
		return errors.New("nil Cache")
	case l.source == nil:
		return errors.New("nil source")
	case l.hasObserver && l.observe == nil:
		return errors.New("nil load observer")
	case key == "":
		return fmt.Errorf("%w: empty", locker.ErrInvalidKey)
	case len(l.keyPrefix)+len(key) > maxKey:
		return fmt.Errorf("%w: %d bytes with the prefix of the locks, more than %d", locker.ErrInvalidKey,
			len(l.keyPrefix)+len(key), maxKey)
	case l.lifetime.closing.Load():
		return locker.ErrClosed
	}
	return nil
}

// name returns what the lock of key, and its value in the cache, are named.
func (l *Loader[V]) name(key string) string { return l.keyPrefix + key }

// maxKey is the length of the longest key that a Locker takes.
const maxKey = 1024

// loadError is the error of a Load of key, or of a Do if this is the Loader of a Fleet.
func (l *Loader[V]) loadError(key string, err error) error {
	if l != nil && l.slotTTL > 0 {
		return doError(key, err)
	}
	return &keyError{"load", key, err}
}
