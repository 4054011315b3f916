package conformance

import (
	"context"
	"fmt"
	"time"

	"github.com/golockers/locker/conformance/internal/faultproxy"
	"github.com/golockers/locker/conformance/internal/harness"
)

// In these checks a request of D takes effect without a reply, and later answers must agree with
// that.

func retryChecks() []harness.Check {
	return []harness.Check{{
		Name:  "fault/acquire-retried-late",
		Rules: []string{c2Outcomes, c2SentTwice},
		Causes: "a client library that repeats a request after a lost reply: the first one acquired the lock, which has expired " +
			"since, and the second one is refused. A refusal of a request that was sent twice is an error.",
		Run: func(e *harness.Env) {
			f := newFaulty(e)
			f.eachStep(f.retriedLate)
		},
	}, {
		Name:  "fault/extend-after-lost-reply",
		Rules: []string{c3NeverEarly, eExtend},
		Causes: "what the process remembers of an unanswered Extend, and does not replace after a later one; a client library " +
			"that repeats the earlier request after the later one; a lock that is looked up after an error and found to be " +
			"the caller's own, although only until its old expiry.",
		Run: func(e *harness.Env) {
			e.Each(3, func(i int) {
				f := newFaulty(e)
				f.eachStep([]func(n int) bool{
					f.extendAfter,
					func(n int) bool { return f.extendLost(faultproxy.ResetRequest, n) },
					func(n int) bool { return f.extendLost(faultproxy.CloseRequest, n) },
				}[i])
			})
		},
	}, {
		Name:  "fault/extend-after-lost-reply-queued",
		Rules: []string{c3NeverEarly, eExtend},
		Needs: harness.NeedsWait,
		Causes: "a lock that is handed on within the process together with what was unknown about its last holder, whose " +
			"unanswered Extend then ends the next holder's lock.",
		Run: func(e *harness.Env) {
			// A Locker may hand locks on within the process only from the second holder on.
			e.Each(2, func(i int) {
				f := newFaulty(e)
				e.Surely(func(rest time.Duration) harness.Verdict { return f.extendQueued(i, rest) })
			})
		},
	}}
}

// retriedLate drops the reply to the nth request of an Acquire. If the client library then repeats
// it, the repeated request is held back until the lock that the first one may have acquired is
// another token's.
func (f *faulty) retriedLate(n int) (reached bool) {
	e := f.Env
	f.warm()
	const ttl = 1500 * time.Millisecond
	key, token, next := e.Key(), e.Token(), e.Token()
	x, y := f.p.ArmThen(faultproxy.DropReply, n, faultproxy.HoldRequest)
	defer y.Release()
	e.Note("from here on, D's request number %d %v; the one after it %v", n, faultproxy.DropReply, faultproxy.HoldRequest)
	result := e.Meanwhile(func() harness.Call { return f.Do("Acquire", key, token, ttl) })
	r := f.stopped(y, result)
	switch {
	case !x.Acted() && r == nil:
		e.Inconclusive("D made requests that were not for its Acquire")
	case !x.Acted():
		f.Must(*r, true, "no fault affected it")
		f.insists("Release", key, token, 0)
		return false
	case r != nil: // not repeated
		f.gives(*r, "no other token has asked for the lock")
		f.insists("Release", key, token, 0)
		return true
	}
	asked := time.Now()
	first := e.B.Acquire(key, next, harness.Long)
	took := first.Err == nil && !first.OK // D's first request
	b := first
	if !first.OK {
		b = e.B.TakesWhen(key, next, harness.Long, time.Time{}, asked.Add(ttl), "D's Acquire may have acquired it, for "+ttl.String())
	}
	e.Note("D's request is delivered")
	y.Release()
	last := <-result
	f.carriedOut(y)
	if last.Err == nil && !last.OK && took {
		e.FailAbout(key, "D.Acquire = an error: its first request acquired the lock, and the ttl has passed since", "D.Acquire = "+last.Result())
	}
	if last.Err == nil && last.OK && last.Start.Add(ttl).After(b.End) {
		e.FailAbout(key, "D.Acquire = an error, or false: B has the lock", "D.Acquire = "+last.Result())
	}
	f.insists("Release", key, token, 0)
	e.C.Blocked(key, "B holds it")
	e.B.Releases(key, next, "B holds it")
	return true
}

// extendAfter extends a lock by ten minutes after a shorter extension, the reply to whose nth
// request was lost.
func (f *faulty) extendAfter(n int) (reached bool) {
	e := f.Env
	const short = 800 * time.Millisecond
	key, token, _ := f.prepared(harness.Long)
	x := f.arm(faultproxy.DropReply, n)
	r := f.Do("Extend", key, token, short)
	f.p.Disarm()
	if !x.Acted() {
		f.Must(r, true, "no fault affected it")
		f.insists("Release", key, token, 0)
		return false
	}
	later := f.insists("Extend", key, token, harness.Long)
	if !later.OK && later.End.Before(r.Start.Add(short)) {
		f.Must(later, true, fmt.Sprintf("this token still holds the lock, for at least %v", short))
	}
	if !later.OK {
		e.Inconclusive("D's second Extend came after the ttl of the first")
	}
	e.SleepUntil(later.End.Add(short + e.Granularity() + 300*time.Millisecond))
	e.B.Blocked(key, "D's second Extend, by ten minutes, returned true; the first one asked for less")
	f.insists("Release", key, token, 0)
	return true
}

