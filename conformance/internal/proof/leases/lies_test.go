//go:build linux

package leases

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/golockers/locker"
)

// lies make Lockers that are wrong now and then.
var lies = map[string]func(l locker.Locker) locker.Locker{
	"answers true twice": func(l locker.Locker) locker.Locker {
		return liar{l, func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
			ok, err := l.Acquire(ctx, key, token, ttl)
			return ok || err == nil && rand.N(10) == 0, err
		}, l.Extend}
	},
	"extends nothing": func(l locker.Locker) locker.Locker {
		return liar{l, l.Acquire, func(context.Context, string, string, time.Duration) (bool, error) { return true, nil }}
	},
	"forgets when the ttl began": func(l locker.Locker) locker.Locker { return late{l, l.(locker.Waiter)} },
}

// doesOne is the lie of DoAll.
const doesOne = "DoAll takes one lock"

// doOne is a DoAll that takes only one of the locks.
func doOne(ctx context.Context, l locker.Locker, keys []string, ttl time.Duration,
	fn func(context.Context) error, opts ...locker.Option) error {
	return locker.Do(ctx, l, keys[0], ttl, fn, opts...)
}

// liar is a Locker without any queue.
type liar struct {
	locker.Locker
	acquire, extend func(ctx context.Context, key, token string, ttl time.Duration) (bool, error)
}

func (l liar) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return l.acquire(ctx, key, token, ttl)
}

func (l liar) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return l.extend(ctx, key, token, ttl)
}

// late counts the ttl of a grant from half a ttl after it.
type late struct {
	locker.Locker
	waiter locker.Waiter
}

func (l late) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	deadline, err := l.waiter.Wait(ctx, key, token, ttl)
	return deadline.Add(ttl / 2), err
}
