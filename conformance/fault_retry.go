package conformance

import (
	"fmt"
	"time"
)

// In these checks a request of D takes effect and is not heard of, and what is said later has to agree with it.

func repeatedChecks() []check {
	return []check{{
		name: "fault/acquire-repeated-late",
		rule: "C2 Three outcomes: false says that the operation certainly was not done.",
		causes: "a client library that repeats a request by itself after a lost reply: the first one took the lock, which has " +
			"expired since, and the second is refused. A refusal of what was sent twice is an error.",
		run: func(e *env) {
			f := newFaulty(e)
			f.eachStep(f.repeatedLate)
		},
	}, {
		name: "fault/extend-holds",
		rule: "C3 Never early: after Extend returned true, no other token acquires before ttl has passed.",
		causes: "what is remembered in the process of an earlier Extend without an answer, and is not replaced by what is known " +
			"since; a client library that repeats the earlier one behind the later one; a lock that is looked up after an error, " +
			"and whose own token is taken for the extension: the lock is held, until its old time is up.",
		run: func(e *env) {
			e.each(3, func(i int) {
				f := newFaulty(e)
				f.eachStep([]func(n int) bool{
					f.extendAfter,
					func(n int) bool { return f.extendLost(resetRequest, n) },
					func(n int) bool { return f.extendLost(closeRequest, n) },
				}[i])
			})
		},
	}, {
		name:  "fault/extend-holds-in-line",
		rule:  "C3 Never early: after Extend returned true, no other token acquires before ttl has passed.",
		needs: needsWait,
		causes: "a lock that is handed on within the process, and with it what was not known about the one before: its unanswered " +
			"Extend ends the next holder's time.",
		run: func(e *env) {
			// What is handed on within the process may begin with the second holder.
			e.each(2, func(i int) {
				f := newFaulty(e)
				f.extendInLine(i)
			})
		},
	}}
}

// repeatedLate drops the reply to the nth request of an Acquire, and holds the next request, should the client
// repeat by itself, until the lock that the first may have taken is another's.
func (f *faulty) repeatedLate(n int) (reached bool) {
	e := f.e
	f.warm()
	const ttl = 1500 * time.Millisecond
	key, token, next := e.key(), e.token(), e.token()
	x, y := f.p.armThen(dropReply, n, holdRequest)
	defer y.release()
	e.note("from here on, D's request number %d %v; the one after it %v", n, dropReply, holdRequest)
	result := e.meanwhile(func() call { return f.do("Acquire", key, token, ttl) })
	r := f.stopped(y, result)
	switch {
	case !x.acted():
		f.must(*r, true, "nothing was in its way")
		f.insists("Release", key, token, 0)
		return false
	case r != nil: // it does not repeat
		f.gives(*r, "nobody else has ever asked for the lock")
		f.insists("Release", key, token, 0)
		return true
	}
	asked := time.Now()
	first := e.B.acquire(key, next, long)
	took := first.err == nil && !first.ok // D's first request
	b := first
	if !first.ok {
		b = e.B.takesWhen(key, next, long, time.Time{}, asked.Add(ttl), "D's Acquire was done at best, for "+ttl.String())
	}
	e.note("D's request is let go")
	y.release()
	last := <-result
	f.carriedOut(y)
	if last.err == nil && !last.ok && took {
		e.failAbout(key, "D.Acquire = an error: its first request took the lock, and the ttl has passed since", "D.Acquire = "+last.result())
	}
	if last.err == nil && last.ok && last.start.Add(ttl).After(b.end) {
		e.failAbout(key, "D.Acquire = an error, or false: B has the lock", "D.Acquire = "+last.result())
	}
	f.insists("Release", key, token, 0)
	e.C.blocked(key, "B holds it")
	e.B.releases(key, next, "B holds it")
	return true
}

