package conformance

import (
	"fmt"
	"runtime"
	"sync"
	"time"
)

// outcome waits for a Wait that has to return. Since says from when on.
func (e *env) outcome(done <-chan call, since time.Time, why string) call {
	r, _ := hears(e, done, func() time.Time { return since }, "Wait returns: "+why)
	return r
}

// patiently calls try with longer and longer rests, until it says that all is well. Nobody can see from
// outside when a waiter has come to stand in the queue, so what looks like a violation may be a slow machine's
// doing: with a rest of a second it is none.
func (e *env) patiently(try func(rest time.Duration) (ok bool, expected, happened string)) {
	var expected, happened string
	for _, rest := range []time.Duration{30 * time.Millisecond, 200 * time.Millisecond, e.suite.lag.allowance() / 2} {
		var ok bool
		if ok, expected, happened = try(rest); ok {
			return
		}
	}
	e.fail(expected, happened)
}

// surely calls try with a short rest and with one after which each waiter stands in the queue. What is seen with the
// latter counts: a waiter that has not joined yet breaks no rule, and keeps none.
func (e *env) surely(try func(rest time.Duration) (ok bool, expected, happened string)) {
	try(30 * time.Millisecond)
	if ok, expected, happened := try(e.standing()); !ok {
		e.fail(expected, happened)
	}
}

// standing is a time after which a waiter stands in the queue, with all patience.
func (e *env) standing() time.Duration {
	return time.Second + 5*e.suite.lag.worst()
}

// goes runs fn in a goroutine of all.
func (e *env) goes(all *sync.WaitGroup, fn func()) { all.Go(func() { e.guard(fn) }) }

// finish waits for goroutines that come to an end unless the lock is lost; cancel ends them then.
func (e *env) finish(all *sync.WaitGroup, cancel func(), expected string) {
	done := make(chan struct{})
	go func() {
		all.Wait()
		close(done)
	}()
	defer cancel()
	due := time.Now().Add(5 * time.Second)
	hears(e, done, func() time.Time { return due }, expected)
	e.goOn()
}

// hears waits for what comes from ch, with all patience since it was due.
func hears[T any](e *env, ch <-chan T, due func() time.Time, expected string) (v T, ok bool) {
	for last := false; ; {
		timer := time.NewTimer(50 * time.Millisecond)
		select {
		case v, ok = <-ch:
			timer.Stop()
			return v, ok
		case <-timer.C:
		case <-e.ctx.Done():
			runtime.Goexit() // the check is over, or was given up on
		}
		since := due()
		if late := time.Since(since); !since.IsZero() && late > e.patience() {
			if last { // it was asked for once more, should all of this process have been asleep
				e.failLate(e.check.causes, "", expected, fmt.Sprintf("%v after it was due, it has not come", late.Round(time.Millisecond)))
			}
			last = true
		}
	}
}
