package rueidis_test

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
	"github.com/golockers/locker/rueidis"
	rueidisclient "github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
)

func Example() {
	client, err := rueidisclient.NewClient(rueidisclient.ClientOption{InitAddress: []string{os.Getenv("REDIS_ADDR")}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	l := rueidis.New(client)

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

// Applications that share a server keep apart by prefix.
func ExampleWithPrefix() {
	ctx := context.Background()
	client, err := rueidisclient.NewClient(rueidisclient.ClientOption{InitAddress: []string{os.Getenv("REDIS_ADDR")}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	billing := rueidis.New(client, rueidis.WithPrefix("billing:lock:"))

	lease, err := locker.TryLock(ctx, billing, "invoice/42", 30*time.Second)
	if err != nil {
		fmt.Println(err)
		return
	}
	token, err := client.Do(ctx, client.B().Get().Key("billing:lock:invoice/42").Build()).ToString()
	fmt.Println(token == lease.Token(), err)
	fmt.Println(lease.Unlock(ctx))
}

func TestExamples(t *testing.T) {
	t.Setenv("REDIS_ADDR", testserver.Redis(t).Addr)
	assert.Equal(t, "holding invoice/42\n<nil>\n", exampletest.Output(t, Example))
	assert.Equal(t, "true <nil>\n<nil>\n", exampletest.Output(t, ExampleWithPrefix))
}
