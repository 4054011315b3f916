package singleflight_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/singleflight"
)

// mapCache stands in for the cache that all processes share. It is a Deleter.
type mapCache struct{ sync.Map }

func (c *mapCache) Get(_ context.Context, key string) (string, bool, error) {
	v, ok := c.Load(key)
	if !ok {
		return "", false, nil
	}
	return v.(string), true, nil
}

func (c *mapCache) Set(_ context.Context, key, v string) error {
	c.Store(key, v)
	return nil
}

func (c *mapCache) Delete(_ context.Context, key string) error {
	c.Map.Delete(key)
	return nil
}

// Two processes, each with many callers, miss the same key at once: it is loaded once.
func ExampleLoader_Load() {
	// In production, locks could be redisv9.New(client), with the cache on the same server.
	locks := memory.New()
	cache := new(mapCache)
	source := func(_ context.Context, key string) (string, error) {
		fmt.Println("loading", key)
		return "the value of " + key, nil
	}

	var callers sync.WaitGroup
	for range 2 {
		process := singleflight.NewLoader(locks, cache, source)
		for range 50 {
			callers.Go(func() {
				v, err := process.Load(context.Background(), "user/42")
				if v != "the value of user/42" || err != nil {
					fmt.Println("got", v, err)
				}
			})
		}
	}
	callers.Wait()
	// Output: loading user/42
}

// A change in the source is made with Update, after which no Load returns the old value.
func ExampleLoader_Update() {
	ctx := context.Background()
	name := "Ann" // stands in for a row in a database
	source := func(context.Context, string) (string, error) { return name, nil }
	loader := singleflight.NewLoader(memory.New(), new(mapCache), source)
	fmt.Println(loader.Load(ctx, "user/42"))

	err := loader.Update(ctx, "user/42", func(context.Context) error {
		name = "Anna"
		return nil
	})
	fmt.Println(err)
	fmt.Println(loader.Load(ctx, "user/42"))
	// Output:
	// Ann <nil>
	// <nil>
	// Anna <nil>
}

// Without Update: Forget, then delete the old value.
func ExampleLoader_Forget() {
	ctx := context.Background()
	cache := new(mapCache)
	name := "Ann"
	loader := singleflight.NewLoader(memory.New(), cache, func(context.Context, string) (string, error) {
		return name, nil
	})
	fmt.Println(loader.Load(ctx, "user/42"))

	name = "Anna"
	loader.Forget("user/42")
	fmt.Println(cache.Delete(ctx, "user/42"))
	fmt.Println(loader.Load(ctx, "user/42"))
	// Output:
	// Ann <nil>
	// <nil>
	// Anna <nil>
}

// A server closes its Loader before it ends, so that it leaves no lock behind for others to wait for.
func ExampleLoader_Close() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	source := func(_ context.Context, key string) (string, error) { return "the value of " + key, nil }
	loader := singleflight.NewLoader(memory.New(), new(mapCache), source)
	fmt.Println(loader.Load(ctx, "user/42"))

	stop() // in a server: <-ctx.Done()
	grace, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	fmt.Println(loader.Close(grace))

	_, err := loader.Load(grace, "user/42")
	fmt.Println(err)
	// Output:
	// the value of user/42 <nil>
	// <nil>
	// singleflight: load "user/42": the Loader is closed
}

// The observer feeds the service's metrics.
func ExampleWithLoadObserver() {
	ctx := context.Background()
	source := func(_ context.Context, key string) (string, error) { return "the value of " + key, nil }
	observe := func(_ context.Context, e singleflight.LoadEvent) {
		fmt.Println(e.Kind, e.Key) // such as loads.WithLabelValues(e.Kind.String()).Observe(e.Took.Seconds())
	}
	cache := new(mapCache)
	cache.Store("user/7", "the value of user/7")
	loader := singleflight.NewLoader(memory.New(), cache, source, singleflight.WithLoadObserver(observe))
	for _, key := range []string{"user/7", "user/42"} {
		if _, err := loader.Load(ctx, key); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// hit user/7
	// loaded user/42
}
