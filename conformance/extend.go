package conformance

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

const ruleExtend = "C6 Extend only when the token holds the lock; it replaces the remaining time (longer or shorter), " +
	"never adds to it, never re-creates a lock that is gone."

func extendChecks() []check {
	return []check{{
		name:   "extend/longer",
		rule:   ruleExtend,
		causes: "an Extend that reports true and does nothing, or one whose ttl is rounded down.",
		run: func(e *env) {
			e.inTime("A extends a lock of less than a second", func(scale time.Duration) bool {
				key, token := e.key(), e.token()
				shorter := e.A.takes(key, token, scale*700*time.Millisecond, "the key is fresh")
				held := e.A.extend(key, token, scale*2100*time.Millisecond)
				if held.err == nil && !held.ok && !held.end.Before(shorter.until()) {
					return false
				}
				e.A.must(held, true, "A holds the lock")
				e.B.takesOver(held, e.token(), long)
				return true
			})
		},
	}, {
		name:   "extend/shorter",
		rule:   ruleExtend,
		causes: "an Extend that leaves the longer one of two times in place, or adds to it.",
		run: func(e *env) {
			key, token := e.key(), e.token()
			e.A.takes(key, token, long, "the key is fresh")
			held := e.A.extends(key, token, 600*time.Millisecond, "A holds the lock")
			e.B.takesOver(held, e.token(), long)
		},
	}, {
		name:   "extend/replaces",
		rule:   ruleExtend,
		causes: "an Extend that adds its ttl to what remains.",
		run: func(e *env) {
			e.inTime("A extends a lock of three seconds twenty times", func(scale time.Duration) bool {
				key, token, ttl := e.key(), e.token(), scale*3*time.Second
				held := e.A.takes(key, token, ttl, "the key is fresh")
				for range 20 {
					next := e.A.extend(key, token, ttl)
					if next.err == nil && !next.ok && !next.end.Before(held.until()) {
						return false
					}
					held = e.A.must(next, true, "A holds the lock")
				}
				e.B.takesOver(held, e.token(), long)
				return true
			})
		},
	}, {
		name:   "extend/keeps-alive",
		rule:   ruleNotEarly,
		causes: "an Extend that does not move the expiry, or moves it to somewhere before its ttl.",
		run:    checkKeepsAlive,
	}, {
		name:   "extend/after-release",
		rule:   ruleExtend,
		causes: "an Extend that sets the key whether or not it is there, or acquires a lock that is free.",
		run: func(e *env) {
			key, token := e.key(), e.token()
			e.A.cannotExtend(key, token, long, "nobody holds the lock")
			e.A.takes(key, token, long, "the key is fresh; an Extend that was refused has not created the lock")
			e.A.releases(key, token, "A holds the lock")
			e.A.cannotExtend(key, token, long, "A has released it")
			e.B.takes(key, e.token(), long, "it is free; an Extend that was refused has not re-created the lock")
		},
	}, {
		name:   "extend/after-expiry",
		rule:   ruleExtend,
		causes: "an Extend that re-creates or re-acquires a lock which has expired meanwhile and nobody has taken.",
		run: func(e *env) {
			var key string
			afterExpiry(e, func(held call) call {
				key = held.key
				return e.A.extend(held.key, held.token, long)
			})
			e.B.takes(key, e.token(), long, "it is free; an Extend that was refused has not re-created the lock")
		},
	}, {
		name:   "extend/after-takeover",
		rule:   ruleExtend,
		causes: "an Extend that moves the key's expiry whoever holds it (a bare EXPIRE), or takes the lock back.",
		run: func(e *env) {
			key, t1 := e.key(), e.token()
			first := e.A.takes(key, t1, 50*time.Millisecond, "the key is fresh")
			second := e.B.takesOver(first, e.token(), 2*time.Second)
			for _, ttl := range []time.Duration{10 * long, time.Millisecond} {
				if r := e.A.extend(key, t1, ttl); r.ok || r.err != nil {
					e.A.must(r, false, "its time is up and B has taken the lock over")
				}
			}
			e.C.takesOver(second, e.token(), long)
		},
	}, {
		name:   "extend/only-the-owner",
		rule:   ruleExtend,
		causes: "an Extend that does not compare the token: a bare EXPIRE, SET with XX.",
		run: func(e *env) {
			key, short, t1, t2 := e.key(), e.key(), e.token(), e.token()
			e.A.takes(key, t1, long, "the key is fresh")
			held := e.A.takes(short, t2, 1200*time.Millisecond, "the key is fresh")
			for _, c := range e.clients() {
				c.cannotExtend(key, e.token(), time.Millisecond, "t1 holds the lock")
				c.cannotExtend(short, e.token(), long, "t2 holds the lock")
			}
			e.sleep(5 * time.Millisecond)
			e.B.blocked(key, "A holds the lock for ten minutes, and an Extend that was refused has not cut it short")
			e.A.extends(key, t1, long, "A holds the lock")
			e.A.releases(key, t1, "A holds the lock")
			e.C.takesOver(held, e.token(), long)
		},
	}, {
		name: "extend/atomic",
		rule: ruleExtend + " That the token holds the lock and the new time are one step.",
		causes: "reading the owner, comparing it, and extending in a step of its own: in between the lock expires and " +
			"another takes it.",
		run: func(e *env) {
			raceExpiry(e, func(held call) call { return e.A.quietly("Extend", held.key, held.token, 30*time.Millisecond) })
		},
	}}
}

