package mutants

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// linger sleeps for d, or until ctx ends.
func linger(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Slowly makes every operation take some time before the store executes it, and some after. An
// operation whose context ends before that does nothing.
func Slowly(f *Fake, before, after func() time.Duration) {
	f.Everywhere(func(ctx context.Context, _ string, do func(context.Context) error) error {
		if err := linger(ctx, before()); err != nil {
			return err
		}
		if err := do(ctx); err != nil {
			return err
		}
		return linger(ctx, after())
	})
	wait := f.OnWait
	f.OnWait = func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
		deadline, err := wait(ctx, key, token, ttl)
		if err != nil {
			f.store.release(key, token) // granted, but its context ended first
		}
		return deadline, err
	}
	watch := f.OnWatch
	f.OnWatch = func(ctx context.Context, key string) (<-chan struct{}, error) {
		if err := linger(ctx, before()); err != nil {
			return nil, err
		}
		return watch(ctx, key)
	}
}

func Fixed(d time.Duration) func() time.Duration { return func() time.Duration { return d } }

// CompareAndSwap makes f a correct Locker on a backend that can only compare and swap: under
// contention it tries until its context ends, or so many times if attempts is not negative.
func CompareAndSwap(f *Fake, attempts int) {
	change := func(ctx context.Context, key string, decide func(it item, ok bool) (item, bool)) (bool, error) {
		for n := 0; ctx.Err() == nil; n++ {
			if n == attempts {
				return false, errors.New("the value kept changing")
			}
			old, ok := f.get(key)
			next, do := decide(old, ok)
			if !do {
				return false, nil
			}
			linger(ctx, rand.N(200*time.Microsecond)) // for others to change it
			f.mu.Lock()
			now, still := f.live(key)
			done := now == old && still == ok
			if done {
				f.items[key] = next
			}
			f.mu.Unlock()
			if done {
				return true, nil
			}
		}
		return false, ctx.Err()
	}
	f.OnAcquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		return change(ctx, key, func(it item, ok bool) (item, bool) {
			return item{token, time.Now().Add(ttl)}, !ok || it.token == token
		})
	}
	f.OnExtend = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		return change(ctx, key, func(it item, ok bool) (item, bool) {
			return item{token, time.Now().Add(ttl)}, ok && it.token == token
		})
	}
	f.OnRelease = func(ctx context.Context, key, token string) (bool, error) {
		return change(ctx, key, func(it item, ok bool) (item, bool) { return item{}, ok && it.token == token })
	}
}
