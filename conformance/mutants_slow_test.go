package conformance

import (
	"context"
	"time"
)

// linger takes d, or until ctx ends.
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

// slowly lets every operation take some time before the store has done it, and some after. One that is over
// before it was sent has done nothing, one that is over after it may have.
func slowly(f *fake, before, after func() time.Duration) {
	f.everywhere(func(ctx context.Context, _ string, do func(context.Context) error) error {
		if err := linger(ctx, before()); err != nil {
			return err
		}
		if err := do(ctx); err != nil {
			return err
		}
		return linger(ctx, after())
	})
	wait := f.wait
	f.wait = func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
		deadline, err := wait(ctx, key, token, ttl)
		if err != nil {
			f.store.release(key, token) // granted, and over before that was known
		}
		return deadline, err
	}
	watch := f.watch
	f.watch = func(ctx context.Context, key string) (<-chan struct{}, error) {
		if err := linger(ctx, before()); err != nil {
			return nil, err
		}
		return watch(ctx, key)
	}
}

func fixed(d time.Duration) func() time.Duration { return func() time.Duration { return d } }
