package redigo

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
)

// BenchmarkOperations counts the requests of each operation, and of locking and unlocking, with
// contexts that need no goroutine and with one whose deadline is near.
func BenchmarkOperations(b *testing.B) {
	srv := testserver.Redis(b)
	raw := newRaw(b, srv.Addr)
	far, cancel := context.WithCancel(background)
	defer cancel()
	near, cancel := context.WithTimeout(background, ioTimeout)
	defer cancel()
	for _, c := range []struct {
		name string
		ctx  func() context.Context
	}{
		{"", func() context.Context { return far }},
		{"/near-deadline", func() context.Context {
			if time.Until(deadline(near)) < ioTimeout/2 {
				near, cancel = context.WithTimeout(background, ioTimeout)
			}
			return near
		}},
	} {
		l := New(newPool(b, srv.Addr))
		run := func(name string, op func(ctx context.Context, key string) error) {
			b.Run(name+c.name, func(b *testing.B) {
				b.ReportAllocs()
				before := stat(raw, "total_reads_processed")
				key := name + strconv.Itoa(b.N)
				for b.Loop() {
					if err := op(c.ctx(), key); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(stat(raw, "total_reads_processed")-before)/float64(b.N), "requests/op")
			})
		}
		is := func(want, got bool, err error) error {
			if err == nil && want != got {
				err = fmt.Errorf("%v", got)
			}
			return err
		}
		held, err := New(newPool(b, srv.Addr)).Acquire(background, "held", "t", time.Hour)
		if err = is(true, held, err); err != nil {
			b.Fatal(err)
		}
		run("acquire-release", func(ctx context.Context, key string) error {
			ok, err := l.Acquire(ctx, key, "t", time.Minute)
			if err = is(true, ok, err); err != nil {
				return err
			}
			ok, err = l.Release(ctx, key, "t")
			return is(true, ok, err)
		})
		run("refused", func(ctx context.Context, key string) error {
			ok, err := l.Acquire(ctx, "held", "u", time.Minute)
			return is(false, ok, err)
		})
		run("extend", func(ctx context.Context, key string) error {
			ok, err := l.Extend(ctx, "held", "t", time.Minute)
			return is(true, ok, err)
		})
		run("fence", func(ctx context.Context, key string) error {
			_, ok, err := l.Fence(ctx, "held", "t")
			return is(true, ok, err)
		})
		run("lock-unlock", func(ctx context.Context, key string) error {
			lease, err := locker.TryLock(ctx, l, key, time.Minute)
			if err != nil {
				return err
			}
			return lease.Unlock(ctx)
		})
		if ok, err := l.Release(background, "held", "t"); !ok || err != nil {
			b.Fatal(ok, err)
		}
	}
}

func deadline(ctx context.Context) time.Time {
	d, _ := ctx.Deadline()
	return d
}

// BenchmarkParallel measures 32 goroutines that lock and unlock keys of their own.
func BenchmarkParallel(b *testing.B) {
	srv := testserver.Redis(b)
	for _, goroutines := range []int{1, 32} {
		b.Run(strconv.Itoa(goroutines), func(b *testing.B) {
			pool := newPool(b, srv.Addr)
			l := New(pool)
			ctx, cancel := context.WithCancel(background)
			defer cancel()
			var names atomic.Int64
			raw := newRaw(b, srv.Addr)
			before := stat(raw, "total_reads_processed")
			parallel(b, goroutines, func(next func() bool) {
				key := strconv.FormatInt(names.Add(1), 10)
				for next() {
					lease, err := locker.TryLock(ctx, l, key, time.Minute)
					if err == nil {
						err = lease.Unlock(ctx)
					}
					if err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(stat(raw, "total_reads_processed")-before)/float64(b.N), "requests/op")
		})
	}
}

// BenchmarkHandOver measures four Lockers that take one key in turn.
func BenchmarkHandOver(b *testing.B) {
	srv := testserver.Redis(b)
	raw := newRaw(b, srv.Addr)
	before := stat(raw, "total_reads_processed")
	parallel(b, 4, func(next func() bool) {
		l := New(newPool(b, srv.Addr))
		for next() {
			lease, err := locker.Lock(background, l, "k", time.Minute)
			if err == nil {
				err = lease.Unlock(background)
			}
			if err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(stat(raw, "total_reads_processed")-before)/float64(b.N), "requests/op")
}

// parallel shares b.N among goroutines.
func parallel(b *testing.B, goroutines int, f func(next func() bool)) {
	var done atomic.Int64
	ends := make(chan struct{})
	b.ResetTimer()
	for range goroutines {
		go func() {
			defer func() { ends <- struct{}{} }()
			f(func() bool { return done.Add(1) <= int64(b.N) })
		}()
	}
	for range goroutines {
		<-ends
	}
	b.StopTimer()
}

// stat returns a number from the server's INFO.
func stat(raw rawConn, name string) int64 {
	raw.tb.Helper()
	for _, line := range strings.Split(raw.string("INFO", "all"), "\n") {
		var n int64
		if _, err := fmt.Sscanf(line, name+":%d", &n); err == nil {
			return n
		}
	}
	raw.tb.Fatalf("no %s", name)
	return 0
}
