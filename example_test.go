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

// A job that all replicas start at the same time, and that one of them runs.
func ExampleTryDo() {
	ctx := context.Background()
	l := memory.New()

	for replica := range 3 {
		ran, err := locker.TryDo(ctx, l, "nightly-report", time.Minute, func(context.Context) error {
			fmt.Println("writing the report")
			return nil
		}, locker.WithMinHold(time.Hour))
		fmt.Println(replica, ran, err)
	}
	// Output:
	// writing the report
	// 0 true <nil>
	// 1 false <nil>
	// 2 false <nil>
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

// Two accounts, in whatever order the caller names them.
func ExampleDoAll() {
	ctx := context.Background()
	l := memory.New()

	err := locker.DoAll(ctx, l, []string{"account/7", "account/3"}, 10*time.Second,
		func(ctx context.Context) error {
			fmt.Println("transferring")
			return nil
		})
	fmt.Println(err)
	// Output:
	// transferring
	// <nil>
}

// The function of Do finds its lease in the context, for a fencing number.
func ExampleFromContext() {
	ctx := context.Background()
	l := memory.New()

	err := locker.Do(ctx, l, "ledger", 10*time.Second, func(ctx context.Context) error {
		fence, err := locker.FromContext(ctx).Fence(ctx)
		fmt.Println(fence > 0)
		return err
	})
	fmt.Println(err)
	// Output:
	// true
	// <nil>
}

// Work under the lock stops when the lock is lost.
func ExampleLease_Context() {
	ctx := context.Background()
	l := memory.New()

	lease, err := locker.Lock(ctx, l, "import", 10*time.Millisecond)
	if err != nil {
		fmt.Println(err)
		return
	}
	leaseCtx, stop := lease.Context(ctx)
	defer stop()

	<-leaseCtx.Done() // the lock has no keep-alive, and the work takes longer than its ttl
	fmt.Println(context.Cause(leaseCtx))
	fmt.Println(lease.Err())
	fmt.Println(lease.Unlock(ctx))
	// Output:
	// the lock is not held
	// locker: lease "import": the lock is not held: its deadline passed
	// locker: unlock "import": the lock is not held: its deadline passed
}

// metrics is an Observer.
type metrics map[locker.EventKind]int

func (m metrics) Observe(_ context.Context, e locker.Event) { m[e.Kind]++ }

func ExampleObserved() {
	ctx := context.Background()
	m := metrics{} // for more than one goroutine it would need a mutex
	l := locker.Observed(memory.New(), m)

	_ = locker.Do(ctx, l, "invoice/42", 10*time.Second, func(ctx context.Context) error {
		_, err := locker.TryLock(ctx, l, "invoice/42", 10*time.Second)
		return err
	})
	fmt.Println(m[locker.Acquired], m[locker.Refused], m[locker.Unlocked])
	// Output: 1 1 1
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
