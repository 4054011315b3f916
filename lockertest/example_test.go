package lockertest_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/lockertest"
)

// report is the code under test: it writes a report unless another process is writing it.
func report(ctx context.Context, l locker.Locker) string {
	ran, err := locker.TryDo(ctx, l, "report", time.Minute, func(context.Context) error { return nil })
	switch {
	case errors.Is(err, locker.ErrNotHeld):
		return "written, perhaps twice"
	case err != nil:
		return "failed: " + err.Error()
	case !ran:
		return "skipped"
	}
	return "written"
}

func Example() {
	ctx := context.Background()
	l := lockertest.New()

	release := l.Hold("report") // as another process would
	fmt.Println(report(ctx, l))
	release()
	fmt.Println(report(ctx, l))
	// Output:
	// skipped
	// written
}

func ExampleLocker_Fail() {
	ctx := context.Background()
	l := lockertest.New()

	l.Fail(lockertest.Acquire, errors.New("connection refused"))
	fmt.Println(report(ctx, l))
	l.Fail(lockertest.Acquire, nil)
	fmt.Println(report(ctx, l))
	// Output:
	// failed: locker: try do "report": connection refused
	// written
}

// A server that does not answer.
func ExampleLocker_Hang() {
	l := lockertest.New()
	l.Hang(lockertest.Acquire)

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	fmt.Println(report(ctx, l))
	// Output:
	// failed: locker: try do "report": context deadline exceeded
}

func ExampleLocker_Lose() {
	ctx := context.Background()
	l := lockertest.New()

	err := locker.Do(ctx, l, "report", time.Minute, func(ctx context.Context) error {
		l.Lose("report")
		return nil
	})
	fmt.Println(errors.Is(err, locker.ErrNotHeld))
	// Output: true
}

func ExampleLocker_Calls() {
	ctx := context.Background()
	l := lockertest.New()

	report(ctx, l)
	for _, call := range l.Calls() {
		fmt.Println(call.Op, call.Key, call.TTL, call.OK, call.Err)
	}
	// Output:
	// Acquire report 1m0s true <nil>
	// Release report 0s true <nil>
}
