package cohort_test

import (
	"context"
	"math/rand/v2"
	"os"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/memcache"
	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/redigo"
	"github.com/golockers/locker/redisv9"
	redigoclient "github.com/gomodule/redigo/redis"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// chaosTime is how long each storm lasts. make chaos sets LOCKER_CHAOS to 10m.
func chaosTime(t *testing.T) time.Duration {
	t.Helper()
	s := os.Getenv("LOCKER_CHAOS")
	if s == "" {
		return 2 * time.Second
	}
	d, err := time.ParseDuration(s)
	require.NoError(t, err)
	return d
}

// storms is why one storm is enough for most changes.
const storms = "the storm on redisv9 always runs"

// A storm of random cancellations on real backends: no grant is lost, there are never two holders, and
// nothing is left in the end.
func TestChaos(t *testing.T) {
	inProcess := memory.New()
	for name, process := range map[string]func(tb testing.TB) func() locker.Locker{
		"memory":                func(testing.TB) func() locker.Locker { return func() locker.Locker { return inProcess } },
		"redisv9":               onRedisv9(),
		"redisv9 with slots: 1": onRedisv9(redisv9.WithBatching(1)),
		"redisv9 with slots: 4": onRedisv9(redisv9.WithBatching(4)),
		"redigo": func(tb testing.TB) func() locker.Locker {
			addr := testserver.Redis(tb).Addr
			return func() locker.Locker {
				pool := &redigoclient.Pool{MaxIdle: 10, Dial: func() (redigoclient.Conn, error) {
					return redigoclient.Dial("tcp", addr)
				}}
				tb.Cleanup(func() { _ = pool.Close() })
				return redigo.New(pool)
			}
		},
		"memcache": func(tb testing.TB) func() locker.Locker {
			addr := testserver.Memcached(tb).Addr
			return func() locker.Locker {
				client := gomemcache.New(addr)
				client.MaxIdleConns = 10
				client.Timeout = 3 * time.Second
				tb.Cleanup(func() { _ = client.Close() })
				return memcache.New(client)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "redisv9" {
				testserver.Variant(t, storms)
			}
			t.Parallel()
			storm(t, process(t), chaosTime(t))
		})
		if name == "redigo" || name == "memcache" { // they do not report demands
			continue
		}
		t.Run(name+", lingering", func(t *testing.T) {
			testserver.Variant(t, storms)
			t.Parallel()
			storm(t, process(t), chaosTime(t), cohort.WithLinger(10*time.Millisecond))
		})
	}
}

// onRedisv9 returns processes that share a server of their own.
func onRedisv9(opts ...redisv9.Option) func(tb testing.TB) func() locker.Locker {
	return func(tb testing.TB) func() locker.Locker {
		addr := testserver.Redis(tb).Addr
		return func() locker.Locker {
			client := redis.NewClient(&redis.Options{Addr: addr})
			tb.Cleanup(func() { _ = client.Close() })
			return redisv9.New(client, opts...)
		}
	}
}

// storm gives the options to all processes but the last.
func storm(t *testing.T, process func() locker.Locker, d time.Duration, opts ...cohort.Option) {
	t.Helper()
	const processes, goroutines, ttl = 4, 8, 10 * time.Second
	label := pprof.Labels("storm", t.Name())
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	var inside, served, gaveUp, waits atomic.Int64
	var lockers []*cohort.Locker
	var wg sync.WaitGroup
	for i := range processes {
		all := []cohort.Option{cohort.WithMaxTenure(5 * time.Millisecond)}
		if i < processes-1 {
			all = append(all, opts...)
		}
		l := cohort.New(process(), all...)
		lockers = append(lockers, l)
		for i := range goroutines {
			patient := i == 0 // never canceled, so it must be served however often the others are
			wg.Go(func() {
				pprof.Do(context.Background(), label, func(labelled context.Context) {
					for ctx.Err() == nil {
						ctx, cancel := context.WithTimeout(labelled, rand.N(20*time.Millisecond))
						if patient {
							cancel()
							ctx, cancel = context.WithTimeout(labelled, time.Minute)
						}
						start := time.Now()
						lease, err := locker.Lock(ctx, l, "k", ttl)
						if err != nil {
							assert.ErrorIs(t, err, context.DeadlineExceeded)
							assert.False(t, patient, "a grant was lost: %v", err)
							gaveUp.Add(1)
							cancel()
							continue
						}
						if patient {
							waits.Store(max(waits.Load(), int64(time.Since(start))))
						}
						assert.EqualValues(t, 1, inside.Add(1), "two holders")
						time.Sleep(rand.N(time.Millisecond))
						inside.Add(-1)
						if rand.IntN(2) == 0 {
							cancel()
						}
						assert.NoError(t, lease.Unlock(ctx))
						cancel()
						served.Add(1)
					}
				})
			})
		}
	}
	wg.Wait()
	t.Logf("%d served, %d gave up, the longest wait that could not be cancelled was %v",
		served.Load(), gaveUp.Load(), time.Duration(waits.Load()).Round(time.Millisecond))
	assert.Positive(t, served.Load())
	assert.Positive(t, gaveUp.Load())

	for _, l := range lockers {
		assert.NoError(t, l.Close())
	}
	assert.Eventually(t, func() bool {
		for _, l := range lockers {
			if cohort.Entries(l) > 0 {
				return false
			}
		}
		return true
	}, 30*time.Second, 10*time.Millisecond, "a record is left")
	assert.Eventually(t, func() bool {
		var goroutines strings.Builder
		_ = pprof.Lookup("goroutine").WriteTo(&goroutines, 1)
		return !strings.Contains(goroutines.String(), `"storm":"`+t.Name()+`"`)
	}, 30*time.Second, 100*time.Millisecond, "a goroutine is left")

	last, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	lease, err := locker.Lock(last, lockers[0], "k", ttl)
	require.NoError(t, err, "a grant was lost")
	assert.NoError(t, lease.Unlock(last))
}
