package singleflight

import "time"

// LoaderOption adjusts [NewLoader].
type LoaderOption func(*loaderOptions)

type loaderOptions struct {
	lockTTL, maxHold            time.Duration
	maxWait                     time.Duration // 0: see Loader.waitLimit
	backendTimeout, outagePause time.Duration
	maxRefreshes                int
	failClosed                  bool
}

var defaultOptions = loaderOptions{
	lockTTL:        10 * time.Second,
	maxHold:        time.Minute,
	backendTimeout: 2 * time.Second,
	outagePause:    time.Second,
	maxRefreshes:   64,
}

// WithLockTTL sets the ttl of the lock: how long the fleet waits for a process that died while loading. The
// lock is kept alive while the source runs, so the ttl need not be longer than a load. The default, used when
// d <= 0, is 10 seconds. With less than a millisecond every Load that misses returns [locker.ErrInvalidTTL].
func WithLockTTL(d time.Duration) LoaderOption {
	return func(o *loaderOptions) { o.lockTTL = orDefault(d, defaultOptions.lockTTL) }
}

// WithMaxHold limits how long one load holds up others. After that time later callers in this process do not
// join it, its lock is no longer kept alive and is free when its ttl has passed, and the source's context ends
// if no caller waits for the load. Its value still goes to the callers that do. A source that never returns is
// therefore called again, but in each process only once for each key and MaxHold. The default, used
// when d <= 0, is a minute.
func WithMaxHold(d time.Duration) LoaderOption {
	return func(o *loaderOptions) { o.maxHold = orDefault(d, defaultOptions.maxHold) }
}

// WithMaxWait limits how long a process that did not get the lock waits for the value: after that it calls
// the source itself. The default, used when d <= 0, is a little more than MaxHold and the lock's ttl, 72
// seconds, plus a random part of up to half of that, so that processes which began to wait together do not
// all call the source together. A positive d is used without a random part.
func WithMaxWait(d time.Duration) LoaderOption {
	return func(o *loaderOptions) { o.maxWait = max(d, 0) }
}

// WithBackendTimeout limits how long a request to the cache or to the locks may take. The default, used when
// d <= 0, is 2 seconds: a healthy backend needs a thousandth of that. See [Loader.Load] for what
// happens after a timeout.
func WithBackendTimeout(d time.Duration) LoaderOption {
	return func(o *loaderOptions) { o.backendTimeout = orDefault(d, defaultOptions.backendTimeout) }
}

// WithOutagePause sets how long a backend that did not answer is left alone before it is asked again, in the
// background, and how long a key whose value the cache refused is loaded without the lock. The default, used
// when d <= 0, is a second.
func WithOutagePause(d time.Duration) LoaderOption {
	return func(o *loaderOptions) { o.outagePause = orDefault(d, defaultOptions.outagePause) }
}

// WithMaxRefreshes limits how many stale values (see [StaleCache]) this process refreshes at once.
// Beyond that a stale value is returned without starting a refresh. A refresh that takes longer
// than MaxHold no longer counts. The default, used when n <= 0, is 64.
func WithMaxRefreshes(n int) LoaderOption {
	return func(o *loaderOptions) { o.maxRefreshes = orDefault(n, defaultOptions.maxRefreshes) }
}

// WithFailClosed makes Load return the error when the backend of the lock or of the cache fails.
// Without it, Load calls the source anyway, one load of a key at a time in each process.
func WithFailClosed() LoaderOption {
	return func(o *loaderOptions) { o.failClosed = true }
}

func orDefault[T int | time.Duration](v, otherwise T) T {
	if v <= 0 {
		return otherwise
	}
	return v
}
