package singleflight

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/golockers/locker"
	"github.com/golockers/locker/memory"
)

// journal has the calls of one process to its fakes, in order.
type journal struct {
	mu    sync.Mutex
	calls []string
}

func (j *journal) add(call string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.calls = append(j.calls, call)
}

func (j *journal) all() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]string(nil), j.calls...)
}

func (j *journal) count(call string) (n int) {
	for _, c := range j.all() {
		if c == call {
			n++
		}
	}
	return n
}

func (j *journal) reset() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.calls = nil
}

// fakeBackend is what the processes of a test share: the locks, and the cache's values.
type fakeBackend struct {
	locks *memory.Locker

	mu     sync.Mutex
	values map[string]string
	stale  map[string]string
}

func newBackend() *fakeBackend {
	return &fakeBackend{locks: memory.New(), values: map[string]string{}, stale: map[string]string{}}
}

func (b *fakeBackend) get(key string) (string, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v, ok := b.values[key]
	return v, ok
}

func (b *fakeBackend) set(key, v string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.values[key] = v
}

func (b *fakeBackend) remove(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.values, key)
	delete(b.stale, key)
}

// fakeProcess is one process: its Locker and its cache record their calls and do what the backend does, unless a
// hook does something else. Set hooks before use.
type fakeProcess struct {
	journal
	backend *fakeBackend

	onAcquire func(ctx context.Context, key string) error // nil: go on
	onExtend  func(ctx context.Context) (bool, error)
	onRelease func(ctx context.Context) (bool, error)
	onWatch   func(ctx context.Context) (<-chan struct{}, error)
	onGet     func(ctx context.Context, key string) error // nil: go on
	onSet     func(ctx context.Context) error
	onAdd     func(ctx context.Context) error
	onStale   func(ctx context.Context) error
	onDelete  func(ctx context.Context) error
}

func (b *fakeBackend) process() *fakeProcess { return &fakeProcess{backend: b} }

// pollLocker is a plain Locker.
type pollLocker struct{ *fakeProcess }

func (l pollLocker) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	l.add("acquire")
	if l.onAcquire != nil {
		if err := l.onAcquire(ctx, key); err != nil {
			return false, err
		}
	}
	return l.backend.locks.Acquire(ctx, key, token, ttl)
}

func (l pollLocker) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	l.add("extend")
	if l.onExtend != nil {
		return l.onExtend(ctx)
	}
	return l.backend.locks.Extend(ctx, key, token, ttl)
}

func (l pollLocker) Release(ctx context.Context, key, token string) (bool, error) {
	l.add("release")
	if l.onRelease != nil {
		return l.onRelease(ctx)
	}
	return l.backend.locks.Release(ctx, key, token)
}

// watchLocker is a Watcher.
type watchLocker struct{ pollLocker }

func (l watchLocker) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	l.add("watch")
	if l.onWatch != nil {
		return l.onWatch(ctx)
	}
	return l.backend.locks.Watch(ctx, key)
}

func (p *fakeProcess) locker() locker.Locker { return watchLocker{pollLocker{p}} }

// fakeCache is a plain Cache.
type fakeCache struct{ *fakeProcess }

func (p *fakeProcess) cache() Cache[string] { return fakeCache{p} }

func (c fakeCache) Get(ctx context.Context, key string) (string, bool, error) {
	c.add("get")
	if c.onGet != nil {
		if err := c.onGet(ctx, key); err != nil {
			return "garbage", true, err
		}
	}
	v, ok := c.backend.get(key)
	return v, ok, ctx.Err()
}

func (c fakeCache) Set(ctx context.Context, key, v string) error {
	c.add("set")
	if c.onSet != nil {
		if err := c.onSet(ctx); err != nil {
			return err
		}
	}
	if ctx.Err() == nil {
		c.backend.set(key, v)
	}
	return ctx.Err()
}

// addCache is an Adder.
type addCache struct{ fakeCache }

func (p *fakeProcess) addCache() addCache { return addCache{fakeCache{p}} }

func (c addCache) Add(ctx context.Context, key, v string) (bool, error) {
	c.add("add")
	if c.onAdd != nil {
		if err := c.onAdd(ctx); err != nil {
			return false, err
		}
	}
	c.backend.mu.Lock()
	defer c.backend.mu.Unlock()
	if _, ok := c.backend.values[key]; ok || ctx.Err() != nil {
		return false, ctx.Err()
	}
	c.backend.values[key] = v
	return true, nil
}

// staleCache is a StaleCache.
type staleCache struct{ fakeCache }

func (p *fakeProcess) staleCache() staleCache { return staleCache{fakeCache{p}} }

func (c staleCache) Stale(ctx context.Context, key string) (string, bool, error) {
	c.add("stale")
	if c.onStale != nil {
		if err := c.onStale(ctx); err != nil {
			return "", false, err
		}
	}
	c.backend.mu.Lock()
	defer c.backend.mu.Unlock()
	v, ok := c.backend.stale[key]
	return v, ok, ctx.Err()
}

// deleteCache is a StaleCache and a Deleter.
type deleteCache struct{ staleCache }

func (p *fakeProcess) deleteCache() deleteCache { return deleteCache{p.staleCache()} }

func (c deleteCache) Delete(ctx context.Context, key string) error {
	c.add("delete")
	if c.onDelete != nil {
		if err := c.onDelete(ctx); err != nil {
			return err
		}
	}
	if ctx.Err() == nil {
		c.backend.remove(key)
	}
	return ctx.Err()
}

// slowly returns a source that takes a while and honors its context.
func (p *fakeProcess) slowly(d time.Duration, v string) func(context.Context, string) (string, error) {
	return func(ctx context.Context, _ string) (string, error) {
		p.add("source")
		select {
		case <-time.After(d):
			return v, nil
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// loaded is what one Load returned, and after how long.
type loaded struct {
	v    string
	err  error
	took time.Duration
}

func goLoad(ctx context.Context, l *Loader[string], key string) <-chan loaded {
	c := make(chan loaded, 1)
	go func() {
		start := time.Now()
		v, err := l.Load(ctx, key)
		c <- loaded{v, err, time.Since(start)}
	}()
	return c
}

// requireIdle fails unless l keeps nothing and key's lock is free.
func requireIdle(t *testing.T, l *Loader[string], b *fakeBackend, key string) {
	t.Helper()
	synctest.Wait()
	l.group.mu.Lock()
	require.Empty(t, l.group.keys.m)
	l.group.mu.Unlock()
	l.mu.Lock()
	require.Empty(t, l.work.m)
	require.Zero(t, l.refreshes)
	require.Zero(t, l.stores.Load())
	l.mu.Unlock()
	l.lifetime.mu.Lock()
	require.Zero(t, l.lifetime.running)
	require.Empty(t, l.lifetime.enders.m)
	require.Empty(t, l.lifetime.leases.m)
	l.lifetime.mu.Unlock()
	require.Empty(t, l.outdated.snapshot())
	requireFree(t, b, key)
}

// requireFree fails unless key's lock is free.
func requireFree(t *testing.T, b *fakeBackend, key string) {
	t.Helper()
	lease, err := locker.TryLock(context.Background(), b.locks, key, time.Second)
	require.NoError(t, err, "the lock is not free")
	require.NoError(t, lease.Unlock(context.Background()))
}

type observerFunc func(context.Context, locker.Event)

func (f observerFunc) Observe(ctx context.Context, e locker.Event) { f(ctx, e) }
