package cohort_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/golockers/locker/memory"
)

// A hundred goroutines take turns. On a server that would take about two requests in all.
func Example() {
	ctx := context.Background()
	locks := cohort.New(memory.New()) // or redisv9.New(client)

	balance := 0
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			err := locker.Do(ctx, locks, "account/7", 30*time.Second, func(context.Context) error {
				balance++
				return nil
			})
			if err != nil {
				fmt.Println(err)
			}
		})
	}
	wg.Wait()
	fmt.Println(balance)
	// Output: 100
}

// Another Locker, in this process or another, does not know the token.
func ExampleLocker() {
	ctx := context.Background()
	backend := memory.New()
	mine, theirs := cohort.New(backend), cohort.New(backend)

	lease, err := locker.Lock(ctx, mine, "account/7", time.Minute)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lease.Unlock(ctx)

	_, err = locker.Resume(ctx, mine, "account/7", lease.Token(), time.Minute)
	fmt.Println(err)
	_, err = locker.Resume(ctx, theirs, "account/7", lease.Token(), time.Minute)
	fmt.Println(err)
	// Output:
	// <nil>
	// locker: resume "account/7": the lock is not held
}

// With a tenure of a second, other processes may wait for the lock for a second longer.
func ExampleWithMaxTenure() {
	ctx := context.Background()
	locks := cohort.New(memory.New(), cohort.WithMaxTenure(time.Second))

	lease, err := locker.Lock(ctx, locks, "account/7", time.Minute)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(lease.Unlock(ctx)) // hands the lock to the next goroutine of this process, if one waits
	// Output: <nil>
}

// The lock stays in the process between two uses, so the second needs no request.
func ExampleWithLinger() {
	ctx := context.Background()
	locks := cohort.New(memory.New(), cohort.WithLinger(100*time.Millisecond))
	defer locks.Close() // gives up what is kept, before the process ends

	for range 2 {
		lease, err := locker.Lock(ctx, locks, "account/7", time.Minute)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(lease.Unlock(ctx))
	}
	// Output:
	// <nil>
	// <nil>
}
