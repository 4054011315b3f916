package singleflight_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/golockers/locker/singleflight"
)

// Two callers want the same report, which is computed once. One of them does not wait for it.
func ExampleGroup_Do() {
	var group singleflight.Group[string]
	computing, ready := make(chan bool), make(chan bool)

	var patient sync.WaitGroup
	patient.Go(func() {
		v, _, err := group.Do(context.Background(), "report", func(context.Context) (string, error) {
			close(computing)
			<-ready
			return "all is well", nil
		})
		fmt.Println("patient:", v, err)
	})

	<-computing
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	_, _, err := group.Do(ctx, "report", func(context.Context) (string, error) {
		return "not called, for the report is being computed", nil
	})
	fmt.Println("impatient:", err)

	close(ready)
	patient.Wait()
	// Output:
	// impatient: context deadline exceeded
	// patient: all is well <nil>
}

// After a change, Forget keeps later callers from a result that is older.
func ExampleGroup_Forget() {
	var group singleflight.Group[int]
	ctx := context.Background()
	stock := 3
	started, changed := make(chan bool), make(chan bool)

	var before sync.WaitGroup
	before.Go(func() {
		v, _, _ := group.Do(ctx, "stock", func(context.Context) (int, error) {
			v := stock
			close(started)
			<-changed
			return v, nil
		})
		fmt.Println("asked before the change:", v)
	})

	<-started
	stock = 2
	group.Forget("stock")
	v, _, _ := group.Do(ctx, "stock", func(context.Context) (int, error) { return stock, nil })
	fmt.Println("asked after it:", v)
	close(changed)
	before.Wait()
	// Output:
	// asked after it: 2
	// asked before the change: 3
}
