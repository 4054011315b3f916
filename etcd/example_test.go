package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/etcd"
	"github.com/golockers/locker/internal/exampletest"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func Example() {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{os.Getenv("ETCD_ADDR")}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	l := etcd.New(client)

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

// A client for production. It notices within seconds that a member hangs, or is back.
func ExampleNew() {
	client, err := clientv3.New(etcd.Tuned(clientv3.Config{Endpoints: []string{os.Getenv("ETCD_ADDR")}})) // all members
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()

	err = locker.Do(context.Background(), etcd.New(client), "migration", time.Minute,
		func(ctx context.Context) error {
			fmt.Println("migrating") // ctx ends if the lock is lost
			return ctx.Err()
		})
	fmt.Println(err)
}

// Applications that share a cluster keep apart by prefix.
func ExampleWithPrefix() {
	ctx := context.Background()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{os.Getenv("ETCD_ADDR")}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	billing := etcd.New(client, etcd.WithPrefix("billing/locks/"))

	lease, err := locker.TryLock(ctx, billing, "invoice 42", 30*time.Second)
	if err != nil {
		fmt.Println(err)
		return
	}
	entries, err := client.Get(ctx, "billing/locks/invoice%2042/", clientv3.WithPrefix())
	fmt.Println(entries.Count, err)
	fmt.Println(lease.Unlock(ctx))
}

// Which locks are held, by whom, and how to break one.
func ExampleLocker_List() {
	ctx := context.Background()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{os.Getenv("ETCD_ADDR")}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	l := etcd.New(client)
	if _, err := locker.Lock(ctx, l, "report/1", time.Minute, locker.WithToken("host-7/4711")); err != nil {
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
	t.Setenv("ETCD_ADDR", testserver.Etcd(t).Addr)
	assert.Equal(t, "holding invoice/42\n<nil>\n", exampletest.Output(t, Example))
	assert.Equal(t, "migrating\n<nil>\n", exampletest.Output(t, ExampleNew))
	assert.Equal(t, "1 <nil>\n<nil>\n", exampletest.Output(t, ExampleWithPrefix))
	assert.Equal(t, "report/1 is held by host-7/4711\n<nil>\n", exampletest.Output(t, ExampleLocker_List))
}
