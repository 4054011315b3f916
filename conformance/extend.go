package conformance

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/golockers/locker/conformance/internal/harness"
)

func extendChecks() []harness.Check {
	return []harness.Check{{
		Name:   "extend/longer",
		Rules:  []string{c6Extend, c6Replaces},
		Causes: "an Extend that returns true and does nothing, or whose ttl is rounded down.",
		Run: func(e *harness.Env) {
			e.InTime("A extends a lock of less than a second", func(scale time.Duration) bool {
				key, token := e.Key(), e.Token()
				shorter := e.A.Takes(key, token, scale*700*time.Millisecond, "the key is fresh")
				held := e.A.Extend(key, token, scale*2100*time.Millisecond)
				if held.Err == nil && !held.OK && !held.End.Before(shorter.Until()) {
					return false
				}
				e.A.Must(held, true, "A holds the lock")
				e.B.TakesOver(held, e.Token(), harness.Long)
				return true
			})
		},
	}, {
		Name:   "extend/shorter",
		Rules:  []string{c6Extend, c6Replaces},
		Causes: "an Extend that keeps the longer of the two times, or adds to it.",
		Run: func(e *harness.Env) {
			key, token := e.Key(), e.Token()
			e.A.Takes(key, token, harness.Long, "the key is fresh")
			held := e.A.Extends(key, token, 600*time.Millisecond, "A holds the lock")
			e.B.TakesOver(held, e.Token(), harness.Long)
		},
	}, {
		Name:   "extend/replaces",
		Rules:  []string{c6Extend, c6Replaces},
		Causes: "an Extend that adds its ttl to what remains.",
		Run: func(e *harness.Env) {
			e.InTime("A extends a lock of three seconds twenty times", func(scale time.Duration) bool {
				key, token, ttl := e.Key(), e.Token(), scale*3*time.Second
				held := e.A.Takes(key, token, ttl, "the key is fresh")
				for range 20 {
					next := e.A.Extend(key, token, ttl)
					if next.Err == nil && !next.OK && !next.End.Before(held.Until()) {
						return false
					}
					held = e.A.Must(next, true, "A holds the lock")
				}
				e.B.TakesOver(held, e.Token(), harness.Long)
				return true
			})
		},
	}, {
		Name:   "extend/keep-alive",
		Rules:  []string{c3NeverEarly},
		Causes: "an Extend that does not move the expiry, or moves it too little.",
		Run:    checkKeepsAlive,
	}, {
		Name:   "extend/after-release",
		Rules:  []string{c6Extend, c6Replaces},
		Causes: "an Extend that sets the key whether or not it is there, or acquires a lock that is free.",
		Run: func(e *harness.Env) {
			key, token := e.Key(), e.Token()
			e.A.CannotExtend(key, token, harness.Long, "the key is free")
			e.A.Takes(key, token, harness.Long, "the key is free; a refused Extend does not create a lock")
			e.A.Releases(key, token, "A holds the lock")
			e.A.CannotExtend(key, token, harness.Long, "A has released it")
			e.B.Takes(key, e.Token(), harness.Long, "it is free; a refused Extend does not re-create a lock")
		},
	}, {
		Name:   "extend/after-expiry",
		Rules:  []string{c6Extend, c6Replaces},
		Causes: "an Extend that re-creates or re-acquires a lock that has expired and is free.",
		Run: func(e *harness.Env) {
			var key string
			afterExpiry(e, func(held harness.Call) harness.Call {
				key = held.Key
				return e.A.Extend(held.Key, held.Token, harness.Long)
			})
			e.B.Takes(key, e.Token(), harness.Long, "it is free; a refused Extend does not re-create a lock")
		},
	}, {
		Name:   "extend/after-takeover",
		Rules:  []string{c6Extend, c6Replaces},
		Causes: "an Extend that moves the expiry of whatever lock is there (a bare EXPIRE), or takes the lock back.",
		Run: func(e *harness.Env) {
			key, t1 := e.Key(), e.Token()
			first := e.A.Takes(key, t1, 50*time.Millisecond, "the key is fresh")
			second := e.B.TakesOver(first, e.Token(), 2*time.Second)
			for _, ttl := range []time.Duration{10 * harness.Long, time.Millisecond} {
				if r := e.A.Extend(key, t1, ttl); r.OK || r.Err != nil {
					e.A.Must(r, false, "its lock has expired, and B has taken it over")
				}
			}
			e.C.TakesOver(second, e.Token(), harness.Long)
		},
	}, {
		Name:   "extend/owner-only",
		Direct: true,
		Rules:  []string{c6Extend, c6Replaces},
		Causes: "an Extend that does not compare the token: a bare EXPIRE, SET with XX.",
		Run: func(e *harness.Env) {
			key, short, t1, t2 := e.Key(), e.Key(), e.Token(), e.Token()
			e.A.Takes(key, t1, harness.Long, "the key is fresh")
			held := e.A.Takes(short, t2, 1200*time.Millisecond, "the key is fresh")
			for _, c := range e.Clients() {
				c.CannotExtend(key, e.Token(), time.Millisecond, "t1 holds the lock")
				c.CannotExtend(short, e.Token(), harness.Long, "t2 holds the lock")
			}
			e.Sleep(5 * time.Millisecond)
			e.B.Blocked(key, "A holds the lock for ten minutes; a refused Extend does not shorten that")
			e.A.Extends(key, t1, harness.Long, "A holds the lock")
			e.A.Releases(key, t1, "A holds the lock")
			e.C.TakesOver(held, e.Token(), harness.Long)
		},
	}, {
		Name:  "extend/atomic",
		Rules: []string{c6Extend, c6Replaces},
		Causes: "reading the owner, comparing it, and extending in a separate step: between them the lock expires and another " +
			"token takes it.",
		Run: func(e *harness.Env) {
			raceExpiry(e, func(held harness.Call) harness.Call {
				return e.A.Quietly("Extend", held.Key, held.Token, raceAsk)
			})
		},
	}}
}