func checkKeepsAlive(e *env) {
	e.inTime("A keeps a lock alive", func(scale time.Duration) bool {
		ttl, every := scale*1200*time.Millisecond, 300*time.Millisecond
		key, token, other := e.key(), e.token(), e.token()
		held := e.A.takes(key, token, ttl, "the key is fresh")
		for end := held.start.Add(5 * ttl / 2); held.start.Before(end); {
			e.sleepUntil(held.start.Add(every))
			r := e.B.acquire(key, other, blockedTTL)
			if r.ok && !r.end.Before(held.until()) {
				return false
			}
			e.B.must(r, false, fmt.Sprintf("A extended the lock by %v at %s", ttl, e.at(held.start)))
			next := e.A.extend(key, token, ttl)
			if next.err == nil && !next.ok && !next.end.Before(held.until()) {
				return false
			}
			held = e.A.must(next, true, "A holds the lock")
		}
		e.B.takesOver(held, other, long)
		return true
	})
}

// afterExpiry lets a lock expire that nobody else takes, and checks that op is false then. Lateness is
// allowed for by waiting longer, a few times, and no longer than need be.
func afterExpiry(e *env, op func(held call) call) {
	for _, extra := range []time.Duration{20 * time.Millisecond, 500 * time.Millisecond, 0} {
		held := e.A.takes(e.key(), e.token(), 30*time.Millisecond, "the key is fresh")
		wait := e.granularity() + extra
		if extra == 0 {
			wait = e.slack()
		}
		e.sleepUntil(held.end.Add(held.ttl + wait))
		r := op(held)
		if r.err != nil || !r.ok || extra == 0 {
			e.A.must(r, false, fmt.Sprintf("the lock was acquired for %v, and that was over %v ago", held.ttl,
				r.start.Sub(held.end.Add(held.ttl)).Round(time.Millisecond)))
			return
		}
	}
}

// raceExpiry lets locks expire while their holder does op and another takes them over, again and again: what
// the other has taken over stays its own, whatever became of op.
func raceExpiry(e *env, op func(held call) call) {
	// How long before the expiry op is started. It finds its way to where op is in time as often as not, on a
	// machine and a backend of any speed.
	var lead atomic.Int64
	lead.Store(int64(time.Millisecond))
	e.note("again and again: A acquires a key for some milliseconds; about when it expires, A does something more with it, " +
		"while B calls Acquire until it has it; the last time:")
	e.lanes(240, 5*time.Second, func() {
		key, lead0 := e.key(), time.Duration(lead.Load())
		ttl := lead0 + 2*time.Millisecond + rand.N(4*time.Millisecond)
		held := e.A.must(e.A.quietly("Acquire", key, randomToken(), ttl), true, "the key is fresh")
		at := held.until().Add(-lead0/2 - rand.N(lead0))
		var done, next call
		e.each(2, func(i int) {
			if i == 0 {
				e.sleepUntil(at)
				done = op(held)
				if done.ok {
					lead0 -= lead0 / 8
				} else {
					lead0 += lead0 / 8
				}
				lead.Store(int64(min(max(lead0, 200*time.Microsecond), 50*time.Millisecond)))
				return
			}
			token, patience := randomToken(), e.slack()
			e.sleepUntil(held.until().Add(-time.Millisecond))
			for ; ; e.near(held.until()) {
				next = e.B.quietly("Acquire", key, token, long)
				if next.ok || next.err != nil || next.start.After(held.until().Add(30*time.Millisecond+patience)) {
					return
				}
			}
		})
		if done.err != nil {
			e.A.must(done, false, "the lock has just expired, or is just about to")
		}
		e.B.must(next, true, "A's time was up, with all patience")
		stays := fmt.Sprintf("B has it for ten minutes, and A's %s, which came to %s, cannot change that", done.op, done.result())
		show := func() {
			for _, r := range []call{held, done, next} {
				e.show(r)
			}
		}
		if r := e.C.quietly("Acquire", key, randomToken(), blockedTTL); r.ok || r.err != nil {
			show()
			e.C.must(r, false, stays)
		}
		if done.op == "Extend" && done.ok && next.end.Before(done.until()) {
			show()
			e.fail("since Extend said true, B waits for another "+done.ttl.String(),
				fmt.Sprintf("B had it %v after the Extend was started", next.end.Sub(done.start)))
		}
		if r := e.B.quietly("Extend", key, next.token, long); r.err != nil || !r.ok {
			show()
			e.B.must(r, true, stays)
		}
		if r := e.B.quietly("Release", key, next.token, 0); r.err != nil || !r.ok {
			show()
			e.B.must(r, true, stays)
		}
	})
}
