package memory_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/memory"
)

func Example() {
	ctx := context.Background()
	l := memory.New()

	lease, err := locker.Lock(ctx, l, "invoice/42", 30*time.Second)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lease.Unlock(ctx)

	_, err = locker.TryLock(ctx, l, "invoice/42", 30*time.Second)
	fmt.Println(err)
	// Output:
	// locker: try lock "invoice/42": the lock is held by another token
}

// Each New is a backend of its own, where all locks are free. Share one to exclude each other.
func ExampleNew() {
	ctx := context.Background()
	first, second := memory.New(), memory.New()

	a, err := locker.TryLock(ctx, first, "invoice/42", time.Minute)
	fmt.Println(err)
	b, err := locker.TryLock(ctx, second, "invoice/42", time.Minute)
	fmt.Println(err)

	a.Unlock(ctx)
	b.Unlock(ctx)
	// Output:
	// <nil>
	// <nil>
}

// The zero value is ready, so a lock for each of many things can be a field.
func ExampleLocker() {
	var accounts struct {
		locks    memory.Locker
		balances [2]int
	}
	ctx := context.Background()
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			account := i % len(accounts.balances)
			err := locker.Do(ctx, &accounts.locks, fmt.Sprint(account), time.Minute,
				func(context.Context) error {
					accounts.balances[account]++
					return nil
				})
			if err != nil {
				fmt.Println(err)
			}
		})
	}
	wg.Wait()
	fmt.Println(accounts.balances)
	// Output: [50 50]
}

// locker.Lock waits in the queue by itself. Wait is for Lockers that wrap another.
func ExampleLocker_Wait() {
	ctx := context.Background()
	l := memory.New()
	l.Acquire(ctx, "invoice/42", "first", time.Minute)

	go l.Release(ctx, "invoice/42", "first")
	deadline, err := l.Wait(ctx, "invoice/42", "second", time.Minute)
	fmt.Println(time.Until(deadline) > 0, err)
	// Output: true <nil>
}

// A channel to select on together with others, where waiting in the queue will not do.
func ExampleLocker_Watch() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel() // the end of the watch
	l := memory.New()
	l.Acquire(ctx, "invoice/42", "token", time.Minute)

	released, err := l.Watch(ctx, "invoice/42")
	if err != nil {
		fmt.Println(err)
		return
	}
	go l.Release(ctx, "invoice/42", "token")
	select {
	case <-released:
		fmt.Println("it may be free now")
	case <-time.After(time.Minute):
		fmt.Println("still held")
	}
	// Output: it may be free now
}

// What the lock protects can refuse a holder that was late, since its number is smaller than one seen.
func ExampleLocker_Fence() {
	ctx := context.Background()
	l := memory.New()

	l.Acquire(ctx, "invoice/42", "first", time.Minute)
	first, _, _ := l.Fence(ctx, "invoice/42", "first")
	l.Release(ctx, "invoice/42", "first")

	l.Acquire(ctx, "invoice/42", "second", time.Minute)
	second, _, _ := l.Fence(ctx, "invoice/42", "second")
	_, ok, _ := l.Fence(ctx, "invoice/42", "first")
	fmt.Println(second > first, ok)
	// Output: true false
}
