package redisv9_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/golockers/locker/internal/exampletest"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/golockers/locker/singleflight"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
)

// A Loader with a cache that remembers for a shorter time that a user does not exist. A value that
// has expired is served for another minute while one process of the fleet loads it again.
func ExampleNewCache() {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS_ADDR"), ContextTimeoutEnabled: true})
	defer client.Close()

	type user struct {
		Name  string
		Found bool
	}
	query := func(_ context.Context, id string) (user, error) {
		fmt.Println("loading", id)
		return user{"Ann", true}, nil // user{} if the database has none, and that is no error
	}
	cache := redisv9.NewCache(client, redisv9.CacheConfig[user]{
		TTLOf: func(u user) time.Duration {
			if !u.Found {
				return 5 * time.Second
			}
			return 10 * time.Minute
		},
		Stale:  time.Minute,
		Prefix: "user:",
	})
	loader := singleflight.NewLoader(redisv9.New(client), cache, query)
	defer loader.Close(ctx)

	fmt.Println(loader.Load(ctx, "42"))
	fmt.Println(loader.Load(ctx, "42"))
}

func TestCacheExample(t *testing.T) {
	t.Setenv("REDIS_ADDR", testserver.Redis(t).Addr)
	assert.Equal(t, "loading 42\n{Ann true} <nil>\n{Ann true} <nil>\n", exampletest.Output(t, ExampleNewCache))
}
