package locker_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/memory"
)

func ExampleLock() {
	ctx := context.Background()
	l := memory.New() // or redisv9.New(client), redigo.New(pool), memcache.New(client)

	lease, err := locker.Lock(ctx, l, "invoice/42", 30*time.Second)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lease.Unlock(ctx)

	fmt.Println("holding", lease.Key())
	// Output: holding invoice/42
}

// Lock waits as long as its context lasts, and then says both why it gave up and what it waited for.
func ExampleLock_timeout() {
	l := memory.New()
	holder, _ := locker.Lock(context.Background(), l, "invoice/42", 30*time.Second)
	defer holder.Unlock(context.Background())

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	_, err := locker.Lock(ctx, l, "invoice/42", 30*time.Second)
	fmt.Println(errors.Is(err, context.DeadlineExceeded), errors.Is(err, locker.ErrHeld))
	// Output: true true
}

func ExampleTryLock() {
	ctx := context.Background()
	l := memory.New()

	first, err := locker.TryLock(ctx, l, "nightly-report", time.Minute)
	fmt.Println(err)

	_, err = locker.TryLock(ctx, l, "nightly-report", time.Minute)
	fmt.Println(err)
	fmt.Println(errors.Is(err, locker.ErrHeld))

	fmt.Println(first.Unlock(ctx))
	// Output:
	// <nil>
	// locker: try lock "nightly-report": the lock is held by another
	// true
	// <nil>
}

// Do keeps the lock for as long as the function runs, and cancels the function's context if it is lost.
func ExampleDo() {
	ctx := context.Background()
	l := memory.New()

	err := locker.Do(ctx, l, "migrations", 10*time.Second, func(ctx context.Context) error {
		fmt.Println("alone")
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// alone
	// <nil>
}

// One process hands its lock to another: the token is all that it takes.
func ExampleResume() {
	ctx := context.Background()
	l := memory.New()

	lease, err := locker.Lock(ctx, l, "upload/7", time.Minute)
	if err != nil {
		fmt.Println(err)
		return
	}
	token := lease.Token()
	lease.Detach()

	resumed, err := locker.Resume(ctx, l, "upload/7", token, time.Minute)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(resumed.Unlock(ctx))

	_, err = locker.Resume(ctx, l, "upload/7", token, time.Minute)
	fmt.Println(errors.Is(err, locker.ErrNotHeld))
	// Output:
	// <nil>
	// true
}

// A fencing number lets the protected resource itself refuse a holder that comes too late.
func ExampleLease_Fence() {
	ctx := context.Background()
	l := memory.New()
	var seen uint64
	write := func(fence uint64) bool {
		if fence < seen {
			return false
		}
		seen = fence
		return true
	}

	first, _ := locker.Lock(ctx, l, "ledger", time.Minute)
	old, _ := first.Fence(ctx)
	_ = first.Unlock(ctx)
	second, _ := locker.Lock(ctx, l, "ledger", time.Minute)
	defer second.Unlock(ctx)
	current, _ := second.Fence(ctx)

	fmt.Println(write(current), write(old))
	// Output: true false
}
