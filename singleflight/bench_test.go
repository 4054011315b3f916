package singleflight

import (
	"context"
	"strconv"
	"testing"
)

func BenchmarkGroup(b *testing.B) {
	fn := func(context.Context) (int, error) { return 42, nil }
	run := func(name string, ctx context.Context) {
		b.Run(name, func(b *testing.B) {
			var g Group[int]
			b.ReportAllocs()
			for b.Loop() {
				g.Do(ctx, "k", fn)
			}
		})
	}
	run("cannot-end", context.Background())
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	run("can-end", ctx)
}

// BenchmarkLoader is what the Loader itself costs, with a cache and locks in this process.
func BenchmarkLoader(b *testing.B) {
	source := func(context.Context, string) (string, error) { return "v", nil }
	run := func(name string, ctx context.Context, hit bool) {
		b.Run(name, func(b *testing.B) {
			backend := newBackend()
			l := NewLoader(backend.locks, Cache[string](benchCache{backend}), source)
			backend.set("k", "v")
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				key := "k"
				if !hit {
					key = strconv.Itoa(i)
				}
				if _, err := l.Load(ctx, key); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	run("hit/cannot-end", context.Background(), true)
	run("hit/can-end", ctx, true)
	run("miss/cannot-end", context.Background(), false)
	run("miss/can-end", ctx, false)
}

type benchCache struct{ *fakeBackend }

func (c benchCache) Get(_ context.Context, key string) (string, bool, error) {
	v, ok := c.get(key)
	return v, ok, nil
}

func (c benchCache) Set(_ context.Context, key, v string) error {
	c.set(key, v)
	return nil
}
