package mutants

import (
	"context"
	"iter"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/harness"
)

// Fake is a Locker on a Store, each of whose methods can be replaced.
type Fake struct {
	*store
	ID int // 0, 1, 2 for A, B, C

	OnAcquire, OnExtend func(ctx context.Context, key, token string, ttl time.Duration) (bool, error)
	OnRelease           func(ctx context.Context, key, token string) (bool, error)
	OnWatch             func(ctx context.Context, key string) (<-chan struct{}, error)
	OnWait              func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error)
	OnFence             func(ctx context.Context, key, token string) (uint64, bool, error)
	OnInspect           func(ctx context.Context, key string) (locker.Info, error)
	OnList              func(ctx context.Context, prefix string) iter.Seq2[locker.Info, error]
}

// NewFake returns a correct Locker on s.
func NewFake(s *store, id int) *Fake {
	f := &Fake{store: s, ID: id}
	f.OnAcquire = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		return s.acquire(key, token, ttl), nil
	}
	f.OnExtend = func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		return s.extend(key, token, ttl), nil
	}
	f.OnRelease = func(ctx context.Context, key, token string) (bool, error) {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		return s.release(key, token), nil
	}
	f.OnWatch = func(ctx context.Context, key string) (<-chan struct{}, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		return s.watch(ctx, f, key), nil
	}
	f.OnWait = func(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
		if err := ctx.Err(); err != nil {
			return time.Time{}, err
		}
		return s.wait(ctx, key, token, ttl)
	}
	f.OnFence = func(ctx context.Context, key, token string) (uint64, bool, error) {
		if err := ctx.Err(); err != nil {
			return 0, false, err
		}
		n, ok := s.fence(key, token)
		return n, ok, nil
	}
	f.OnInspect = func(ctx context.Context, key string) (locker.Info, error) {
		if err := ctx.Err(); err != nil {
			return locker.Info{Key: key}, err
		}
		return s.inspect(key), nil
	}
	f.OnList = func(ctx context.Context, prefix string) iter.Seq2[locker.Info, error] {
		return pages(ctx, func() []locker.Info { return s.list(prefix) })
	}
	return f
}

func (f *Fake) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return f.OnAcquire(ctx, key, token, ttl)
}

func (f *Fake) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return f.OnExtend(ctx, key, token, ttl)
}

func (f *Fake) Release(ctx context.Context, key, token string) (bool, error) {
	return f.OnRelease(ctx, key, token)
}

func (f *Fake) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	return f.OnWatch(ctx, key)
}

func (f *Fake) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	return f.OnWait(ctx, key, token, ttl)
}

func (f *Fake) Fence(ctx context.Context, key, token string) (uint64, bool, error) {
	return f.OnFence(ctx, key, token)
}

func (f *Fake) Inspect(ctx context.Context, key string) (locker.Info, error) {
	return f.OnInspect(ctx, key)
}

func (f *Fake) List(ctx context.Context, prefix string) iter.Seq2[locker.Info, error] {
	return f.OnList(ctx, prefix)
}

// Fakes returns the configuration of Lockers on one Store, each altered by alter.
func Fakes(alter func(f *Fake)) harness.Config {
	s, n := NewStore(), 0
	return harness.Config{LoseData: s.lose, New: func(testing.TB, string) locker.Locker {
		f := NewFake(s, n)
		n++
		alter(f)
		return f
	}}
}
