package conformance

import (
	"fmt"
	"time"

	"github.com/golockers/locker/conformance/internal/faultproxy"
	"github.com/golockers/locker/conformance/internal/harness"
)

// In these checks D pauses between two steps of an operation until the lock has expired and B has
// it, as if the process were suspended or a packet delayed. An operation that looks at the lock and
// then changes it harms B, unless the backend refuses the change.

func pausedChecks() []harness.Check {
	const causes = "looking at the lock in one request and changing it in another. Do both in one step of the backend: a " +
		"script, WATCH with MULTI and EXEC, cas, or UPDATE … WHERE token = ?."
	return []harness.Check{{
		Name:   "fault/release-paused",
		Rules:  []string{c7Release},
		Direct: true,
		Causes: "releasing by GET, compare, DEL: " + causes,
		Run:    func(e *harness.Env) { newFaulty(e).paused("Release") },
	}, {
		Name:  "fault/extend-paused",
		Rules: []string{c6Extend, c6Replaces},
		Causes: "extending by GET, compare, PEXPIRE, which changes the next holder's ttl, or by SET XX, which takes its lock: " +
			causes,
		Run: func(e *harness.Env) { newFaulty(e).paused("Extend") },
	}, {
		Name:  "fault/extend-expired",
		Rules: []string{c6Extend, c6Replaces},
		Needs: harness.NeedsInspect,
		Causes: "looking at the lock in one request, and writing it in another that creates it again if it has expired in " +
			"between: write only what is there and has not expired, in one step.",
		Run: func(e *harness.Env) {
			f := newFaulty(e)
			f.eachStep(f.extendsExpired)
		},
	}, {
		Name:  "fault/takeover-paused",
		Rules: []string{c3NeverEarly, c1OwnSteps},
		Causes: "taking over an expired lock by DEL and SETNX, or by a GETSET that overwrites the value of a faster contender: " +
			causes,
		Run: func(e *harness.Env) { newFaulty(e).paused("Acquire") },
	}, {
		Name:   "fault/acquire-paused",
		Rules:  []string{c3NeverEarly, c1OwnSteps},
		Causes: "taking a GET that finds nothing for an expired lock, and setting the key without NX.",
		Run:    func(e *harness.Env) { newFaulty(e).acquirePaused() },
	}}
}

const (
	pausedTTL = 400 * time.Millisecond // of the lock that expires while D pauses
	pausedAsk = time.Second            // what D's operation asks for
)

// paused pauses op at its first request, then at its second, and so on, until B has the lock. Then
// op continues, and B must keep the lock for the ttl that it asked for.
func (f *faulty) paused(op string) {
	f.eachStep(func(n int) bool {
		for ttl := pausedTTL; ; ttl *= 2 {
			if n > 1 || ttl > pausedTTL {
				f.warm()
			}
			var reached, inTime bool
			if op == "Acquire" {
				reached, inTime = f.takeoverPausedAt(n), true
			} else {
				reached, inTime = f.changePausedAt(op, n, ttl)
			}
			if inTime {
				return reached
			}
		}
	})
}

// takeoverPausedAt pauses an Acquire of an expired lock at its nth request.
func (f *faulty) takeoverPausedAt(n int) (reached bool) {
	key, token := f.Env.Key(), f.Env.Token()
	held := f.Env.A.Takes(key, f.Env.Token(), pausedTTL, "the key is fresh")
	expired := held.End.Add(pausedTTL)
	f.Env.SleepUntil(expired)
	for {
		x, result := f.held(n, "Acquire", key, token, pausedAsk)
		defer x.Release()
		r := f.stopped(x, result)
		switch {
		case r == nil:
			f.resumed(x, result, key, expired)
			return true
		case r.Err != nil:
			f.Must(*r, true, fmt.Sprintf("the lock has been free since %s", f.Env.At(expired)))
		case r.OK:
			return false
		}
		f.Env.Overdue(harness.Event, r.Start.Sub(expired)-f.Env.Granularity(), f.Env.Check.Causes, key,
			"D acquires the lock, which has expired", "it is still refused")
		f.Env.Sleep(20 * time.Millisecond) // a backend may keep the lock a little longer
	}
}

// changePausedAt pauses an Extend or a Release at its nth request. It is not in time if the lock
// expired before that.
func (f *faulty) changePausedAt(op string, n int, ttl time.Duration) (reached, inTime bool) {
	key, token, lock := f.prepared(ttl)
	x, result := f.held(n, op, key, token, pausedAsk)
	defer x.Release()
	if r := f.stopped(x, result); r != nil {
		if r.Err != nil || !r.OK && r.End.Before(lock.Until()) {
			f.Must(*r, true, "this token holds the lock")
		}
		return false, r.OK
	}
	f.resumed(x, result, key, lock.End.Add(ttl))
	return true, true
}

