package memcache

import (
	"context"
	"crypto/rand"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker/internal/testserver"
)

// The benchmarks compare a Locker with the usual handwritten add and delete. That is two requests a
// cycle where a Locker makes three, and its delete also frees the lock of a later holder.

type cycle func(b *testing.B, key string)

func cycles(client *gomemcache.Client) map[string]cycle {
	l := New(client)
	return map[string]cycle{
		"locker": func(b *testing.B, key string) {
			token := rand.Text()
			ok, err := l.Acquire(context.Background(), key, token, time.Minute)
			if err != nil || !ok {
				b.Fatal(ok, err)
			}
			ok, err = l.Release(context.Background(), key, token)
			if err != nil || !ok {
				b.Fatal(ok, err)
			}
		},
		"by hand": func(b *testing.B, key string) {
			err := client.Add(&gomemcache.Item{Key: key, Value: []byte("1"), Expiration: 60})
			if err != nil {
				b.Fatal(err)
			}
			if err := client.Delete(key); err != nil {
				b.Fatal(err)
			}
		},
	}
}

// BenchmarkCycle measures acquire and release without contention.
func BenchmarkCycle(b *testing.B) {
	client := newClient(b, testserver.Memcached(b).Addr)
	for name, cycle := range cycles(client) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				cycle(b, "key")
			}
		})
	}
}

// BenchmarkCycle32 is the same by 32 goroutines, each with a key of its own.
func BenchmarkCycle32(b *testing.B) {
	client := newClient(b, testserver.Memcached(b).Addr)
	client.MaxIdleConns = 64
	for name, cycle := range cycles(client) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(16) // times GOMAXPROCS
			var next atomic.Int32
			b.RunParallel(func(pb *testing.PB) {
				key := "key" + strconv.Itoa(int(next.Add(1)))
				for pb.Next() {
					cycle(b, key)
				}
			})
		})
	}
}

// BenchmarkRefused measures the attempt that a waiter repeats.
func BenchmarkRefused(b *testing.B) {
	client := newClient(b, testserver.Memcached(b).Addr)
	l := New(client)
	ctx := context.Background()
	if ok, err := l.Acquire(ctx, "key", "holder", time.Hour); err != nil || !ok {
		b.Fatal(ok, err)
	}
	b.Run("locker", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if ok, err := l.Acquire(ctx, "key", "waiter", time.Minute); err != nil || ok {
				b.Fatal(ok, err)
			}
		}
	})
	b.Run("by hand", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			err := client.Add(&gomemcache.Item{Key: "locker:key", Value: []byte("1"), Expiration: 60})
			if !errors.Is(err, gomemcache.ErrNotStored) {
				b.Fatal(err)
			}
		}
	})
}
