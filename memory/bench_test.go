package memory

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/stretchr/testify/require"
)

func must(tb testing.TB, ok bool, err error) {
	if !ok || err != nil {
		tb.Fatal(ok, err)
	}
}

func TestAllocations(t *testing.T) {
	ctx, l := context.Background(), New()
	for i := range 1000 { // not the only locks there are
		ok, err := l.Acquire(ctx, fmt.Sprint(i), "a", time.Hour)
		must(t, ok, err)
	}
	for _, c := range []struct {
		name string
		most float64
		do   func()
	}{
		{"acquire and release", 0, func() {
			ok, err := l.Acquire(ctx, key, "a", time.Hour)
			must(t, ok, err)
			ok, err = l.Release(ctx, key, "a")
			must(t, ok, err)
		}},
		{"wait and release", 0, func() {
			_, err := l.Wait(ctx, key, "a", time.Hour)
			must(t, true, err)
			ok, err := l.Release(ctx, key, "a")
			must(t, ok, err)
		}},
		{"refused", 0, func() {
			ok, err := l.Acquire(ctx, "1", "b", time.Hour)
			must(t, !ok, err)
		}},
		{"not held", 0, func() {
			ok, err := l.Release(ctx, key, "a")
			must(t, !ok, err)
		}},
		{"extend", 0, func() {
			ok, err := l.Extend(ctx, "1", "a", time.Hour)
			must(t, ok, err)
		}},
		{"fence", 0, func() {
			_, ok, err := l.Fence(ctx, "1", "a")
			must(t, ok, err)
		}},
		{"lock and unlock", 4, func() {
			lease, err := locker.Lock(ctx, l, key, time.Hour)
			must(t, true, err)
			must(t, true, lease.Unlock(ctx))
		}},
	} {
		require.LessOrEqual(t, testing.AllocsPerRun(1000, c.do), c.most, c.name)
	}
}

func BenchmarkLockUnlock(b *testing.B) {
	ctx, l := context.Background(), New()
	b.ReportAllocs()
	for b.Loop() {
		lease, err := locker.Lock(ctx, l, key, time.Minute)
		must(b, true, err)
		must(b, true, lease.Unlock(ctx))
	}
}

func BenchmarkAcquireRelease(b *testing.B) {
	ctx, l := context.Background(), New()
	b.ReportAllocs()
	for b.Loop() {
		ok, err := l.Acquire(ctx, key, "a", time.Minute)
		must(b, ok, err)
		ok, err = l.Release(ctx, key, "a")
		must(b, ok, err)
	}
}

// A hundred thousand other locks are held: each operation looks at two of them.
func BenchmarkAcquireReleaseAmongMany(b *testing.B) {
	ctx, l := context.Background(), New()
	for i := range 100_000 {
		ok, err := l.Acquire(ctx, fmt.Sprint(i), "a", time.Hour)
		must(b, ok, err)
	}
	b.ReportAllocs()
	for b.Loop() {
		ok, err := l.Acquire(ctx, key, "a", time.Minute)
		must(b, ok, err)
		ok, err = l.Release(ctx, key, "a")
		must(b, ok, err)
	}
}

func BenchmarkRefused(b *testing.B) {
	ctx, l := context.Background(), New()
	ok, err := l.Acquire(ctx, key, "a", time.Hour)
	must(b, ok, err)
	b.ReportAllocs()
	for b.Loop() {
		ok, err := l.Acquire(ctx, key, "b", time.Minute)
		must(b, !ok, err)
	}
}

func BenchmarkExtend(b *testing.B) {
	ctx, l := context.Background(), New()
	ok, err := l.Acquire(ctx, key, "a", time.Hour)
	must(b, ok, err)
	b.ReportAllocs()
	for b.Loop() {
		ok, err := l.Extend(ctx, key, "a", time.Hour)
		must(b, ok, err)
	}
}

func BenchmarkFence(b *testing.B) {
	ctx, l := context.Background(), New()
	ok, err := l.Acquire(ctx, key, "a", time.Hour)
	must(b, ok, err)
	b.ReportAllocs()
	for b.Loop() {
		_, ok, err := l.Fence(ctx, key, "a")
		must(b, ok, err)
	}
}

func BenchmarkWatch(b *testing.B) {
	l := New()
	b.ReportAllocs()
	for b.Loop() {
		ctx, cancel := context.WithCancel(context.Background())
		_, err := l.Watch(ctx, key)
		must(b, true, err)
		cancel()
	}
}

// Every goroutine has a key of its own.
func BenchmarkParallelOwnKeys(b *testing.B) {
	ctx, l := context.Background(), New()
	var id atomic.Int64
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		key := fmt.Sprint(id.Add(1))
		for pb.Next() {
			ok, err := l.Acquire(ctx, key, "a", time.Minute)
			must(b, ok, err)
			ok, err = l.Release(ctx, key, "a")
			must(b, ok, err)
		}
	})
}

// Thirty-two goroutines for each processor in one queue: an operation is a handoff.
func BenchmarkParallelOneKey(b *testing.B) {
	ctx, l := context.Background(), New()
	var id atomic.Int64
	b.ReportAllocs()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		token := fmt.Sprint(id.Add(1))
		for pb.Next() {
			_, err := l.Wait(ctx, key, token, time.Minute)
			must(b, true, err)
			ok, err := l.Release(ctx, key, token)
			must(b, ok, err)
		}
	})
}
