package singleflight

import (
	"context"
	"time"
)

// LoaderOption configures a [Loader]. A duration of more than four years counts as four years.
type LoaderOption func(*loaderOptions)

type loaderOptions struct {
	lockTTL, maxHold            time.Duration
	maxWait                     time.Duration // 0: see Loader.waitLimit
	backendTimeout, outagePause time.Duration
	maxRefreshes                int
	failClosed                  bool
	keyPrefix                   string // of the locks and the values
	refreshAhead                time.Duration
	slotTTL                     time.Duration // of values, if this is the Loader of a Fleet; otherwise 0
	sentinels                   []error
	observe                     func(context.Context, LoadEvent)
	hasObserver                 bool // observe was given, perhaps as nil
}

var defaultOptions = loaderOptions{
	lockTTL:        10 * time.Second,
	maxHold:        time.Minute,
	backendTimeout: 2 * time.Second,
	outagePause:    time.Second,
	maxRefreshes:   64,
}

// WithLockTTL sets the ttl of the lock: how long the fleet waits for a process that died while
// loading. Over a [locker.Watcher] that can be up to 1.5 seconds more, since a lock that expires
// wakes no waiter. The lock is kept alive while the source or the change of an Update runs, so the
// ttl need not be longer than that takes. The default, used when d <= 0, is 10 seconds. With less
// than a millisecond, every Update and every Load that misses returns [locker.ErrInvalidTTL].
func WithLockTTL(d time.Duration) LoaderOption {
	return func(o *loaderOptions) { o.lockTTL = orDefault(d, defaultOptions.lockTTL) }
}

// WithMaxHold limits how long one load holds up others. After that time later callers in this
// process do not join it, its lock is no longer kept alive and is free when its ttl has passed,
// and the source's context ends if no caller waits for the load. Callers that still wait for it
// get its value. A source that never returns is therefore called again, but in each process only
// once for each key and MaxHold. The lock of an Update is kept alive for no longer either. The
// default, used when d <= 0, is a minute.
func WithMaxHold(d time.Duration) LoaderOption {
	return func(o *loaderOptions) { o.maxHold = orDefault(d, defaultOptions.maxHold) }
}

// WithMaxWait limits how long a process that did not get the lock waits for the value: after that
// it calls the source itself. The default, used when d <= 0, is a little more than MaxHold and
// the lock's ttl together (72 seconds with the defaults), plus a random part of up to half of
// that, so that processes that began to wait together do not all call the source together. A
// positive d is used without a random part.
func WithMaxWait(d time.Duration) LoaderOption {
	return func(o *loaderOptions) { o.maxWait = orDefault(d, 0) }
}

// WithBackendTimeout limits how long a request to the cache or to the locks may take, and how
// long Close goes on after its ctx has ended. The default, used when d <= 0, is 2 seconds: a
// healthy backend needs a thousandth of that. The package documentation describes under Outages
// what happens after a timeout.
func WithBackendTimeout(d time.Duration) LoaderOption {
	return func(o *loaderOptions) { o.backendTimeout = orDefault(d, defaultOptions.backendTimeout) }
}

// WithOutagePause sets how long a backend that did not answer is left alone before it is asked
// again in the background, how long a key whose value the cache refused is loaded without the
// lock, and when a deletion that failed in Update is first tried again. The default, used when d
// <= 0, is a second.
func WithOutagePause(d time.Duration) LoaderOption {
	return func(o *loaderOptions) { o.outagePause = orDefault(d, defaultOptions.outagePause) }
}

// WithMaxRefreshes limits how many stale values (see [StaleCache]) this process refreshes at
// once. When as many are in progress, a stale value is returned without starting a refresh, and a
// later miss of its key starts one. A refresh that takes longer than MaxHold no longer counts.
// The default, used when n <= 0, is 64.
func WithMaxRefreshes(n int) LoaderOption {
	return func(o *loaderOptions) {
		if o.maxRefreshes = n; n <= 0 {
			o.maxRefreshes = defaultOptions.maxRefreshes
		}
	}
}

// WithRefreshAhead makes a Load that finds a value with less than d left start a refresh of it, as
// for a stale value (see [StaleCache] and [WithMaxRefreshes]): one process of the fleet loads it in the
// background, so keys that are read often do not expire. After a refresh that failed, this process
// starts none for the key for [WithOutagePause]. A value whose whole lifetime is less than d is refreshed
// at each Load. The Cache must be a slots.Keeper; with another one there is no effect. The default is
// 0: there is no refresh before a value expires.
func WithRefreshAhead(d time.Duration) LoaderOption {
	return func(o *loaderOptions) { o.refreshAhead = orDefault(d, 0) }
}

// WithFailClosed makes Load return the error when the backend of the locks or of the cache fails.
// Without it, Load calls the source anyway, one load of a key at a time in each process. Update
// always returns the error of the locks.
func WithFailClosed() LoaderOption {
	return func(o *loaderOptions) { o.failClosed = true }
}

// WithKeyPrefix sets a prefix for the names of the locks and of the cached values: those of a key are
// named prefix + key. With different prefixes, Loaders that load different things can share a Locker
// and a Cache, and use the same keys. The source and the observer see the key alone. The default is no
// prefix. All processes of the fleet must use the same one.
func WithKeyPrefix(prefix string) LoaderOption {
	return func(o *loaderOptions) { o.keyPrefix = prefix }
}

// longest is the longest time of an option. Sums and multiples of such times that a Loader needs,
// up to about 60 of them, are still durations.
const longest = 4 * 365 * 24 * time.Hour

func orDefault(d, otherwise time.Duration) time.Duration {
	if d <= 0 {
		return otherwise
	}
	return min(d, longest)
}
