package otellocker_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/otellocker"
	"github.com/golockers/locker/singleflight"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// BenchmarkLock is an uncontended TryLock and Unlock in memory. "off" is an Observer without an SDK;
// "metrics+spans" has a sampled span in its context.
func BenchmarkLock(b *testing.B) {
	m := newMeters(b)
	tracers, recorder := newTracers(b)
	sampled, span := tracers.Tracer("test").Start(b.Context(), "parent")
	defer span.End()
	metrics := otellocker.WithMeterProvider(m)
	key := otellocker.WithKeyAttribute(func(string) string { return "k" })
	cycle := func(ctx context.Context, l locker.Locker) func() {
		return func() {
			lease, err := locker.TryLock(ctx, l, "k", time.Minute)
			if err == nil {
				err = lease.Unlock(ctx)
			}
			require.NoError(b, err)
		}
	}
	for _, c := range []struct {
		name string
		ctx  context.Context
		opts []otellocker.Option
	}{
		{"off", b.Context(), nil},
		{"metrics", b.Context(), []otellocker.Option{metrics}},
		{"metrics+key", b.Context(), []otellocker.Option{metrics, key}},
		{"metrics+spans", sampled, []otellocker.Option{metrics, otellocker.WithTracerProvider(tracers)}},
	} {
		b.Run(c.name, func(b *testing.B) {
			l := locker.Observed(memory.New(), otellocker.NewObserver(c.opts...))
			compare(b, cycle(c.ctx, memory.New()), cycle(c.ctx, l), recorder.Reset)
		})
	}
}

// BenchmarkHit is a Load that finds the value in the cache.
func BenchmarkHit(b *testing.B) {
	load := func(opts ...singleflight.LoaderOption) func() {
		loader := singleflight.NewLoader(memory.New(), &cache{value: "v", fresh: true},
			func(context.Context, string) (string, error) { return "", errBackend }, opts...)
		return func() {
			_, err := loader.Load(context.Background(), "k")
			require.NoError(b, err)
		}
	}
	for name, opts := range map[string][]otellocker.Option{
		"off": nil, "metrics": {otellocker.WithMeterProvider(newMeters(b))},
	} {
		b.Run(name, func(b *testing.B) {
			compare(b, load(), load(singleflight.WithLoadObserver(otellocker.NewLoadObserver(opts...))), func() {})
		})
	}
}

// compare runs both in turns, so that a busy machine slows both, and reports medians. It calls tidy
// now and then.
func compare(b *testing.B, bare, observed, tidy func()) {
	b.Helper()
	timed := func(f func()) time.Duration {
		start := time.Now()
		f()
		return time.Since(start)
	}
	var without, with []time.Duration
	for i := 0; b.Loop(); i++ {
		if i%2 == 0 { // the second of a pair may be at an advantage
			without = append(without, timed(bare))
		}
		with = append(with, timed(observed))
		if i%2 == 1 {
			without = append(without, timed(bare))
		}
		if i%1000 == 0 {
			tidy()
		}
	}
	slices.Sort(without)
	slices.Sort(with)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(without[len(without)/2]), "bare-ns")
	b.ReportMetric(float64(with[len(with)/2]), "observed-ns")
	b.ReportMetric(testing.AllocsPerRun(1000, bare), "bare-allocs")
	b.ReportMetric(testing.AllocsPerRun(1000, observed), "observed-allocs")
}

// The package documentation says how many allocations more there are.
func TestAllocations(t *testing.T) {
	m := newMeters(t)
	lock := func(l locker.Locker) func() {
		return func() {
			lease, err := locker.TryLock(t.Context(), l, "k", time.Minute)
			require.NoError(t, err)
			require.NoError(t, lease.Unlock(t.Context()))
		}
	}
	bare := testing.AllocsPerRun(1000, lock(memory.New()))
	observer := otellocker.NewObserver(otellocker.WithMeterProvider(m))
	assert.LessOrEqual(t, testing.AllocsPerRun(1000, lock(locker.Observed(memory.New(), observer))), bare+2)

	hit := func(opts ...singleflight.LoaderOption) func() {
		loader := singleflight.NewLoader(memory.New(), &cache{value: "v", fresh: true},
			func(context.Context, string) (string, error) { return "", errBackend }, opts...)
		return func() {
			_, err := loader.Load(context.Background(), "k")
			require.NoError(t, err)
		}
	}
	bare = testing.AllocsPerRun(1000, hit())
	observe := singleflight.WithLoadObserver(otellocker.NewLoadObserver(otellocker.WithMeterProvider(m)))
	assert.LessOrEqual(t, testing.AllocsPerRun(1000, hit(observe)), bare+1)
}
