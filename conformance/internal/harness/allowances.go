package harness

import (
	"fmt"
	"math"
	"time"
)

// A failure is a fact or a time. A fact is something that must not happen on any machine: two
// holders, a lost release, a wrong error, a leak, a hang beyond any patience. A time is something
// that came later than it should. This file has all that a check may know about times, and
// decides what a time is worth: if it was exceeded while the machine was slower than the
// allowance tolerates, it is void, and the check runs again, alone, with its times stretched.

// Allowance is how long something may take for which an idle machine needs next to no time.
type Allowance struct {
	Time time.Duration
	// Delays is how many delays of the machine and the backend, one after the other, it must
	// outlast: if the longest measured was more than Time/Delays, the machine was too slow to tell.
	Delays int
}

// The allowances. Facts about the contract, such as how long a cleanup goes on, are constants of
// the checks that are about them.
var (
	// Event is for what nothing delays: a wake-up, a grant, an expiry, a call's return.
	Event = Allowance{3 * time.Second, 16}
	// Answer is for a call of A, B or C that returns an error: sooner, the error is not due to a timeout.
	Answer = Allowance{time.Second, 8}
	// CtxEnd is for the return of a call to a server that hangs, after its ctx has ended. It is
	// less than a second, the shortest I/O timeout in use.
	CtxEnd = Allowance{400 * time.Millisecond, 2}
	// IOTimeout is for the return of such a call whose ctx was canceled, if the client
	// cannot interrupt it. No reasonable client waits longer for a reply.
	IOTimeout = Allowance{40 * time.Second, 40}
	// Refusal is for an Acquire of a held lock, compared with one of a free lock.
	Refusal = Allowance{40 * time.Millisecond, 8}
	// Refused is for a call that fails while connections are refused. Some clients retry until their
	// context ends.
	Refused = Allowance{5 * time.Second, 20}
	// Healing is for a client that has to notice that its link works again.
	Healing = Allowance{20 * time.Second, 40}
	// Polls is for a Locker that knows that it does not hear of releases, and Seldom for one that does
	// not know that.
	Polls  = Allowance{5 * time.Second, 20}
	Seldom = Allowance{17 * time.Second, 40}
	// Served is for a Wait on a link that broke: it returns a deadline or an error.
	Served = Allowance{15 * time.Second, 30}
	// Leaving is for goroutines that end when their work is done.
	Leaving = Allowance{8 * time.Second, 20}
	// Joining is for a waiter that joins a queue.
	Joining = Allowance{time.Second, 10}
	// Slip is by how much two readings of a time that is left may differ, because of rounding.
	Slip = Allowance{2 * time.Millisecond, 1}
	// Rounding is the same for a deadline, and for clocks that drift apart during a check.
	Rounding = Allowance{10 * time.Millisecond, 1}
)

const (
	// OpTimeout bounds every operation whose context is not what is being checked.
	OpTimeout = 30 * time.Second
	// patience is the most that slowness explains: what has not happened by then, never does.
	patience = 45 * time.Second
	// CheckLimit is how long a check may take before it counts as hung. A check comes nowhere near
	// it on a Locker whose methods return.
	CheckLimit = 5 * time.Minute
	// mostStretch is the most by which times are stretched.
	mostStretch = 16
)

// Allow returns the time that a allows in this run of the check.
func (e *Env) Allow(a Allowance) time.Duration { return e.Stretched(a.Time) }

// Stretched returns d, a time that a check chooses, stretched by the slowness that its last run has
// met, if it runs again.
func (e *Env) Stretched(d time.Duration) time.Duration { return time.Duration(e.stretch * float64(d)) }

// Patience is how late an event that does not depend on an expiry may be.
func (e *Env) Patience() time.Duration { return e.Allow(Event) }

// Slack is how late an expiry may be.
func (e *Env) Slack() time.Duration { return e.Granularity() + e.Patience() }

// Standing is the longest that a waiter usually takes to join the queue.
func (e *Env) Standing() time.Duration { return e.Allow(Joining) }

// slowness returns by how much the slowest that was measured in this run of the check exceeds what
// is tolerated in the given time. Up to 1, the machine was quick enough.
func (e *Env) slowness(delays int, allowed time.Duration) float64 {
	return float64(time.Duration(delays)*e.lag.Worst()) / float64(allowed)
}

// explains is how many times its measured slowness a machine may be an excuse for.
const explains = 2

// Overdue ends the check as failed if something is later than a allows, and than the slowness of the
// machine explains. It may be called repeatedly until the thing happens: what never does is a fact.
func (e *Env) Overdue(a Allowance, late time.Duration, causes, key, want, got string) {
	e.TB.Helper()
	allowed := e.Allow(a)
	if slow := e.slowness(a.Delays, allowed); slow > 1 {
		allowed = max(allowed, min(patience, time.Duration((1+explains*slow)*float64(allowed))))
	}
	if late > allowed {
		e.rec.setIndirect()
		e.failFor(causes, key, want, got)
	}
}

// Happened ends the check as void if something has happened, but later than a allows. If Overdue was
// called before, the machine was slow, or this process was suspended.
func (e *Env) Happened(a Allowance, late time.Duration, what string) {
	if allowed := e.Allow(a); late > allowed {
		e.void(e.slowness(a.Delays, allowed), fmt.Sprintf("%s %v too late, on a machine or a backend on which something was %v late meanwhile",
			what, late.Round(time.Millisecond), e.lag.Worst().Round(time.Millisecond)))
	}
}

// FailTime ends the check if something was later than a allows: as failed, or if that may be due to
// the machine, as void.
func (e *Env) FailTime(a Allowance, late time.Duration, causes, key, want, got string) {
	e.TB.Helper()
	e.Overdue(a, late, causes, key, want, got)
	e.Happened(a, late, got)
}

// failError ends the check, because r returned an error where none is due. The error of a call that
// took as long as a timeout, or as its ttl, is a time, and any other a fact.
func (e *Env) failError(r Call, want, got string) {
	e.TB.Helper()
	a, took := Answer, r.End.Sub(r.Start)
	if r.TTL > 0 {
		a.Time = min(a.Time, time.Duration(float64(r.TTL)/e.stretch))
	}
	if took < OpTimeout && e.slowness(a.Delays, e.Allow(a)) > 1 {
		e.Happened(a, took, got)
	}
	e.rec.setIndirect()
	e.failFor(r.Causes(), r.Key, want, got)
}

// Inconclusive ends the check, which could not decide. The suite runs it again, alone.
func (e *Env) Inconclusive(format string, args ...any) {
	e.void(e.slowness(1, e.Allow(Joining)), fmt.Sprintf(format, args...))
}

// void ends the check, and makes the next run stretch its times by slow, or to twice as much if
// that is more.
func (e *Env) void(slow float64, reason string) {
	e.GoOn()
	next := min(mostStretch, math.Ceil(e.stretch*max(slow, 2)))
	e.rec.Void(next, e.history.shorten(reason))
}

// InTime calls try, which must do something before a lock expires, with longer and longer times
// until it was in time.
func (e *Env) InTime(what string, try func(scale time.Duration) (inTime bool)) {
	first := time.Duration(math.Ceil(e.stretch))
	for scale := first; scale <= max(first, mostStretch); scale *= 2 {
		if try(scale) {
			return
		}
		e.Note("the machine or the backend was too slow; again with twice the time")
	}
	e.Inconclusive("%s: each time the lock expired first", what)
}