// extendLost extends a lock of some seconds by ten minutes while its nth request is lost. Once
// Extend has returned true, immediately or when repeated, the lock must outlive those seconds.
func (f *faulty) extendLost(kind faultproxy.Kind, n int) (reached bool) {
	e := f.Env
	e.InTime("D extends a lock of some seconds while its request is lost", func(scale time.Duration) bool {
		ttl := scale * 3 * time.Second
		key, token, held := f.prepared(ttl)
		x := f.arm(kind, n)
		r := f.Do("Extend", key, token, harness.Long)
		f.p.Disarm()
		if reached = x.Acted(); !reached {
			if r.Err != nil || !r.OK && r.End.Before(held.Until()) {
				f.Must(r, true, "no fault affected it")
			}
			f.insists("Release", key, token, 0)
			return true
		}
		if !r.OK {
			r = f.insists("Extend", key, token, harness.Long)
		}
		if !r.OK {
			if r.End.Before(held.Until()) {
				f.Must(r, true, fmt.Sprintf("this token still holds the lock, for at least %v", ttl))
			}
			return false
		}
		e.SleepUntil(held.End.Add(ttl + e.Granularity() + 300*time.Millisecond))
		e.B.Blocked(key, fmt.Sprintf("D's Extend by ten minutes returned true; the lock had been acquired for %v", ttl))
		f.insists("Release", key, token, 0)
		return true
	})
	return reached
}

// extendQueued hands a lock along D's waiters, one of which, after so many others, extends it
// without a reply. Only a request with a token of a holder is affected, not one by which a waiter
// looks at the lock. The verdict is unclear if the waiters are not served in the order in which
// they called Wait.
func (f *faulty) extendQueued(others int, rest time.Duration) harness.Verdict {
	e := f.Env
	const short = time.Second
	key := e.Key()
	a := e.A.Takes(key, e.Token(), harness.Long, "the key is fresh")
	waiting, leave := context.WithCancel(e.Ctx)
	defer leave()
	served := make(chan harness.Call, others+3)
	var tokens []string
	for range others + 3 {
		token := e.Token()
		tokens = append(tokens, token)
		e.Go(func() { served <- f.DoContext(waiting, "Wait", key, token, harness.Long) })
		e.Sleep(rest)
	}
	// next returns the next waiter's outcome, and whether it is the one that was to be next.
	n := -1
	next := func(due time.Time) (w harness.Call, inOrder bool) {
		n++
		w = f.Must(e.Outcome(served, due, "the lock is free"), true, "the lock is free")
		if w.Token != tokens[n] {
			f.insists("Release", key, w.Token, 0)
		}
		return w, w.Token == tokens[n]
	}
	const disorder = "D's waiters were not served in the order in which they called Wait"
	released := e.A.Releases(key, a.Token, "A holds the lock")
	for range others {
		w, ok := next(released.End)
		if !ok {
			return harness.Unclear(disorder)
		}
		released = f.insists("Release", key, w.Token, 0)
	}
	first, ok := next(released.End)
	if !ok {
		return harness.Unclear(disorder)
	}
	lost, patience := faultproxy.DropReply, harness.OpTimeout
	if f.p.Multiplexes() { // the waiters' connection must not end
		lost, patience = faultproxy.HoldReply, hangCtx
	}
	e.Note("from here on, D's next request with the holder's token %v", lost)
	x := f.p.ArmFor(lost, tokens[:n+1]) // within the process, an earlier token may stand for the holder
	f.within(patience, "Extend", key, first.Token, short)
	f.p.Disarm()
	x.Release()
	if !x.Acted() {
		e.Note("there was none")
	}
	done := f.insists("Release", key, first.Token, 0)
	n++
	second := e.Outcome(served, done.End.Add(short+e.Granularity()), "the lock is free")
	// A client may send the requests of many callers on one connection.
	const together = "a waiter's request was on the connection that ended in place of a reply"
	if second.Err != nil && x.Acted() {
		return harness.Unclear(together)
	}
	f.Must(second, true, "the lock is free")
	if second.Token != tokens[n] {
		f.insists("Release", key, second.Token, 0)
		return harness.Unclear(disorder)
	}
	l := f.insists("Extend", key, second.Token, harness.Long)
	if !l.OK && l.End.Before(second.Deadline) {
		f.Must(l, true, "its Wait returned a deadline that has not passed")
	}
	if l.OK {
		e.Sleep(short + e.Granularity() + 500*time.Millisecond)
		select {
		case r := <-served:
			if r.Err != nil && x.Acted() {
				return harness.Unclear(together)
			}
			e.FailAbout(key, "the third waiter waits: the second one has extended the lock by ten minutes", "its Wait = "+r.Result())
		default:
		}
		e.C.Blocked(key, "D's second waiter has extended it by ten minutes")
		f.Must(f.insists("Extend", key, second.Token, harness.Long), true, "it has extended the lock by ten minutes")
	}
	f.insists("Release", key, second.Token, 0)
	return harness.Right()
}
