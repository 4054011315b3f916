package rueidis_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/golockers/locker/internal/redislock/redistest"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/golockers/locker/rueidis"
	"github.com/redis/go-redis/v9"
	rueidisclient "github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// both is what the Lockers of both packages can do.
type both interface {
	locker.Waiter
	locker.Watcher
	locker.Fencer
	locker.Inspector
}

// pairs returns, for each kind of server, what makes Lockers of either package as other processes do.
func pairs(tb testing.TB) map[string]func(tb testing.TB) (ofRedisv9, ofRueidis both, admin redis.UniversalClient) {
	single, cluster := testserver.Redis(tb).Addr, testserver.RedisCluster(tb, 3)
	return map[string]func(tb testing.TB) (ofRedisv9, ofRueidis both, admin redis.UniversalClient){
		"single": func(tb testing.TB) (ofRedisv9, ofRueidis both, admin redis.UniversalClient) {
			client := newAdmin(tb, single)
			return redisv9.New(client), at(tb, single), client
		},
		"Cluster": func(tb testing.TB) (ofRedisv9, ofRueidis both, admin redis.UniversalClient) {
			client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster})
			tb.Cleanup(func() { _ = client.Close() })
			return redisv9.New(client), newLocker(tb, rueidisclient.ClientOption{InitAddress: cluster}), client
		},
	}
}

// Processes that use either package wait in one queue and take turns, and a release by a process of
// either package hands the lock to a process of the same or the other one.
func TestOneQueue(t *testing.T) {
	t.Parallel()
	for name, open := range pairs(t) {
		var lockers []both
		var admin redis.UniversalClient
		for range 3 {
			a, b, client := open(t)
			lockers, admin = append(lockers, a, b), client
		}
		acquires(t, lockers[0], "k", "holder", time.Minute)
		order := []int{1, 0, 3, 2, 4, 5, 1, 0, 5, 5} // all four ways to hand it on
		var waiting []<-chan redistest.Turn
		for i, n := range order {
			if i < len(lockers) {
				waiting = append(waiting, joins(t, admin, lockers[n], t.Context(), "k", fmt.Sprint("t", i), time.Minute))
			} else {
				waiting = append(waiting, stands(t, lockers[n], t.Context(), "k", fmt.Sprint("t", i), time.Minute))
			}
		}
		holder, token := lockers[0], "holder"
		for i, n := range order {
			start := time.Now()
			releases(t, holder, "k", token)
			isServed(t, waiting[i], name+": its turn has come")
			assert.Less(t, time.Since(start), 9*time.Second, "%s: it was told", name)
			holder, token = lockers[n], fmt.Sprint("t", i)
			require.Equal(t, token, admin.Get(t.Context(), "locker:k").Val(), name)
			for _, l := range lockers[:2] {
				info, err := l.Inspect(t.Context(), "k")
				require.NoError(t, err)
				later := slices.Compact(slices.Sorted(slices.Values(order[i+1:]))) // one place for each process
				assert.Equal(t, locker.Info{Key: "k", Token: token, TTL: info.TTL, Waiters: len(later)}, info, name)
			}
		}
		releases(t, holder, "k", token)
	}
}

// Each package refuses, extends and releases the other's locks, and hears of the releases. Fencing
// numbers are from one counter.
func TestSameLocks(t *testing.T) {
	t.Parallel()
	for name, open := range pairs(t) {
		a, b, _ := open(t)
		for range 2 {
			ctx := t.Context()
			woken, err := b.Watch(ctx, "k")
			require.NoError(t, err)
			acquires(t, a, "k", "123:t", time.Minute)
			ok, err := b.Acquire(ctx, "k", "other", time.Minute)
			require.NoError(t, err)
			require.False(t, ok, name)
			first, ok, err := a.Fence(ctx, "k", "123:t")
			require.True(t, ok && err == nil, name)
			ok, err = b.Extend(ctx, "k", "123:t", time.Hour)
			require.True(t, ok && err == nil, name)
			second, ok, err := b.Fence(ctx, "k", "123:t")
			require.True(t, ok && err == nil, name)
			assert.Greater(t, second, first, name)
			releases(t, b, "k", "123:t")
			acquires(t, a, "k", "t", time.Minute)
			releases(t, a, "k", "t")
			isWoken(t, woken, "the other package has released the lock")
			a, b = b, a
		}
	}
}

// A crowd of both packages takes turns, and each gets its share.
func TestTakingTurns(t *testing.T) {
	t.Parallel()
	const cycles = 300
	a, b, _ := pairs(t)["single"](t)
	served := make(chan int, cycles)
	errs := make(chan error, 8)
	for i := range 8 {
		l := []locker.Locker{a, b}[i%2]
		go func() {
			for {
				lease, err := locker.Lock(t.Context(), l, "k", time.Minute)
				if err == nil {
					select {
					case served <- i % 2:
					default:
						errs <- lease.Unlock(t.Context())
						return
					}
					err = lease.Unlock(t.Context())
				}
				if err != nil {
					errs <- err
					return
				}
			}
		}()
	}
	for range 8 {
		require.NoError(t, <-errs)
	}
	var share [2]int
	for range cycles {
		share[<-served]++
	}
	t.Log("redisv9 and rueidis were served", share)
	assert.Greater(t, min(share[0], share[1]), cycles/4)
}

var _ both = (*rueidis.Locker)(nil)

// A lock that lingers in a process of one package is given up for a process of the other.
func TestLinger(t *testing.T) {
	t.Parallel()
	for name, open := range pairs(t) {
		a, b, _ := open(t)
		for range 2 {
			l := cohort.New(a, cohort.WithLinger(time.Minute))
			use := func(l locker.Locker) {
				lease, err := locker.Lock(t.Context(), l, "k", time.Minute)
				require.NoError(t, err, name)
				require.NoError(t, lease.Unlock(t.Context()), name)
			}
			for range 20 {
				require.Eventually(t, func() bool {
					use(l)
					info, err := b.Inspect(t.Context(), "k")
					require.NoError(t, err)
					return info.Token != ""
				}, 30*time.Second, time.Millisecond, "%s: it does not linger", name)
				lease, err := locker.TryLock(t.Context(), b, "k", time.Minute)
				require.NoError(t, err, name)
				require.NoError(t, lease.Unlock(t.Context()), name)
				use(l)
				use(b)
			}
			require.NoError(t, l.Close())
			a, b = b, a
		}
	}
}
