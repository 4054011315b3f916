package semaphore_test

import (
	"context"
	"fmt"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/semaphore"
)

func Example() {
	ctx := context.Background()
	l := memory.New() // or a Locker of another backend, for a limit in the whole fleet
	imports := semaphore.New(l, "imports", 2)
	for range 3 {
		lease, err := imports.TryAcquire(ctx, time.Minute)
		if err != nil {
			fmt.Println(err)
			break
		}
		defer func() { _ = lease.Unlock(ctx) }()
		fmt.Println("has a permit of", lease.Key())
	}
	// Output:
	// has a permit of imports
	// has a permit of imports
	// locker: try lock "imports": the lock is held by another token
}

func ExampleSemaphore_Do() {
	imports := semaphore.New(memory.New(), "imports", 3)
	err := imports.Do(context.Background(), 30*time.Second, func(ctx context.Context) error {
		fmt.Println("importing, in", locker.FromContext(ctx).Key())
		return nil
	})
	fmt.Println(err)
	// Output:
	// importing, in imports
	// <nil>
}
