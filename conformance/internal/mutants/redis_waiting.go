package mutants

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/harness"
)

// Locks whose optional methods work as long as the network does.

type watchOnce struct{ redisFull }

// Watch ends with the subscription.
func (l watchOnce) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	return l.watch(ctx, key, func(error) bool { return false }, true)
}

type watchInSilence struct{ redisFull }

// Watch resubscribes without a wake-up, although a release may have been missed.
func (l watchInSilence) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	return l.watch(ctx, key, func(error) bool {
		time.Sleep(20 * time.Millisecond)
		return true
	}, false)
}

type watchRestless struct{ redisFull }

// Watch resubscribes as fast as it can.
func (l watchRestless) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	return l.watch(ctx, key, func(error) bool { return true }, true)
}

type watchLate struct{ redisFull }

// Watch returns only when its own limit of a second has passed.
func (l watchLate) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	const limit = time.Second // and the call is given 200ms
	began := time.Now()
	ch, err := l.redisFull.Watch(ctx, key)
	if errors.Is(err, context.DeadlineExceeded) {
		time.Sleep(time.Until(began.Add(limit)))
	}
	return ch, err
}

type waitForWord struct{ redisFull }

// Wait sleeps until a release is announced, or the holder's ttl is over, on a subscription that may
// have ended.
func (l waitForWord) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	var freed <-chan struct{}
	return l.wait(ctx, key, token, ttl, l.redisLock.Acquire, func() (err error) {
		if freed == nil { // subscribe, then try again
			freed, err = l.watch(watching, key, func(error) bool { return false }, true)
			return err
		}
		left, err := l.c.PTTL(ctx, lockPrefix+key).Result()
		if err != nil {
			return err
		}
		select {
		case <-freed:
		case <-time.After(max(left, time.Millisecond)):
		case <-ctx.Done():
		}
		return nil
	})
}

type waitPatiently struct{ redisFull }

// Wait ignores an error and stays in the queue with a token that is no longer used.
func (l waitPatiently) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	return l.wait(ctx, key, token, ttl, func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		ok, err := l.redisLock.Acquire(ctx, key, token, ttl)
		if err != nil && over(ctx) == nil {
			<-ctx.Done()
		}
		return ok, err
	}, func() error { time.Sleep(3 * time.Millisecond); return nil })
}

type waitBehindTheDead struct{ redisFull }

// Wait queues in a list of tokens in Redis, from which each token removes itself unless it crashes.
func (l waitBehindTheDead) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	queue, joined := "queue:"+key, false
	defer func() {
		if joined {
			go func() {
				bg, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
				defer cancel()
				l.c.LRem(bg, queue, 0, token)
			}()
		}
	}()
	first := func(ctx context.Context, key string) (bool, error) {
		if !joined {
			joined = true
			if err := l.c.RPush(ctx, queue, token).Err(); err != nil {
				return outcome(ctx, "wait", key, false, err)
			}
		}
		head, err := l.c.LIndex(ctx, queue, 0).Result()
		return outcome(ctx, "wait", key, head == token, err)
	}
	return l.wait(ctx, key, token, ttl, func(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
		if ok, err := first(ctx, key); !ok {
			return false, err
		}
		return l.redisLock.Acquire(ctx, key, token, ttl)
	}, func() error { time.Sleep(3 * time.Millisecond); return nil })
}

type fenceErrorAsFalse struct{ redisFull }

// Fence returns false for every error.
func (l fenceErrorAsFalse) Fence(ctx context.Context, key, token string) (uint64, bool, error) {
	n, ok, err := l.redisFull.Fence(ctx, key, token)
	if err != nil && over(ctx) == nil {
		return 0, false, nil
	}
	return n, ok, err
}

func OnRedisFull[L locker.Locker](make func(redisFull) L) func(tb testing.TB) harness.Config {
	return OnRedis(func(tb testing.TB, addr string) L { return make(NewRedisFull(tb, addr)) })
}
