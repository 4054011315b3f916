package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/otellocker"
	"github.com/golockers/locker/redisv9"
	"github.com/golockers/locker/singleflight"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
)

// serve runs the service for that long, or until ctx ends.
func serve(ctx context.Context, redisAddr, metricsAddr string, length time.Duration) error {
	registry := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(registry))
	if err != nil {
		return err
	}
	meters := otellocker.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(reader)))
	metrics := &http.Server{
		Addr: metricsAddr, Handler: promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), ReadHeaderTimeout: time.Second,
	}
	failed := make(chan error, 1)
	go func() { failed <- metrics.ListenAndServe() }()
	defer metrics.Close()

	client := redis.NewClient(redisv9.Tuned(&redis.Options{Addr: redisAddr, PoolSize: 50}))
	defer client.Close()
	l := locker.Owned(locker.Observed(redisv9.New(client), otellocker.NewObserver(meters)), "")
	cache := redisv9.NewCache(client, redisv9.CacheConfig[string]{TTL: time.Second, Stale: time.Second})
	source := func(ctx context.Context, key string) (string, error) {
		err := sleep(ctx, between(20, 80))
		if rand.IntN(50) == 0 {
			err = errors.New("the source fails once in a while")
		}
		return key, err
	}
	loader := singleflight.NewLoader(l, cache, source,
		singleflight.WithLoadObserver(otellocker.NewLoadObserver(meters)))

	running, stop := context.WithTimeout(ctx, length)
	defer stop()
	var workers sync.WaitGroup
	for i := range 12 { // invoices that are paid by several workers
		workers.Go(func() { pay(running, l, fmt.Sprintf("invoice/%d", i%3)) })
	}
	for i := range 3 { // jobs that hold a lock for long
		workers.Go(func() { work(running, l, fmt.Sprintf("job/%d", i)) })
	}
	for range 8 {
		workers.Go(func() { read(running, loader) })
	}
	select {
	case <-running.Done():
	case err = <-failed:
	}
	stop()
	workers.Wait()
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return errors.Join(err, loader.Close(grace))
}

// pay waits up to a second for the lock, and uses it briefly.
func pay(ctx context.Context, l locker.Locker, key string) {
	for ctx.Err() == nil {
		waiting, cancel := context.WithTimeout(ctx, time.Second)
		lease, err := locker.Lock(waiting, l, key, 5*time.Second)
		cancel()
		if err == nil {
			_ = sleep(ctx, between(5, 120))
			_ = lease.Unlock(ctx) // its error is on the dashboard
		}
		_ = sleep(ctx, between(50, 300))
	}
}

// work keeps a lock alive. Its ttl is shorter than the time for which Redis hangs.
func work(ctx context.Context, l locker.Locker, key string) {
	for ctx.Err() == nil {
		_, _ = locker.TryDo(ctx, l, key, 3*time.Second, func(ctx context.Context) error {
			return sleep(ctx, between(2000, 6000))
		})
		_ = sleep(ctx, between(200, 500))
	}
}

// read loads values that are often in the cache.
func read(ctx context.Context, loader *singleflight.Loader[string]) {
	for ctx.Err() == nil {
		_, _ = loader.Load(ctx, fmt.Sprintf("user/%d", rand.IntN(20)))
		_ = sleep(ctx, between(20, 60))
	}
}

// between returns a random number of milliseconds.
func between(least, most int) time.Duration {
	return time.Duration(least+rand.IntN(most-least)) * time.Millisecond
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
