package otellocker_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/otellocker"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
)

// Whatever happens to locks, in whatever order, the numbers of waiting callers and of leases return to
// 0, and each acquisition that got the lock has one lease.
func TestStorm(t *testing.T) {
	for name, backend := range map[string]func(t *testing.T) locker.Waiter{
		"memory": func(*testing.T) locker.Waiter { return memory.New() },
		"cohort": func(*testing.T) locker.Waiter { return cohort.New(memory.New()) },
		"redisv9": func(t *testing.T) locker.Waiter {
			client := redis.NewClient(&redis.Options{Addr: testserver.Redis(t).Addr, MaxRetries: -1})
			t.Cleanup(func() { assert.NoError(t, client.Close()) })
			return redisv9.New(client)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMeters(t)
			inner := backend(t)
			l := locker.Observed(unreliable{inner}, otellocker.NewObserver(otellocker.WithMeterProvider(m)))
			var g sync.WaitGroup
			for range 16 {
				g.Go(func() {
					for range 60 {
						stormOnce(t, inner, l)
					}
				})
			}
			g.Wait()
			values, ends := m.values(t), time.Now().Add(time.Minute)
			for values["locker.leases"] != 0 && time.Now().Before(ends) { // some were never unlocked
				time.Sleep(10 * time.Millisecond)
				values = m.values(t)
			}
			assert.Zero(t, values["locker.waiters"])
			assert.Zero(t, values["locker.leases"])
			leases := 0
			for _, end := range []string{"unlocked", "detached", "lost", "unknown"} {
				n := values["locker.lease.duration{locker.end="+end+"}"]
				assert.NotZero(t, n, end)
				leases += n
			}
			assert.Equal(t, values["locker.acquisition.duration{locker.outcome=acquired}"], leases)
			assert.NotZero(t, values["locker.acquisition.duration{locker.outcome=refused}"])
			assert.NotZero(t, values["locker.acquisition.duration{locker.outcome=failed}"])
			assert.NotZero(t, values["locker.cleanups"])
		})
	}
}

const stormTTL = 100 * time.Millisecond

// stormOnce takes a lock in a random way, uses it in another, and ends it, or not.
func stormOnce(t *testing.T, inner, l locker.Locker) {
	key := string(rune('a' + rand.N(4)))
	ctx, cancel := context.WithTimeout(t.Context(), rand.N(30*time.Millisecond))
	defer cancel()
	var opts []locker.Option
	for _, some := range [][]locker.Option{
		{locker.WithKeepAlive(), locker.WithMaxHold(stormTTL)}, // not for good: some are never unlocked
		{locker.WithMinHold(20 * time.Millisecond)},
		{locker.WithRetry()},
	} {
		if rand.N(4) == 0 {
			opts = append(opts, some...)
		}
	}
	var leases locker.Leases
	switch rand.N(4) {
	case 0:
		if lease, err := locker.TryLock(ctx, l, key, stormTTL, opts...); err == nil {
			leases = locker.Leases{lease}
		}
	case 1:
		leases, _ = locker.LockAll(ctx, l, []string{key, "e"}, stormTTL, opts...)
	default:
		if lease, err := locker.Lock(ctx, l, key, stormTTL, opts...); err == nil {
			leases = locker.Leases{lease}
		}
	}
	for _, lease := range leases {
		stormLease(ctx, inner, l, lease)
	}
}

func stormLease(ctx context.Context, inner, l locker.Locker, lease *locker.Lease) {
	var g sync.WaitGroup
	for range rand.N(3) {
		g.Go(func() {
			switch rand.N(6) {
			case 0:
				_ = lease.Extend(ctx, stormTTL)
			case 1:
				_ = lease.Unlock(ctx)
			case 2:
				_, _ = inner.Release(ctx, lease.Key(), lease.Token()) // so that it is lost
			case 3:
				select {
				case <-lease.Lost():
				case <-ctx.Done():
				}
			case 4:
				lease.Detach()
				if resumed, err := locker.Resume(ctx, l, lease.Key(), lease.Token(), stormTTL); err == nil {
					_ = resumed.Unlock(ctx)
				}
			case 5:
				time.Sleep(rand.N(2 * stormTTL))
			}
		})
	}
	switch rand.N(4) {
	case 0: // never unlocked
	case 1:
		lease.Detach()
	default:
		_ = lease.Unlock(ctx)
	}
	g.Wait()
}

// unreliable loses some replies.
type unreliable struct{ locker.Waiter }

func reply[T any](v T, err error) (T, error) {
	var zero T
	if err == nil && rand.N(8) == 0 {
		return zero, errBackend
	}
	return v, err
}

func (u unreliable) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return reply(u.Waiter.Acquire(ctx, key, token, ttl))
}

func (u unreliable) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return reply(u.Waiter.Extend(ctx, key, token, ttl))
}

func (u unreliable) Release(ctx context.Context, key, token string) (bool, error) {
	return reply(u.Waiter.Release(ctx, key, token))
}

func (u unreliable) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	return reply(u.Waiter.Wait(ctx, key, token, ttl))
}
