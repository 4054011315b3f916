package harness

import (
	"fmt"
	"runtime"
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
		case rest < 100*time.Millisecond || rest < time.Duration(Joining.Delays)*slow:
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

// LagDuring returns the longest delay that was measured while fn ran.
func (e *Env) LagDuring(fn func()) time.Duration {
	l, end := e.suite.pace.begin()
	defer end()
	fn()
	return l.Worst()
}

// Outcome waits for a Wait that must return. It has been due since the given time.
func (e *Env) Outcome(done <-chan Call, since time.Time, why string) Call {
	r, _ := Receive(e, Event, done, func() time.Time { return since }, "Wait returns: "+why)
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
	due := time.Now().Add(e.Allow(Leaving)) // they take turns
	Receive(e, Leaving, done, func() time.Time { return due }, want)
	e.GoOn()
}

// Receive receives from ch. The check fails if what is due does not come within what a allows. Due returns
// the zero Time as long as it is not due.
func Receive[T any](e *Env, a Allowance, ch <-chan T, due func() time.Time, want string) (v T, ok bool) {
	for late := time.Duration(0); ; {
		timer := time.NewTimer(50 * time.Millisecond)
		select {
		case v, ok = <-ch:
			timer.Stop()
			e.Happened(a, late, want)
			return v, ok
		case <-timer.C:
		case <-e.Ctx.Done():
			runtime.Goexit() // the check has ended
		}
		if since := due(); !since.IsZero() {
			seen := late > e.Allow(a)
			late = time.Since(since)
			if seen { // not the first look after the deadline: this process may have been suspended
				e.Overdue(a, late, e.Check.Causes, "", want, fmt.Sprintf("nothing, %v after it was due", late.Round(time.Millisecond)))
			}
		}
	}
}
