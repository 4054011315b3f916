package locker_test

import (
	"context"
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

// BenchmarkObserved is an uncontended lock with and without an Observer.
func BenchmarkObserved(b *testing.B) {
	client := redis.NewClient(&redis.Options{Addr: testserver.Redis(b).Addr, MaxRetries: -1})
	b.Cleanup(func() { assert.NoError(b, client.Close()) })
	for _, backend := range []struct {
		name string
		l    locker.Locker
	}{{"memory", memory.New()}, {"redisv9", redisv9.New(client)}} {
		for _, cycle := range cycles {
			for _, observer := range []struct {
				name string
				l    locker.Locker
			}{{"bare", backend.l}, {"observed", locker.Observed(backend.l, &counter{})}} {
				b.Run(backend.name+"/"+cycle.name+"/"+observer.name, func(b *testing.B) {
					ctx := b.Context()
					b.ReportAllocs()
					for b.Loop() {
						require.NoError(b, cycle.run(ctx, observer.l))
					}
				})
			}
		}
	}
}

// An Observer costs two allocations or fewer.
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
