package memcache_test

import (
	"context"
	"fmt"
	"time"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker"
	"github.com/golockers/locker/memcache"
)

// These examples need a memcached, so they are compiled but not run.

func Example() {
	ctx := context.Background()
	client := gomemcache.New("127.0.0.1:11211")
	defer client.Close()
	l := memcache.New(client)

	lease, err := locker.Lock(ctx, l, "invoice/42", 30*time.Second)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lease.Unlock(ctx)
	fmt.Println("at work on", lease.Key())
}

// Servers are a list, the same and in the same order for every process. The pool has room for the usual
// number of concurrent calls, and the timeout is what a caller without a deadline waits for a dead server.
func ExampleNew() {
	client := gomemcache.New("10.0.0.1:11211", "10.0.0.2:11211")
	client.MaxIdleConns = 32
	client.Timeout = 250 * time.Millisecond

	l := memcache.New(client)
	err := locker.Do(context.Background(), l, "nightly report", time.Minute, func(ctx context.Context) error {
		return ctx.Err() // the work, which ends when ctx does
	})
	fmt.Println(err)
}

// Applications that share a server keep apart by prefix.
func ExampleWithPrefix() {
	client := gomemcache.New("127.0.0.1:11211")
	billing := memcache.New(client, memcache.WithPrefix("billing:lock:"))

	lease, err := locker.TryLock(context.Background(), billing, "invoice/42", 30*time.Second)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lease.Unlock(context.Background())
	// On the server: get billing:lock:invoice/42
}