// extendAfter extends a lock for long after an extension for less, the reply to whose nth request was lost.
func (f *faulty) extendAfter(n int) (reached bool) {
	e := f.e
	const short = 800 * time.Millisecond
	key, token, _ := f.prepared(long)
	x := f.arm(dropReply, n)
	r := f.do("Extend", key, token, short)
	f.p.disarm()
	if !x.acted() {
		f.must(r, true, "nothing was in its way")
		f.insists("Release", key, token, 0)
		return false
	}
	later := f.insists("Extend", key, token, long)
	if !later.ok && later.end.Before(r.start.Add(short)) {
		f.must(later, true, fmt.Sprintf("this token has held the lock all the time, by a ttl of %v at least", short))
	}
	if !later.ok {
		e.inconclusive("D's second Extend came after the time of the first")
	}
	e.sleepUntil(later.end.Add(short + e.granularity() + 300*time.Millisecond))
	e.B.blocked(key, "D's second Extend, by ten minutes, returned true; that the first one asked for less does not matter")
	f.insists("Release", key, token, 0)
	return true
}

// extendLost extends a lock of some seconds by ten minutes while its nth request is lost. Once D says that it has
// extended the lock, at once or when asked again, the lock outlives those seconds.
func (f *faulty) extendLost(kind faultKind, n int) (reached bool) {
	e := f.e
	e.inTime("D extends a lock of some seconds while its request is lost", func(scale time.Duration) bool {
		ttl := scale * 3 * time.Second
		key, token, held := f.prepared(ttl)
		x := f.arm(kind, n)
		r := f.do("Extend", key, token, long)
		f.p.disarm()
		if reached = x.acted(); !reached {
			if r.err != nil || !r.ok && r.end.Before(held.until()) {
				f.must(r, true, "nothing was in its way")
			}
			f.insists("Release", key, token, 0)
			return true
		}
		if !r.ok {
			r = f.insists("Extend", key, token, long)
		}
		if !r.ok {
			if r.end.Before(held.until()) {
				f.must(r, true, fmt.Sprintf("this token has held the lock all the time, by a ttl of %v at least", ttl))
			}
			return false
		}
		e.sleepUntil(held.end.Add(ttl + e.granularity() + 300*time.Millisecond))
		e.B.blocked(key, fmt.Sprintf("D's Extend by ten minutes returned true; that the lock was acquired for %v does not matter", ttl))
		f.insists("Release", key, token, 0)
		return true
	})
	return reached
}

// extendInLine lets a lock pass along D's waiters, one of which, after so many others, extends it without an
// answer: the fault is meant for that request, and not for a look of another waiter.
func (f *faulty) extendInLine(others int) {
	e := f.e
	const short = time.Second
	key := e.key()
	a := e.A.takes(key, e.token(), long, "the key is fresh")
	var tokens []string
	var waits []<-chan call
	for range others + 3 {
		tokens = append(tokens, e.token())
		waits = append(waits, f.client.waits(e.ctx, key, tokens[len(tokens)-1], long))
		e.sleep(e.standing()) // each is in the queue before the next one comes
	}
	released := e.A.releases(key, a.token, "A holds the lock")
	for i := range others {
		f.must(e.outcome(waits[i], released.end, "the one before has released the lock"), true, "it is next in the queue")
		released = f.insists("Release", key, tokens[i], 0)
	}
	served := tokens[:others+1] // what is sent for one of them now is the holder's
	tokens, waits = tokens[others:], waits[others:]
	f.must(e.outcome(waits[0], released.end, "the one before has released the lock"), true, "it is next in line")
	e.note("from here on, D's next request with the holder's token %v", dropReply)
	x := f.p.armFor(dropReply, served)
	f.do("Extend", key, tokens[0], short)
	f.p.disarm()
	if !x.acted() {
		e.note("there was none")
	}
	done := f.insists("Release", key, tokens[0], 0)
	second := f.must(e.outcome(waits[1], done.end.Add(short+e.granularity()), "the one before it in the queue has released the lock, "+
		"or its time is up"), true, "it is next in the queue")
	l := f.insists("Extend", key, tokens[1], long)
	if !l.ok && l.end.Before(second.deadline) {
		f.must(l, true, "its Wait said until when it holds the lock")
	}
	if l.ok {
		e.sleep(short + e.granularity() + 500*time.Millisecond)
		select {
		case r := <-waits[2]:
			e.failAbout(key, "the third in the queue waits: the second has extended the lock by ten minutes", "its Wait = "+r.result())
		default:
		}
		e.C.blocked(key, "D's second waiter has extended it by ten minutes")
		f.must(f.insists("Extend", key, tokens[1], long), true, "it has extended it by ten minutes")
	}
	f.insists("Release", key, tokens[1], 0)
}
