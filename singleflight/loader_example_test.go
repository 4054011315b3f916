package singleflight_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/singleflight"
)

// mapCache stands in for the cache that all processes share.
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

// Two processes, each with many callers, miss the same key at once: it is loaded once.
func ExampleLoader_Load() {
	// In production the locks are those of redisv9.New(client), say, and the cache is on the same server.
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

// A caller that changes what the source returns forgets the load that may be under way, then takes the
// old value out of the cache.
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
	cache.Delete("user/42")
	fmt.Println(loader.Load(ctx, "user/42"))
	// Output:
	// Ann <nil>
	// Anna <nil>
}
