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
	l := memory.New() // or redisv9.New(client), redigo.New(pool), memcache.New(client)

	pay := func(ctx context.Context) (err error) {
		lease, err := locker.Lock(ctx, l, "invoice/42", 30*time.Second)
		if err != nil {
			return err
		}
		// The error is ErrNotHeld if the lock was lost: another may have held it at the same time.
		defer func() { err = errors.Join(err, lease.Unlock(ctx)) }()

		fmt.Println("holding", lease.Key())
		return nil
	}
	fmt.Println(pay(context.Background()))
	// Output:
	// holding invoice/42
	// <nil>
}

// Lock waits as long as its context lasts. Its error wraps both the context's error and ErrHeld.
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

// Run a job unless another process is running it at this moment.
func ExampleTryLock() {
	l := memory.New()

	report := func(ctx context.Context, write func()) (err error) {
		lease, err := locker.TryLock(ctx, l, "report", 30*time.Second, locker.WithKeepAlive())
		if errors.Is(err, locker.ErrHeld) {
			fmt.Println("another process has the lock")
			return nil
		}
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, lease.Unlock(ctx)) }()

		write()
		return nil
	}

	ctx := context.Background()
	err := report(ctx, func() {
		fmt.Println("writing the report")
		fmt.Println(report(ctx, func() { fmt.Println("writing it again") })) // as another process would
	})
	fmt.Println(err)
	// Output:
	// writing the report
	// another process has the lock
	// <nil>
	// <nil>
}

// Do keeps the lock alive while the function runs, and cancels the function's context if the lock is lost.
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

// One process hands its lock to another, which needs nothing but the token.
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

// A fencing number lets the protected resource refuse a holder that comes too late.
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
