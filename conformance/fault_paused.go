package conformance

import (
	"fmt"
	"time"
)

// In these checks D stands still between two steps of an operation, for as long as it takes until the lock
// has expired and B has it. A process that was suspended, or a packet that was late, does the same. Each
// operation that looks at the lock first and changes it then hurts B, unless the backend refuses the change.

func pausedChecks() []check {
	const causes = "looking at the lock in one request and changing it in another. Do both in one step of the backend: a " +
		"script, WATCH with MULTI and EXEC, cas, or UPDATE … WHERE token = ?."
	return []check{{
		name:   "fault/release-paused",
		rule:   "C7 Release: only when the token holds the lock, as one atomic step.",
		causes: "releasing by GET, compare, DEL. " + causes,
		run:    func(e *env) { newFaulty(e).paused("Release") },
	}, {
		name: "fault/extend-paused",
		rule: "C6 Extend: only when the token holds the lock; it never re-creates a lock that is gone.",
		causes: "extending by GET, compare, PEXPIRE, which then gives the next holder another ttl, or by SET XX, which " +
			"takes its lock. " + causes,
		run: func(e *env) { newFaulty(e).paused("Extend") },
	}, {
		name: "fault/takeover-paused",
		rule: "C3 Never early: after Acquire returned true, no other token acquires before ttl has passed since that " +
			"call started. C1: what changed under a step is looked at again.",
		causes: "taking over an expired lock by DEL and SETNX, or by GETSET that overwrites the value of one who was faster. " +
			causes,
		run: func(e *env) { newFaulty(e).paused("Acquire") },
	}, {
		name: "fault/acquire-paused",
		rule: "C3 Never early: after Acquire returned true, no other token acquires before ttl has passed since that " +
			"call started, unless this token releases. C1: what changed under a step is looked at again.",
		causes: "taking a GET that finds nothing for an expired lock, and setting the key without NX. " + causes,
		run:    func(e *env) { newFaulty(e).acquirePaused() },
	}}
}

const (
	pausedTTL = 400 * time.Millisecond // of the lock that expires while D stands still
	pausedAsk = time.Second            // what D's operation asks for
)

// paused holds op at its first request, then at its second, and so on, until B has the lock; then it lets
// op go on. B keeps the lock, for the ttl it asked for.
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

// takeoverPausedAt holds the nth request of an Acquire of an expired lock.
func (f *faulty) takeoverPausedAt(n int) (reached bool) {
	key, token := f.e.key(), f.e.token()
	held := f.e.A.takes(key, f.e.token(), pausedTTL, "the key is fresh")
	expired := held.end.Add(pausedTTL)
	f.e.sleepUntil(expired)
	for {
		x, result := f.held(n, "Acquire", key, token, pausedAsk)
		defer x.release()
		r := f.stopped(x, result)
		switch {
		case r == nil:
			f.resumed(x, result, key, expired)
			return true
		case r.err != nil || !r.ok && r.start.After(expired.Add(f.e.slack())):
			f.must(*r, true, fmt.Sprintf("the lock has been free since %s", f.e.at(expired)))
		case r.ok:
			return false
		}
		f.e.sleep(20 * time.Millisecond) // the backend keeps the lock a little longer
	}
}

// changePausedAt holds the nth request of an Extend or a Release. It is not in time when the lock had
// expired before op came to that.
func (f *faulty) changePausedAt(op string, n int, ttl time.Duration) (reached, inTime bool) {
	key, token, lock := f.prepared(ttl)
	x, result := f.held(n, op, key, token, pausedAsk)
	defer x.release()
	if r := f.stopped(x, result); r != nil {
		if r.err != nil || !r.ok && r.end.Before(lock.until()) {
			f.must(*r, true, "this token holds the lock")
		}
		return false, r.ok
	}
	f.resumed(x, result, key, lock.end.Add(ttl))
	return true, true
}

// held starts an operation whose nth request is held.
func (f *faulty) held(n int, op, key, token string, ttl time.Duration) (*fault, <-chan call) {
	x := f.arm(holdRequest, n)
	return x, f.e.meanwhile(func() call { return f.do(op, key, token, asked(op, ttl)) })
}

// stopped returns nil once the operation stands still, or what came of it without that.
func (f *faulty) stopped(x *fault, result <-chan call) *call {
	select {
	case r, ok := <-result:
		f.p.disarm()
		if !ok {
			f.e.goOn()
		}
		return &r
	case <-x.hit:
		return nil
	}
}

// resumed lets B have the lock, lets the operation go on, and sees B keep the lock.
func (f *faulty) resumed(x *fault, result <-chan call, key string, expired time.Time) {
	e, next := f.e, f.e.token()
	// If the step that counts has been done already, the lock is free, or it is D's for what D asked.
	if d := time.Now().Add(pausedAsk); d.After(expired) {
		expired = d
	}
	b := e.B.takesWhen(key, next, long, time.Time{}, expired, "the lock is free, or it expires")
	e.note("D's request is let go")
	x.release()
	r := <-result
	f.carriedOut(x)
	if r.op != "Release" && r.ok && r.err == nil && b.end.Before(r.start.Add(pausedAsk)) {
		e.fail(fmt.Sprintf("D.%s = false, or an error: B has held the lock since %s", r.op, e.at(b.end)),
			fmt.Sprintf("D.%s = %s", r.op, r.result()))
	}
	e.C.blocked(key, "B holds it for ten minutes")
	if r.op != "Release" { // B's lock does not end by what D asked for
		e.sleepUntil(time.Now().Add(pausedAsk + e.granularity() + 50*time.Millisecond))
		e.C.blocked(key, "B holds it for ten minutes")
	}
	e.B.extends(key, next, long, "B has held it all the time, by a ttl of ten minutes")
	e.B.releases(key, next, "B holds it")
	free := e.C.takes(key, e.token(), long, "B has released it")
	e.C.releases(key, free.token, "C has just taken it")
}

// acquirePaused holds each request of an Acquire of a lock that another token holds, until that releases it.
// The request after that one it holds until B has taken the lock.
func (f *faulty) acquirePaused() {
	f.eachStep(func(n int) bool {
		e := f.e
		f.warm()
		key, mine, next := e.key(), e.token(), e.token()
		first := e.A.takes(key, e.token(), long, "the key is fresh")
		x, result := f.held(n, "Acquire", key, mine, long)
		defer x.release()
		if r := f.stopped(x, result); r != nil {
			f.must(*r, false, "A holds it for ten minutes")
			e.A.releases(key, first.token, "A holds it")
			return false
		}
		e.A.releases(key, first.token, "A holds it")
		y := f.arm(holdRequest, 1)
		defer y.release()
		e.note("D's request is let go")
		x.release()
		r := f.stopped(y, result)
		if r == nil {
			b := e.B.acquire(key, next, long)
			e.note("D's request is let go")
			y.release()
			last := <-result
			r = &last
			f.carriedOut(y)
			if b.ok || b.err != nil {
				e.B.must(b, true, "A has released it")
				if r.ok {
					e.fail("D.Acquire = false, or an error: B has the lock", fmt.Sprintf("D.Acquire = %s", r.result()))
				}
				e.C.blocked(key, "B holds it for ten minutes")
				e.B.extends(key, next, long, "B has held it all the time, by a ttl of ten minutes")
				e.B.releases(key, next, "B holds it")
				return true
			}
		}
		if r.ok {
			e.B.blocked(key, "D.Acquire returned true")
		}
		f.insists("Release", key, mine, 0)
		b := e.B.takes(key, next, long, "D has released it")
		e.B.releases(key, b.token, "B has just taken it")
		return true
	})
}
