package harness

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"
)

// A check cannot see when a waiter has joined a queue: it can only give it time. On a slow machine
// that time may be too short, and the waiters may be served in another order than the check
// intended although the Locker is correct. So no single observation of that kind is a failure.
// Patiently and Surely repeat the check with longer times, and count what they see only if the
// machine was quick meanwhile.

// Verdict is the outcome of one try of Patiently or Surely.
type Verdict struct {
	right, unclear bool
	want, got      string
}

// Right is the verdict that the Locker behaved correctly.
func Right() Verdict { return Verdict{right: true} }

// Wrong is the verdict that the Locker behaved incorrectly, unless the machine was slow.
func Wrong(want, got string) Verdict { return Verdict{want: want, got: got} }

// Unclear is the verdict that the try did not come about as intended.
func Unclear(got string) Verdict { return Verdict{unclear: true, got: got} }

// Patiently calls try with longer and longer rests until the verdict is right. A wrong verdict
// counts if nothing that was measured meanwhile was late by more than a tenth of the rest. The
// second one is a failure.
func (e *Env) Patiently(try func(rest time.Duration) Verdict) {
	e.repeat(try, 30*time.Millisecond, 200*time.Millisecond, e.Standing(), 2*e.Standing(), 4*e.Standing())
}

// Surely is Patiently for checks that a waiter that has not joined passes by accident: a right
// verdict counts only after a rest that is long enough for the waiters to join.
func (e *Env) Surely(try func(rest time.Duration) Verdict) {
	try(30 * time.Millisecond)
	e.repeat(try, e.Standing(), 2*e.Standing(), 4*e.Standing())
}

func (e *Env) repeat(try func(rest time.Duration) Verdict, rests ...time.Duration) {
	seen := 0
	var v Verdict
	for _, rest := range rests {
		slow := e.LagDuring(func() { v = try(rest) })
		switch {
		case v.right:
			return
		case v.unclear:
			e.Note("%s", v.got)
		case rest < 100*time.Millisecond || rest < 10*slow:
			e.Note("%s; this may be due to a slow machine, on which something was %v late", v.got, slow.Round(time.Millisecond))
		default:
			e.Note("%s", v.got)
			seen++
		}
		if seen == 2 {
			e.Fail(v.want, v.got)
		}
	}
	e.Inconclusive("waiters may not have joined the queue as intended, on a slow machine or backend: %s", v.got)
}

// LagDuring returns how late, at worst, timers and the operations of A, B and C were while fn
// ran.
func (e *Env) LagDuring(fn func()) time.Duration {
	ctx, stop := context.WithCancel(e.Ctx)
	defer stop()
	var l Lag
	e.mu.Lock()
	e.recent = append(e.recent, &l)
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.recent = slices.DeleteFunc(e.recent, func(o *Lag) bool { return o == &l })
	}()
	go l.Measure(ctx)
	fn()
	return l.Worst()
}

// saw records how long an operation took.
func (e *Env) saw(d time.Duration) {
	e.suite.lag.saw(d)
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range e.recent {
		l.saw(d)
	}
}

// Standing is the longest that a waiter usually takes to join the queue.
func (e *Env) Standing() time.Duration {
	return min(time.Second+5*e.suite.lag.Worst(), 5*time.Second)
}

// Outcome waits for a Wait that must return. It has been due since the given time.
func (e *Env) Outcome(done <-chan Call, since time.Time, why string) Call {
	r, _ := Receive(e, done, func() time.Time { return since }, "Wait returns: "+why)
	return r
}

// Goes runs fn in a goroutine of all.
func (e *Env) Goes(all *sync.WaitGroup, fn func()) { all.Go(func() { e.Guard(fn) }) }

// Finish waits for goroutines that end unless the lock is lost. It calls cancel in any case.
func (e *Env) Finish(all *sync.WaitGroup, cancel func(), want string) {
	done := make(chan struct{})
	go func() {
		all.Wait()
		close(done)
	}()
	defer cancel()
	due := time.Now().Add(5 * time.Second)
	Receive(e, done, func() time.Time { return due }, want)
	e.GoOn()
}

// Receive receives from ch. The check fails if nothing has come Patience after it was due. Due
// returns the zero Time as long as it is not due.
func Receive[T any](e *Env, ch <-chan T, due func() time.Time, want string) (v T, ok bool) {
	for last := false; ; {
		timer := time.NewTimer(50 * time.Millisecond)
		select {
		case v, ok = <-ch:
			timer.Stop()
			return v, ok
		case <-timer.C:
		case <-e.Ctx.Done():
			runtime.Goexit() // the check has ended
		}
		since := due()
		if late := time.Since(since); !since.IsZero() && late > e.Patience() {
			if last { // not the first look after the deadline: this process may have been suspended
				e.FailLate(e.Check.Causes, "", want, fmt.Sprintf("nothing, %v after it was due", late.Round(time.Millisecond)))
			}
			last = true
		}
	}
}
