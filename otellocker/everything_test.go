package otellocker_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/lockertest"
	"github.com/golockers/locker/otellocker"
	"github.com/golockers/locker/singleflight"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"
)

var errBackend = errors.New("connection refused")

// everything makes every event that there is, on keys that begin with "secret/". spans may be nil.
func everything(t *testing.T, spans trace.Tracer, opts ...otellocker.Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		everyLock(t, spans, opts)
		everyLoad(t, spans, opts)
		time.Sleep(time.Minute) // so that all background work ends
	})
}

// within returns a context in a new span, if there is a tracer.
func within(t *testing.T, spans trace.Tracer, name string) context.Context {
	t.Helper()
	if spans == nil {
		return t.Context()
	}
	ctx, span := spans.Start(t.Context(), name)
	t.Cleanup(func() { span.End() })
	return ctx
}

// everyLock makes 9 acquisitions that succeed, of which 3 are lost, and 3 that do not. One of the latter, which
// got no answer, had taken the lock.
func everyLock(t *testing.T, spans trace.Tracer, opts []otellocker.Option) {
	t.Helper()
	backend := lockertest.New()
	l := locker.Observed(backend, otellocker.NewObserver(opts...))
	const key = "secret/lock"
	take := func(name string, opts ...locker.Option) (context.Context, *locker.Lease) {
		t.Helper()
		ctx := within(t, spans, name)
		lease, err := locker.TryLock(ctx, l, key, 10*time.Second, opts...)
		require.NoError(t, err)
		return ctx, lease
	}

	ctx, lease := take("unlocked", locker.WithKeepAlive())
	time.Sleep(8 * time.Second) // the keep-alive extends it twice
	require.NoError(t, lease.Unlock(ctx))

	release := backend.Hold(key)
	ctx = within(t, spans, "refused")
	_, err := locker.TryLock(ctx, l, key, time.Minute)
	require.ErrorIs(t, err, locker.ErrHeld)
	short, cancel := context.WithTimeout(ctx, time.Second)
	_, err = locker.Lock(short, l, key, time.Minute)
	cancel()
	require.ErrorIs(t, err, locker.ErrHeld)
	time.AfterFunc(time.Second, release)
	lease, err = locker.Lock(within(t, spans, "waited"), l, key, time.Minute)
	require.NoError(t, err)
	require.NoError(t, lease.Unlock(ctx))

	backend.Hang(lockertest.Acquire)
	short, cancel = context.WithTimeout(within(t, spans, "failed"), time.Second)
	_, err = locker.TryLock(short, l, key, time.Minute)
	cancel()
	require.ErrorIs(t, err, context.DeadlineExceeded)
	backend.Fail(lockertest.Acquire, nil)

	ctx, lease = take("lost by extension")
	backend.Fail(lockertest.Extend, errBackend)
	require.ErrorIs(t, lease.Extend(ctx, time.Minute), errBackend)
	backend.Fail(lockertest.Extend, nil)
	backend.Lose(key)
	require.ErrorIs(t, lease.Extend(ctx, time.Minute), locker.ErrNotHeld)
	require.ErrorIs(t, lease.Unlock(ctx), locker.ErrNotHeld)

	ctx, lease = take("lost by unlock")
	backend.Lose(key)
	require.ErrorIs(t, lease.Unlock(ctx), locker.ErrNotHeld)
	take("forgotten")
	time.Sleep(time.Minute)

	ctx, lease = take("unlock without an answer")
	backend.Fail(lockertest.Release, errBackend)
	require.ErrorIs(t, lease.Unlock(ctx), errBackend)
	backend.Fail(lockertest.Release, nil)
	require.NoError(t, lease.Unlock(ctx))

	_, lease = take("detached")
	lease.Detach()
	resumed, err := locker.Resume(within(t, spans, "resumed"), l, key, lease.Token(), time.Minute)
	require.NoError(t, err)
	require.NoError(t, resumed.Unlock(t.Context()))

	ctx, lease = take("minimum hold", locker.WithMinHold(time.Minute))
	require.NoError(t, lease.Unlock(ctx))
	time.Sleep(time.Minute)
}

// everyLoad makes a load of each kind, and all background work.
func everyLoad(t *testing.T, spans trace.Tracer, opts []otellocker.Option) {
	t.Helper()
	const key = "secret/value"
	backend := lockertest.New()
	var fails, refuses atomic.Bool // the source, and the cache
	cache := &cache{refuses: &refuses}
	loader := singleflight.NewLoader(backend, cache, func(context.Context, string) (string, error) {
		time.Sleep(time.Second)
		if fails.Load() {
			return "", errBackend
		}
		return "v", nil
	}, singleflight.WithLoadObserver(otellocker.NewLoadObserver(opts...)))
	load := func(name string, want error) {
		t.Helper()
		_, err := loader.Load(within(t, spans, name), key)
		assert.ErrorIs(t, err, want)
		time.Sleep(10 * time.Second)
	}

	var g sync.WaitGroup
	g.Go(func() { load("loaded", nil) })
	time.Sleep(100 * time.Millisecond)
	g.Go(func() { load("joined", nil) })
	g.Wait()
	load("hit", nil)

	cache.age()
	load("stale", nil) // and refreshed
	fails.Store(true)
	cache.age()
	load("stale again", nil) // and not refreshed
	cache.clear()
	load("load failed", errBackend)
	fails.Store(false)

	release := backend.Hold(key)
	time.AfterFunc(time.Second, func() { cache.set("v"); release() })
	load("waited", nil)

	cache.clear()
	backend.Fail(lockertest.Acquire, errors.New("READONLY"))
	load("loaded unlocked", nil)
	backend.Fail(lockertest.Acquire, nil)
	time.Sleep(time.Minute)

	cache.clear()
	refuses.Store(true)
	load("store failed", nil)
}

// cache is a Cache of one key, with stale values.
type cache struct {
	refuses *atomic.Bool
	mu      sync.Mutex
	value   string
	fresh   bool
}

func (c *cache) Get(context.Context, string) (string, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.value, c.fresh, nil
}

func (c *cache) Stale(context.Context, string) (string, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.value, c.value != "", nil
}

func (c *cache) Set(_ context.Context, _, v string) error {
	if c.refuses.Load() {
		return errBackend
	}
	c.set(v)
	return nil
}

func (c *cache) set(v string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.value, c.fresh = v, true
}

func (c *cache) age() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fresh = false
}

func (c *cache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.value, c.fresh = "", false
}
