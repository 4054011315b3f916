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
	"go.opentelemetry.io/otel/attribute"
)

// BenchmarkLock is an uncontended TryLock and Unlock in memory: bare, and with an Observer. "off" is
// one without an SDK; "span" has a sampled span in its context.
func BenchmarkLock(b *testing.B) {
	m := newMeters(b)
	tracers, recorder := newTracers(b)
	metrics := []otellocker.Option{otellocker.WithMeterProvider(m)}
	for _, c := range []struct {
		name string
		opts []otellocker.Option
		span bool
	}{
		{name: "bare"},
		{name: "off", opts: []otellocker.Option{}},
		{name: "metrics", opts: metrics},
		{name: "metrics+key", opts: append(slices.Clone(metrics),
			otellocker.WithKeyAttribute(func(string) string { return "k" }),
			otellocker.WithAttributes(attribute.String("locker.backend", "memory")))},
		{name: "metrics+spans", opts: append(slices.Clone(metrics), otellocker.WithTracerProvider(tracers)), span: true},
	} {
		b.Run(c.name, func(b *testing.B) {
			var l locker.Locker = memory.New()
			if c.opts != nil {
				l = locker.Observed(l, otellocker.NewObserver(c.opts...))
			}
			ctx := b.Context()
			if c.span {
				parent, span := tracers.Tracer("test").Start(ctx, "parent")
				defer span.End()
				ctx = parent
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				lease, err := locker.TryLock(ctx, l, "k", time.Minute)
				if err == nil {
					err = lease.Unlock(ctx)
				}
				require.NoError(b, err)
				if c.span && i%1000 == 0 {
					recorder.Reset()
				}
			}
		})
	}
}

// BenchmarkHit is a Load that finds the value in the cache.
func BenchmarkHit(b *testing.B) {
	cached := &cache{value: "v", fresh: true}
	source := func(context.Context, string) (string, error) { return "v", nil }
	for _, c := range []struct {
		name string
		opts []singleflight.LoaderOption
	}{
		{name: "bare"},
		{"off", []singleflight.LoaderOption{singleflight.WithLoadObserver(otellocker.NewLoadObserver())}},
		{"metrics", []singleflight.LoaderOption{singleflight.WithLoadObserver(
			otellocker.NewLoadObserver(otellocker.WithMeterProvider(newMeters(b))))}},
	} {
		b.Run(c.name, func(b *testing.B) {
			loader := singleflight.NewLoader(memory.New(), cached, source, c.opts...)
			ctx := context.Background()
			b.ReportAllocs()
			for b.Loop() {
				_, err := loader.Load(ctx, "k")
				require.NoError(b, err)
			}
		})
	}
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
	assert.LessOrEqual(t, testing.AllocsPerRun(1000, lock(locker.Observed(memory.New(), observer))), bare+3)

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
