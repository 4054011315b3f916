package locker_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// counter is the least that an Observer for metrics does.
type counter struct{ kinds [16]int }

func (c *counter) Observe(_ context.Context, e locker.Event) { c.kinds[e.Kind]++ }

// cycles are what a lock costs, by the way in which it is used.
var cycles = []struct {
	name string
	run  func(ctx context.Context, l locker.Locker) error
}{
	{"Lock", func(ctx context.Context, l locker.Locker) error {
		lease, err := locker.Lock(ctx, l, "k", time.Minute)
		if err != nil {
			return err
		}
		return lease.Unlock(ctx)
	}},
	{"TryDo", func(ctx context.Context, l locker.Locker) error {
		_, err := locker.TryDo(ctx, l, "k", time.Minute, func(context.Context) error { return nil })
		return err
	}},
}

// BenchmarkObserved is an uncontended lock with and without an Observer. The two take turns, so
// that a busy machine slows both: the metrics are medians, and their ratio.
func BenchmarkObserved(b *testing.B) {
	client := redis.NewClient(&redis.Options{Addr: testserver.Redis(b).Addr, MaxRetries: -1})
	b.Cleanup(func() { assert.NoError(b, client.Close()) })
	for _, backend := range []struct {
		name string
		l    locker.Locker
	}{{"memory", memory.New()}, {"redisv9", redisv9.New(client)}} {
		observed := locker.Observed(backend.l, &counter{})
		for _, cycle := range cycles {
			b.Run(backend.name+"/"+cycle.name, func(b *testing.B) {
				ctx := b.Context()
				timed := func(l locker.Locker) time.Duration {
					start := time.Now()
					require.NoError(b, cycle.run(ctx, l))
					return time.Since(start)
				}
				var without, with []time.Duration
				for i := 0; b.Loop(); i++ {
					if i%2 == 0 { // the second of a pair may be at an advantage
						without = append(without, timed(backend.l))
					}
					with = append(with, timed(observed))
					if i%2 == 1 {
						without = append(without, timed(backend.l))
					}
				}
				slices.Sort(without)
				slices.Sort(with)
				bare, seen := without[len(without)/2], with[len(with)/2]
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(float64(bare), "bare-ns")
				b.ReportMetric(float64(seen), "observed-ns")
				b.ReportMetric(float64(seen)/float64(bare), "ratio")
			})
		}
	}
}

// A Lock and its Unlock make two allocations, the lease and its token, and a third under the race
// detector.
func TestAllocations(t *testing.T) {
	ctx, l := t.Context(), memory.New()
	assert.LessOrEqual(t, testing.AllocsPerRun(1000, func() { require.NoError(t, cycles[0].run(ctx, l)) }), 3.0)
}

// An Observer costs three allocations or fewer.
func TestObservedAllocations(t *testing.T) {
	ctx := t.Context()
	for _, cycle := range cycles {
		allocs := func(l locker.Locker) float64 {
			return testing.AllocsPerRun(1000, func() { require.NoError(t, cycle.run(ctx, l)) })
		}
		l := memory.New()
		bare := allocs(l)
		assert.LessOrEqual(t, allocs(locker.Observed(l, &counter{})), bare+2, cycle.name)
	}
}
