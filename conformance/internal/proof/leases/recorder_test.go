//go:build linux

package leases

import (
	"context"
	"sync"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/proof/belief"
)

// recorder is a Locker that remembers the deadlines of the locks that were taken through it. Each
// lock has one holder at a time.
type recorder struct {
	locker.Locker
	of sync.Map // by key
}

type hold struct {
	token string
	until time.Duration
}

// until returns the deadline of a lock, and false if the lock is not held.
func (r *recorder) until(key string) (time.Duration, bool) {
	h, ok := r.of.Load(key)
	if !ok {
		return 0, false
	}
	return h.(hold).until, true
}

func (r *recorder) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	began := belief.Clock()
	ok, err := r.Locker.Acquire(ctx, key, token, ttl)
	if ok && err == nil {
		r.of.Store(key, hold{token, began + ttl})
	}
	return ok, err
}

// Extend does not bring back a lock that was released meanwhile.
func (r *recorder) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	until := belief.Clock() + ttl
	ok, err := r.Locker.Extend(ctx, key, token, ttl)
	if h, held := r.of.Load(key); held && ok && err == nil && h.(hold).token == token {
		r.of.CompareAndSwap(key, h, hold{token, until})
	}
	return ok, err
}

func (r *recorder) Release(ctx context.Context, key, token string) (bool, error) {
	if h, ok := r.of.Load(key); ok && h.(hold).token == token {
		r.of.Delete(key)
	}
	return r.Locker.Release(ctx, key, token)
}

type waitingRecorder struct {
	*recorder
	waiter locker.Waiter
}

func (r waitingRecorder) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	deadline, err := r.waiter.Wait(ctx, key, token, ttl)
	if err == nil {
		r.of.Store(key, hold{token, belief.At(deadline)})
	}
	return deadline, err
}

type watchingRecorder struct {
	*recorder
	watcher locker.Watcher
}

func (r watchingRecorder) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	return r.watcher.Watch(ctx, key)
}

// record returns a Locker like l, and what records it.
func record(l locker.Locker) (locker.Locker, *recorder) {
	r := &recorder{Locker: l}
	if waiter, ok := l.(locker.Waiter); ok {
		return waitingRecorder{r, waiter}, r
	}
	if watcher, ok := l.(locker.Watcher); ok {
		return watchingRecorder{r, watcher}, r
	}
	return r, r
}