// extendsExpired pauses an Extend at its nth request until B has seen that the lock has expired. If
// the Extend has taken effect before that, there is nothing to check.
func (f *faulty) extendsExpired(n int) (reached bool) {
	e := f.Env
	for ttl := pausedTTL; ; ttl *= 2 {
		f.warm()
		key, token, lock := f.prepared(ttl)
		x, result := f.held(n, "Extend", key, token, harness.Long)
		defer x.Release()
		if r := f.stopped(x, result); r != nil {
			if r.Err != nil || !r.OK && r.End.Before(lock.Until()) {
				f.Must(*r, true, "this token holds the lock")
			}
			if r.OK {
				f.insists("Release", key, token, 0)
				return false
			}
			continue // the lock expired before the nth request
		}
		isFree := f.endsWithin(key, lock.End.Add(ttl))
		e.Note("D's request is delivered")
		x.Release()
		r := <-result
		f.carriedOut(x)
		if isFree {
			if r.OK {
				e.Fail("D.Extend = false, or an error: the lock had expired, as B has seen", fmt.Sprintf("D.Extend = %s", r.Result()))
			}
			c := e.C.Takes(key, e.Token(), harness.Long, "the lock has expired, and D's Extend does not bring it back")
			e.C.Releases(key, c.Token, "C has just taken it")
		}
		f.insists("Release", key, token, 0)
		return true
	}
}

// endsWithin reports whether B sees that key is free, no later than Slack after expired. Otherwise D has
// extended the lock.
func (f *faulty) endsWithin(key string, expired time.Time) bool {
	e := f.Env
	for e.SleepUntil(expired); ; e.Sleep(20 * time.Millisecond) {
		r := e.B.Inspected(e.B.Quietly("Inspect", key, "", 0), "the lock has expired, or D has extended it")
		if r.Info.Token == "" {
			e.Note("B sees that the lock is free")
			return true
		}
		if time.Now().After(expired.Add(e.Slack())) {
			return false
		}
	}
}

// held starts an operation whose nth request is held back.
func (f *faulty) held(n int, op, key, token string, ttl time.Duration) (*faultproxy.Fault, <-chan harness.Call) {
	x := f.arm(faultproxy.HoldRequest, n)
	return x, f.Env.Meanwhile(func() harness.Call { return f.Do(op, key, token, asked(op, ttl)) })
}

// stopped returns nil once the operation is paused, or its outcome if it ends without that.
func (f *faulty) stopped(x *faultproxy.Fault, result <-chan harness.Call) *harness.Call {
	select {
	case r, ok := <-result:
		f.p.Disarm()
		if !ok {
			f.Env.GoOn()
		}
		return &r
	case <-x.Hit:
		return nil
	}
}

// resumed lets B acquire the lock, continues the operation, and checks that B keeps the lock.
func (f *faulty) resumed(x *faultproxy.Fault, result <-chan harness.Call, key string, expired time.Time) {
	e, next := f.Env, f.Env.Token()
	// If the operation has taken effect already, the lock is free, or D's for the ttl that D asked
	// for.
	if d := time.Now().Add(pausedAsk); d.After(expired) {
		expired = d
	}
	b := e.B.TakesWhen(key, next, harness.Long, time.Time{}, expired, "the lock is free, or it expires")
	e.Note("D's request is delivered")
	x.Release()
	r := <-result
	f.carriedOut(x)
	if r.Op != "Release" && r.OK && r.Err == nil && b.End.Before(r.Start.Add(pausedAsk)) {
		e.Fail(fmt.Sprintf("D.%s = false, or an error: B has held the lock since %s", r.Op, e.At(b.End)),
			fmt.Sprintf("D.%s = %s", r.Op, r.Result()))
	}
	e.C.Blocked(key, "B holds it for ten minutes")
	if r.Op != "Release" { // B's lock does not end after the ttl that D asked for
		e.SleepUntil(time.Now().Add(pausedAsk + e.Granularity() + 50*time.Millisecond))
		e.C.Blocked(key, "B holds it for ten minutes")
	}
	e.B.Extends(key, next, harness.Long, "B still holds it, for ten minutes")
	e.B.Releases(key, next, "B holds it")
	free := e.C.Takes(key, e.Token(), harness.Long, "B has released it")
	e.C.Releases(key, free.Token, "C has just taken it")
}

// acquirePaused pauses an Acquire of a held lock at each of its requests until the holder releases
// the lock, and at the next request until B has taken it.
func (f *faulty) acquirePaused() {
	f.eachStep(func(n int) bool {
		e := f.Env
		f.warm()
		key, mine, next := e.Key(), e.Token(), e.Token()
		first := e.A.Takes(key, e.Token(), harness.Long, "the key is fresh")
		x, result := f.held(n, "Acquire", key, mine, harness.Long)
		defer x.Release()
		if r := f.stopped(x, result); r != nil {
			f.Must(*r, false, "A holds it for ten minutes")
			e.A.Releases(key, first.Token, "A holds it")
			return false
		}
		e.A.Releases(key, first.Token, "A holds it")
		y := f.arm(faultproxy.HoldRequest, 1)
		defer y.Release()
		e.Note("D's request is delivered")
		x.Release()
		r := f.stopped(y, result)
		if r == nil {
			b := e.B.Acquire(key, next, harness.Long)
			e.Note("D's request is delivered")
			y.Release()
			last := <-result
			r = &last
			f.carriedOut(y)
			if b.OK || b.Err != nil {
				e.B.Must(b, true, "A has released it")
				if r.OK {
					e.Fail("D.Acquire = false, or an error: B has the lock", fmt.Sprintf("D.Acquire = %s", r.Result()))
				}
				e.C.Blocked(key, "B holds it for ten minutes")
				e.B.Extends(key, next, harness.Long, "B still holds it, for ten minutes")
				e.B.Releases(key, next, "B holds it")
				return true
			}
		}
		if r.OK {
			e.B.Blocked(key, "D.Acquire returned true")
		}
		f.insists("Release", key, mine, 0)
		b := e.B.Takes(key, next, harness.Long, "D has released it")
		e.B.Releases(key, b.Token, "B has just taken it")
		return true
	})
}
