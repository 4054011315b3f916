package locker_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
)

// fake is a Locker on a map whose operations a test can replace, one by one, and which records them.
type fake struct {
	onAcquire func(ctx context.Context, token string, ttl time.Duration) (bool, error)
	onExtend  func(ctx context.Context, token string, ttl time.Duration) (bool, error)
	onRelease func(ctx context.Context, token string) (bool, error)

	mu      sync.Mutex
	holder  map[string]hold
	acquire []string // the tokens of the calls, in order
	extend  []time.Duration
	release []string
}

type hold struct {
	token   string
	expires time.Time
}

func (f *fake) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	f.mu.Lock()
	f.acquire = append(f.acquire, token)
	onAcquire := f.onAcquire
	f.mu.Unlock()
	if onAcquire != nil {
		return onAcquire(ctx, token, ttl)
	}
	return f.doAcquire(ctx, key, token, ttl)
}

func (f *fake) doAcquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if h, ok := f.holder[key]; ok && h.token != token && time.Now().Before(h.expires) {
		return false, nil
	}
	if f.holder == nil {
		f.holder = map[string]hold{}
	}
	f.holder[key] = hold{token, time.Now().Add(ttl)}
	return true, nil
}

func (f *fake) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	f.mu.Lock()
	f.extend = append(f.extend, ttl)
	onExtend := f.onExtend
	f.mu.Unlock()
	if onExtend != nil {
		return onExtend(ctx, token, ttl)
	}
	return f.doExtend(ctx, key, token, ttl)
}

func (f *fake) doExtend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if !f.isHeld(key, token) {
		return false, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.holder[key] = hold{token, time.Now().Add(ttl)}
	return true, nil
}

func (f *fake) Release(ctx context.Context, key, token string) (bool, error) {
	f.mu.Lock()
	f.release = append(f.release, token)
	f.mu.Unlock()
	if f.onRelease != nil {
		return f.onRelease(ctx, token)
	}
	return f.doRelease(ctx, key, token)
}

func (f *fake) doRelease(ctx context.Context, key, token string) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if !f.isHeld(key, token) {
		return false, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.holder, key)
	return true, nil
}

func (f *fake) isHeld(key, token string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	h, ok := f.holder[key]
	return ok && h.token == token && time.Now().Before(h.expires)
}

func (f *fake) isFree(key string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	h, ok := f.holder[key]
	return !ok || !time.Now().Before(h.expires)
}

// extendBy replaces Extend while a keep-alive may be calling it.
func (f *fake) extendBy(extend func(ctx context.Context, token string, ttl time.Duration) (bool, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.onExtend = extend
}

// acquireBy replaces Acquire while others may be calling it.
func (f *fake) acquireBy(acquire func(ctx context.Context, token string, ttl time.Duration) (bool, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.onAcquire = acquire
}

// steal gives the lock to another token.
func (f *fake) steal(key string, ttl time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.holder[key] = hold{"thief", time.Now().Add(ttl)}
}

func (f *fake) counts() (acquired, extended, released int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.acquire), len(f.extend), len(f.release)
}

var _ locker.Locker = (*fake)(nil)

// blackhole is an operation on a backend that never answers.
func blackhole(ctx context.Context, _ string, _ time.Duration) (bool, error) {
	<-ctx.Done()
	return false, ctx.Err()
}

// bubble runs f in a synctest bubble under a name: sleeping costs nothing there and times are exact. A
// goroutine that is left over when the cleanups have ended makes the test panic.
func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f(t)
			time.Sleep(2 * time.Minute)
		})
	})
}
