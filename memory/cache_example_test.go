package memory_test

import (
	"context"
	"fmt"
	"time"

	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/singleflight"
)

// A Loader with a cache that remembers for a shorter time that a user does not exist.
func ExampleNewCache() {
	type user struct{ Name string }
	users := map[string]*user{"42": {"Ann"}}
	source := func(_ context.Context, id string) (*user, error) {
		fmt.Println("loading", id)
		return users[id], nil // nil: there is none
	}
	cache := memory.NewCache(memory.CacheConfig[*user]{
		TTLOf: func(u *user) time.Duration {
			if u == nil {
				return 5 * time.Second
			}
			return time.Minute
		},
		MaxEntries: 10_000,
	})
	loader := singleflight.NewLoader(memory.New(), cache, source)

	for _, id := range []string{"42", "43", "42", "43"} {
		u, err := loader.Load(context.Background(), id)
		switch {
		case err != nil:
			fmt.Println(err)
		case u == nil:
			fmt.Println(id, "does not exist")
		default:
			fmt.Println(id, "is", u.Name)
		}
	}
	// Output:
	// loading 42
	// 42 is Ann
	// loading 43
	// 43 does not exist
	// 42 is Ann
	// 43 does not exist
}
