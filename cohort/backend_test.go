package cohort_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/memory"
)

// counting counts the requests that reach a backend, and can make them fail.
type counting struct {
	locker.Locker
	requests atomic.Int64
	fail     atomic.Pointer[error] // what every request ends with, if it is set
}

func (c *counting) request() error {
	c.requests.Add(1)
	if err := c.fail.Load(); err != nil {
		return *err
	}
	return nil
}

func (c *counting) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if err := c.request(); err != nil {
		return false, err
	}
	return c.Locker.Acquire(ctx, key, token, ttl)
}

func (c *counting) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if err := c.request(); err != nil {
		return false, err
	}
	return c.Locker.Extend(ctx, key, token, ttl)
}

func (c *counting) Release(ctx context.Context, key, token string) (bool, error) {
	if err := c.request(); err != nil {
		return false, err
	}
	return c.Locker.Release(ctx, key, token)
}

// queueing is a counting backend that keeps a queue.
type queueing struct{ *counting }

func (q queueing) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	if err := q.request(); err != nil {
		return time.Time{}, err
	}
	return q.Locker.(locker.Waiter).Wait(ctx, key, token, ttl)
}

func (q queueing) Fence(ctx context.Context, key, token string) (uint64, bool, error) {
	return q.Locker.(locker.Fencer).Fence(ctx, key, token)
}

// watching is a counting backend that wakes watchers and keeps no queue.
type watching struct{ *counting }

func (w watching) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	return w.watch(ctx, key)
}

// watch delivers wake-ups as a network does, a little later and in any order. In one process the last watcher
// would mostly be the first to run, and the same two contenders would win again and again.
func (c *counting) watch(ctx context.Context, key string) (<-chan struct{}, error) {
	woken, err := c.Locker.(locker.Watcher).Watch(ctx, key)
	arrived := make(chan struct{}, 1)
	go func() {
		for {
			select {
			case <-woken:
			case <-ctx.Done():
				return
			}
			time.Sleep(rand.N(time.Millisecond))
			select {
			case arrived <- struct{}{}:
			default:
			}
		}
	}()
	return arrived, err
}

// unqueued has the methods of a backend that keeps a queue, but keeps none.
type unqueued struct{ *counting }

func (unqueued) Wait(context.Context, string, string, time.Duration) (time.Time, error) {
	return time.Time{}, fmt.Errorf("no queue here: %w", errors.ErrUnsupported)
}

// unqueuedWatching keeps no queue either, but can be watched.
type unqueuedWatching struct{ unqueued }

func (w unqueuedWatching) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	return w.watch(ctx, key)
}

// unwatched has all methods, but can neither keep a queue nor be watched.
type unwatched struct{ unqueued }

func (unwatched) Watch(context.Context, string) (<-chan struct{}, error) {
	return nil, fmt.Errorf("nothing to watch: %w", errors.ErrUnsupported)
}

// backends are the kinds of Locker that there are to wrap.
func backends() map[string]func(*memory.Locker) (locker.Locker, *counting) {
	return map[string]func(*memory.Locker) (locker.Locker, *counting){
		"queue":   func(m *memory.Locker) (locker.Locker, *counting) { c := &counting{Locker: m}; return queueing{c}, c },
		"watch":   func(m *memory.Locker) (locker.Locker, *counting) { c := &counting{Locker: m}; return watching{c}, c },
		"polling": func(m *memory.Locker) (locker.Locker, *counting) { c := &counting{Locker: m}; return c, c },
		"no queue, watch": func(m *memory.Locker) (locker.Locker, *counting) {
			c := &counting{Locker: m}
			return unqueuedWatching{unqueued{c}}, c
		},
		"no queue, no watch": func(m *memory.Locker) (locker.Locker, *counting) {
			c := &counting{Locker: m}
			return unwatched{unqueued{c}}, c
		},
	}
}

// eachBackend runs f in a synctest bubble over every kind of backend.
func eachBackend(t *testing.T, f func(t *testing.T, inner locker.Locker, c *counting)) {
	t.Helper()
	for name, wrap := range backends() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner, c := wrap(memory.New())
				f(t, inner, c)
				time.Sleep(2 * time.Minute) // cleanups end; a goroutine that does not panics the bubble
			})
		})
	}
}

// overQueue runs f in a bubble over a backend that keeps a queue.
func overQueue(t *testing.T, f func(t *testing.T, m *memory.Locker, inner locker.Locker, c *counting)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := memory.New()
		c := &counting{Locker: m}
		f(t, m, queueing{c}, c)
		time.Sleep(2 * time.Minute)
	})
}