func checkKeepsAlive(e *harness.Env) {
	e.InTime("A keeps a lock alive", func(scale time.Duration) bool {
		ttl, every := scale*1200*time.Millisecond, 300*time.Millisecond
		key, token, other := e.Key(), e.Token(), e.Token()
		held := e.A.Takes(key, token, ttl, "the key is fresh")
		for end := held.Start.Add(5 * ttl / 2); held.Start.Before(end); {
			e.SleepUntil(held.Start.Add(every))
			r := e.B.Acquire(key, other, harness.BlockedTTL)
			if r.OK && !r.End.Before(held.Until()) {
				return false
			}
			e.B.Must(r, false, fmt.Sprintf("A extended the lock by %v at %s", ttl, e.At(held.Start)))
			next := e.A.Extend(key, token, ttl)
			if next.Err == nil && !next.OK && !next.End.Before(held.Until()) {
				return false
			}
			held = e.A.Must(next, true, "A holds the lock")
		}
		e.B.TakesOver(held, other, harness.Long)
		return true
	})
}

// afterExpiry lets a lock expire that no other token takes, and checks that op then returns false.
// Since an expiry may be late, it tries again after longer times.
func afterExpiry(e *harness.Env, op func(held harness.Call) harness.Call) {
	for _, extra := range []time.Duration{20 * time.Millisecond, 500 * time.Millisecond, 0} {
		held := e.A.Takes(e.Key(), e.Token(), 30*time.Millisecond, "the key is fresh")
		wait := e.Granularity() + extra
		if extra == 0 {
			wait = e.Slack()
		}
		e.SleepUntil(held.End.Add(held.TTL + wait))
		r := op(held)
		why := fmt.Sprintf("the lock was acquired for %v, and expired %v ago", held.TTL,
			r.Start.Sub(held.End.Add(held.TTL)).Round(time.Millisecond))
		if r.Err != nil || !r.OK {
			e.A.Must(r, false, why)
			return
		}
		if extra == 0 {
			e.FailTime(harness.Event, 2*wait, e.Check.Causes, r.Key, fmt.Sprintf("A.%s = false, nil: %s", r.Op, why),
				fmt.Sprintf("A.%s = %s", r.Op, r.Result()))
		}
	}
}

// raceAsk is what an Extend asks for in raceExpiry.
const raceAsk = 30 * time.Millisecond

// raceExpiry lets locks expire while their holder does op and another token takes them over. The
// other token must keep what it has taken over, whatever op returned.
func raceExpiry(e *harness.Env, op func(held harness.Call) harness.Call) {
	// How long before the expiry op starts. It adapts until op is in time about every other time,
	// on a machine and a backend of any speed.
	var lead atomic.Int64
	lead.Store(int64(time.Millisecond))
	e.Note("repeatedly, A acquires a key for some milliseconds; about when it expires, A makes another call, while B calls " +
		"Acquire until it has acquired it; the last time:")
	e.Lanes(240, 5*time.Second, func() {
		key, lead0 := e.Key(), time.Duration(lead.Load())
		ttl := lead0 + 2*time.Millisecond + rand.N(4*time.Millisecond)
		held := e.A.Must(e.A.Quietly("Acquire", key, harness.RandomToken(), ttl), true, "the key is fresh")
		at := held.Until().Add(-lead0/2 - rand.N(lead0))
		var done, next harness.Call
		e.Each(2, func(i int) {
			if i == 0 {
				e.SleepUntil(at)
				done = op(held)
				if done.OK {
					lead0 -= lead0 / 8
				} else {
					lead0 += lead0 / 8
				}
				lead.Store(int64(min(max(lead0, 200*time.Microsecond), 50*time.Millisecond)))
				return
			}
			token := harness.RandomToken()
			e.SleepUntil(held.Until().Add(-time.Millisecond))
			for ; ; e.Near(held.Until()) {
				next = e.B.Quietly("Acquire", key, token, harness.Long)
				if next.OK || next.Err != nil {
					return
				}
				e.Overdue(harness.Event, next.Start.Sub(held.Until().Add(raceAsk+e.Granularity())), e.Check.Causes, key,
					"B acquires the lock, since A's has expired", "it is still refused")
			}
		})
		if done.Err != nil {
			e.A.Must(done, false, "the lock has just expired, or is about to")
		}
		e.B.Must(next, true, "A's lock has expired, even on a slow machine")
		stays := fmt.Sprintf("B holds it for ten minutes; A's %s, which returned %s, cannot change that", done.Op, done.Result())
		show := func() {
			for _, r := range []harness.Call{held, done, next} {
				e.Show(r)
			}
		}
		if r := e.C.Quietly("Acquire", key, harness.RandomToken(), harness.BlockedTTL); r.OK || r.Err != nil {
			show()
			e.C.Must(r, false, stays)
		}
		if done.Op == "Extend" && done.OK && next.End.Before(done.Until()) {
			show()
			e.Fail("Extend returned true, so no other token acquires the lock for another "+done.TTL.String(),
				fmt.Sprintf("B had it %v after the Extend started", next.End.Sub(done.Start)))
		}
		if r := e.B.Quietly("Extend", key, next.Token, harness.Long); r.Err != nil || !r.OK {
			show()
			e.B.Must(r, true, stays)
		}
		if r := e.B.Quietly("Release", key, next.Token, 0); r.Err != nil || !r.OK {
			show()
			e.B.Must(r, true, stays)
		}
	})
}
