package redisv9_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/exampletest"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
)

func Example() {
	client := redis.NewClient(redisv9.Tuned(&redis.Options{Addr: os.Getenv("REDIS_ADDR")}))
	defer client.Close()
	l := redisv9.New(client)

	pay := func(ctx context.Context) (err error) {
		lease, err := locker.Lock(ctx, l, "invoice/42", 30*time.Second)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, lease.Unlock(ctx)) }()

		fmt.Println("holding", lease.Key())
		return nil
	}
	fmt.Println(pay(context.Background()))
}

// A client for production: see docs/operations.md for the reasons.
func ExampleNew() {
	client := redis.NewClient(redisv9.Tuned(&redis.Options{Addr: os.Getenv("REDIS_ADDR")}))
	defer client.Close()

	err := locker.Do(context.Background(), redisv9.New(client), "migration", time.Minute,
		func(ctx context.Context) error {
			fmt.Println("migrating") // ctx ends if the lock is lost
			return ctx.Err()
		})
	fmt.Println(err)
}

// Applications that share a server keep apart by prefix.
func ExampleWithPrefix() {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS_ADDR"), ContextTimeoutEnabled: true})
	defer client.Close()
	billing := redisv9.New(client, redisv9.WithPrefix("billing:lock:"))

	lease, err := locker.TryLock(ctx, billing, "invoice/42", 30*time.Second)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(client.Exists(ctx, "billing:lock:invoice/42").Val() == 1)
	fmt.Println(lease.Unlock(ctx))
}

// Which locks are held, by whom, and how to break one.
func ExampleLocker_List() {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS_ADDR"), ContextTimeoutEnabled: true})
	defer client.Close()
	l := redisv9.New(client)
	_, err := locker.Lock(ctx, l, "report/1", time.Minute, locker.WithToken("host-7/4711"))
	if err != nil {
		fmt.Println(err)
		return
	}

	for info, err := range l.List(ctx, "report/") {
		if err != nil {
			fmt.Println(info.Key, err)
			continue
		}
		fmt.Println(info.Key, "is held by", info.Token)
	}
	_, err = locker.Break(ctx, l, "report/1")
	fmt.Println(err)
}

func TestExamples(t *testing.T) {
	t.Setenv("REDIS_ADDR", testserver.Redis(t).Addr)
	assert.Equal(t, "holding invoice/42\n<nil>\n", exampletest.Output(t, Example))
	assert.Equal(t, "migrating\n<nil>\n", exampletest.Output(t, ExampleNew))
	assert.Equal(t, "true\n<nil>\n", exampletest.Output(t, ExampleWithPrefix))
	assert.Equal(t, "report/1 is held by host-7/4711\n<nil>\n", exampletest.Output(t, ExampleLocker_List))
}
