// Package singleflight_test compares singleflight.Group with golang.org/x/sync/singleflight and
// resenje.org/singleflight.
package singleflight_test

import (
	"context"
	"runtime"
	"runtime/metrics"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/singleflight"
	xsync "golang.org/x/sync/singleflight"
	resenje "resenje.org/singleflight"
)

// flight is a call of one contender.
type flight func(ctx context.Context, key string, fn func()) error

// contenders make flights, each with a group of its own. The functions that they run cost nothing except the
// closure that adapts fn, which each contender has if fn is not nil.
var contenders = []struct {
	name string
	// make is for callers that cannot leave, makeLeaving for those that can.
	make, makeLeaving func() flight
}{
	{"xsync", makeXsync, makeXsyncChan},
	{"resenje", makeResenje, makeResenje},
	{"Group", makeGroup, makeGroup},
	{"Fleet", makeFleet, makeFleet},
}

func makeXsync() flight {
	var g xsync.Group
	idle := func() (any, error) { return nil, nil }
	return func(_ context.Context, key string, fn func()) error {
		f := idle
		if fn != nil {
			f = func() (any, error) { fn(); return nil, nil }
		}
		_, err, _ := g.Do(key, f)
		return err
	}
}

// makeXsyncChan is x/sync's way to let a caller leave.
func makeXsyncChan() flight {
	var g xsync.Group
	idle := func() (any, error) { return nil, nil }
	return func(ctx context.Context, key string, fn func()) error {
		f := idle
		if fn != nil {
			f = func() (any, error) { fn(); return nil, nil }
		}
		select {
		case r := <-g.DoChan(key, f):
			return r.Err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func makeResenje() flight {
	var g resenje.Group[string, any]
	idle := func(context.Context) (any, error) { return nil, nil }
	return func(ctx context.Context, key string, fn func()) error {
		f := idle
		if fn != nil {
			f = func(context.Context) (any, error) { fn(); return nil, nil }
		}
		_, _, err := g.Do(ctx, key, f)
		return err
	}
}

func makeGroup() flight {
	var g singleflight.Group[any]
	idle := func(context.Context) (any, error) { return nil, nil }
	return func(ctx context.Context, key string, fn func()) error {
		f := idle
		if fn != nil {
			f = func(context.Context) (any, error) { fn(); return nil, nil }
		}
		_, _, err := g.Do(ctx, key, f)
		return err
	}
}

// makeFleet is over locks and slots in memory. An outcome does not stay in its slot.
func makeFleet() flight {
	f := singleflight.NewFleet(memory.New(), memory.NewCache(memory.CacheConfig[any]{TTL: time.Minute}),
		singleflight.WithSlotTTL(time.Nanosecond))
	idle := func(context.Context) (any, error) { return nil, nil }
	return func(ctx context.Context, key string, fn func()) error {
		call := idle
		if fn != nil {
			call = func(context.Context) (any, error) { fn(); return nil, nil }
		}
		_, _, err := f.Do(ctx, key, call)
		return err
	}
}

// each runs a benchmark for every contender, in turn.
func each(b *testing.B, leaving bool, run func(b *testing.B, ctx context.Context, do flight)) {
	for _, c := range contenders {
		b.Run("who="+c.name, func(b *testing.B) {
			ctx, do := context.Background(), c.make()
			if leaving {
				var cancel context.CancelFunc
				ctx, cancel = context.WithCancel(ctx)
				defer cancel()
				do = c.makeLeaving()
			}
			b.ReportAllocs()
			run(b, ctx, do)
		})
	}
}

func one(b *testing.B, ctx context.Context, do flight) {
	for b.Loop() {
		if err := do(ctx, "key", nil); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOne is one caller on a context that cannot end.
func BenchmarkOne(b *testing.B) { each(b, false, one) }

// BenchmarkOneLeaving is one caller that can leave.
func BenchmarkOneLeaving(b *testing.B) { each(b, true, one) }

// BenchmarkKeys is callers of many keys in parallel.
func BenchmarkKeys(b *testing.B) {
	keys := make([]string, 1024)
	for i := range keys {
		keys[i] = "key " + strconv.Itoa(i)
	}
	each(b, false, func(b *testing.B, ctx context.Context, do flight) {
		b.RunParallel(func(pb *testing.PB) {
			for i := 0; pb.Next(); i++ {
				if err := do(ctx, keys[i%len(keys)], nil); err != nil {
					b.Error(err)
				}
			}
		})
	})
}

// thousand runs 1,000 callers of one flight, which ends when all have been started.
func thousand(b *testing.B, ctx context.Context, do flight) {
	for b.Loop() {
		var all, begun sync.WaitGroup
		begun.Add(1000)
		for range 1000 {
			all.Go(func() {
				begun.Done()
				if err := do(ctx, "key", begun.Wait); err != nil {
					b.Error(err)
				}
			})
		}
		all.Wait()
	}
}

// BenchmarkThousand is on a context that cannot end.
func BenchmarkThousand(b *testing.B) { each(b, false, thousand) }

// BenchmarkThousandLeaving is of callers that can leave.
func BenchmarkThousandLeaving(b *testing.B) { each(b, true, thousand) }

// BenchmarkWaiting reports the memory of a caller that waits for a flight and can leave, its goroutine
// included.
func BenchmarkWaiting(b *testing.B) {
	each(b, true, func(b *testing.B, ctx context.Context, do flight) {
		const callers = 10_000
		var bytes int64
		for b.Loop() {
			before := used()
			var all, begun sync.WaitGroup
			begun.Add(callers)
			end := make(chan struct{})
			for range callers {
				all.Go(func() {
					begun.Done()
					if err := do(ctx, "key", func() { <-end }); err != nil {
						b.Error(err)
					}
				})
			}
			begun.Wait()
			time.Sleep(50 * time.Millisecond) // from there to waiting
			bytes += used() - before
			close(end)
			all.Wait()
		}
		b.ReportMetric(float64(bytes)/callers/float64(b.N), "bytes/caller")
	})
}

// used is how many bytes are in use by objects and stacks.
func used() int64 {
	runtime.GC()
	runtime.GC()
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64() + s[1].Value.Uint64())
}
