package memcache_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/exampletest"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/memcache"
	"github.com/stretchr/testify/assert"
)

func Example() {
	client := gomemcache.New(os.Getenv("MEMCACHED_ADDR"))
	defer client.Close()
	l := memcache.New(client)

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

// The client may have several servers: every process needs the same list, in the same order. Its
// settings suit locks as they are.
func ExampleNew() {
	client := gomemcache.New(os.Getenv("MEMCACHED_ADDR"))
	defer client.Close()

	err := locker.Do(context.Background(), memcache.New(client), "migration", time.Minute,
		func(ctx context.Context) error {
			fmt.Println("migrating") // ctx ends if the lock is lost
			return ctx.Err()
		})
	fmt.Println(err)
}

// Applications that share a server keep apart by prefix.
func ExampleWithPrefix() {
	ctx := context.Background()
	client := gomemcache.New(os.Getenv("MEMCACHED_ADDR"))
	defer client.Close()
	billing := memcache.New(client, memcache.WithPrefix("billing:lock:"))

	lease, err := locker.TryLock(ctx, billing, "invoice/42", 30*time.Second)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = client.Get("billing:lock:invoice/42")
	fmt.Println(err)
	fmt.Println(lease.Unlock(ctx))
}

func TestExamples(t *testing.T) {
	t.Setenv("MEMCACHED_ADDR", testserver.Memcached(t).Addr)
	assert.Equal(t, "holding invoice/42\n<nil>\n", exampletest.Output(t, Example))
	assert.Equal(t, "migrating\n<nil>\n", exampletest.Output(t, ExampleNew))
	assert.Equal(t, "<nil>\n<nil>\n", exampletest.Output(t, ExampleWithPrefix))
}
