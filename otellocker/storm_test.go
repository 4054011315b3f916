package otellocker_test

import (
	"context"
	"math/rand/v2"
	"slices"
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
			var values map[string]int
			// On a busy machine few calls succeed in their time, or few fail.
			for ends := time.Now().Add(time.Minute); time.Now().Before(ends) && !sawAll(values); {
				var g sync.WaitGroup
				for range 16 {
					g.Go(func() {
						for range 60 {
							stormOnce(t, inner, l)
						}
					})
				}
				g.Wait()
				values = m.values(t)
			}
			// Some leases were never unlocked. One may end while the values are read.
			for ends := time.Now().Add(time.Minute); ; {
				values = m.values(t)
				if values["locker.leases"] == 0 && endedLeases(values) == values[acquired] || time.Now().After(ends) {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			assert.Zero(t, values["locker.waiters"])
			assert.Zero(t, values["locker.leases"])
			assert.Equal(t, values[acquired], endedLeases(values))
			for _, name := range outcomes {
				assert.NotZero(t, values[name], name)
			}
		})
	}
}

// outcomes are what a storm must have brought about, or it shows little.
var outcomes = []string{
	"locker.lease.duration{locker.end=unlocked}", "locker.lease.duration{locker.end=detached}",
	"locker.lease.duration{locker.end=lost}", "locker.lease.duration{locker.end=unknown}",
	"locker.acquisition.duration{locker.outcome=refused}", "locker.acquisition.duration{locker.outcome=failed}",
	"locker.cleanups",
}

const acquired = "locker.acquisition.duration{locker.outcome=acquired}"

func endedLeases(values map[string]int) (n int) {
	for _, name := range outcomes[:4] {
		n += values[name]
	}
	return n
}

func sawAll(values map[string]int) bool {
	return !slices.ContainsFunc(outcomes, func(name string) bool { return values[name] == 0 })
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
