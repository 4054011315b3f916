package singleflight_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/singleflight"
)

// staleMap stands in for a shared cache whose entries are fresh for a while, and may then be served until they have
// been refreshed. A server would keep them in one entry with its own expiry, or under two keys.
type staleMap struct {
	mu      sync.Mutex
	fresh   time.Duration
	entries map[string]entry
}

type entry struct {
	value  string
	stored time.Time
}

// Get returns a value that is still fresh.
func (c *staleMap) Get(_ context.Context, key string) (string, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[key]
	if !ok || time.Since(e.stored) >= c.fresh {
		return "", false, nil
	}
	return e.value, true, nil
}

// Stale makes the cache a singleflight.StaleCache.
func (c *staleMap) Stale(_ context.Context, key string) (string, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[key]
	return e.value, ok, nil
}

func (c *staleMap) Set(_ context.Context, key, v string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries[key] = entry{v, time.Now()}
	return nil
}

// Add makes the cache a singleflight.Adder. A stale value does not count: Get would not return it.
func (c *staleMap) Add(_ context.Context, key, v string) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.entries[key]; ok && time.Since(e.stored) < c.fresh {
		return false, nil
	}
	c.entries[key] = entry{v, time.Now()}
	return true, nil
}

// When a value is no longer fresh, callers get it all the same, and one of them starts a refresh.
func ExampleStaleCache() {
	ctx := context.Background()
	cache := &staleMap{fresh: time.Hour, entries: map[string]entry{}}
	cache.entries["report"] = entry{"old", time.Now().Add(-2 * time.Hour)}
	source := func(context.Context, string) (string, error) { return "new", nil }
	loader := singleflight.NewLoader(memory.New(), cache, source)
	fmt.Println(loader.Load(ctx, "report"))

	for {
		v, err := loader.Load(ctx, "report")
		if v == "new" || err != nil {
			fmt.Println(v, err)
			break
		}
		time.Sleep(time.Millisecond) // the refresh is running
	}
	// Output:
	// old <nil>
	// new <nil>
}

// An Adder keeps a load that did not hold the lock from replacing what another process has stored meanwhile.
func ExampleAdder() {
	ctx := context.Background()
	cache := &staleMap{fresh: time.Hour, entries: map[string]entry{}}
	added, err := cache.Add(ctx, "user/42", "Ann")
	fmt.Println(added, err)
	added, err = cache.Add(ctx, "user/42", "Anna")
	fmt.Println(added, err)
	fmt.Println(cache.Get(ctx, "user/42"))
	// Output:
	// true <nil>
	// false <nil>
	// Ann true <nil>
}
