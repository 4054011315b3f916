package redigo_test

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
	"github.com/golockers/locker/redigo"
	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
)

func Example() {
	pool := &redis.Pool{MaxIdle: 16, DialContext: func(ctx context.Context) (redis.Conn, error) {
		return redis.DialContext(ctx, "tcp", os.Getenv("REDIS_ADDR"))
	}}
	defer pool.Close()
	l := redigo.New(pool)

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

// A pool for production: see docs/operations.md for the reasons.
func ExampleNew() {
	pool := redigo.Tuned(&redis.Pool{DialContext: func(ctx context.Context) (redis.Conn, error) {
		return redis.DialContext(ctx, "tcp", os.Getenv("REDIS_ADDR"), redis.DialConnectTimeout(time.Second))
	}})
	defer pool.Close()

	err := locker.Do(context.Background(), redigo.New(pool), "migration", time.Minute,
		func(ctx context.Context) error {
			fmt.Println("migrating") // ctx ends if the lock is lost
			return ctx.Err()
		})
	fmt.Println(err)
}

// A resource that remembers the last number refuses a holder that was too late.
func ExampleLocker_Fence() {
	ctx := context.Background()
	pool := &redis.Pool{Dial: func() (redis.Conn, error) { return redis.Dial("tcp", os.Getenv("REDIS_ADDR")) }}
	defer pool.Close()
	l := redigo.New(pool)

	var numbers []uint64
	for range 2 {
		lease, err := locker.Lock(ctx, l, "invoice/42", 30*time.Second)
		if err != nil {
			fmt.Println(err)
			return
		}
		number, err := lease.Fence(ctx)
		fmt.Println(err)
		numbers = append(numbers, number)
		fmt.Println(lease.Unlock(ctx))
	}
	fmt.Println(numbers[0] < numbers[1])
}

func TestExamples(t *testing.T) {
	t.Setenv("REDIS_ADDR", testserver.Redis(t).Addr)
	assert.Equal(t, "holding invoice/42\n<nil>\n", exampletest.Output(t, Example))
	assert.Equal(t, "migrating\n<nil>\n", exampletest.Output(t, ExampleNew))
	assert.Equal(t, "<nil>\n<nil>\n<nil>\n<nil>\ntrue\n", exampletest.Output(t, ExampleLocker_Fence))
}
