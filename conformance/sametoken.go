package conformance

import (
	"fmt"
	"time"
)

const ruleSameToken = "C5 Same token: Acquire by the token that holds the lock is an Extend: true, ttl from this call on. " +
	"An attempt repeated after a lost reply succeeds."

func sameTokenChecks() []check {
	return []check{{
		name:   "sametoken/again",
		rule:   ruleSameToken,
		causes: "setting the key only when it is absent (SET NX, add), and not looking whether it holds our own token.",
		run: func(e *env) {
			key, token := e.key(), e.token()
			e.A.takes(key, token, long, "the key is fresh")
			e.A.takes(key, token, long, "its own token holds the lock")
			e.B.blocked(key, "A holds the lock")
			e.A.releases(key, token, "A holds the lock, once, however often it was acquired")
			e.A.cannotRelease(key, token, "A has released it")
			e.B.takes(key, e.token(), long, "A has released it")
		},
	}, {
		name:   "sametoken/counts-from-the-last",
		rule:   ruleSameToken,
		causes: "an Acquire that recognises its own token and says true, and leaves the expiry where it was, or adds to it.",
		run: func(e *env) {
			e.each(2, func(i int) {
				first, second := 800*time.Millisecond, 2*time.Second
				if i == 1 {
					first, second = long, 700*time.Millisecond
				}
				key, token := e.key(), e.token()
				e.A.takes(key, token, first, "the key is fresh")
				held := e.A.takes(key, token, second, "its own token holds the lock")
				e.B.takesOver(held, e.token(), long)
			})
		},
	}, {
		name:   "sametoken/after-loss",
		rule:   ruleSameToken + " " + ruleExclusive,
		causes: "a Locker that remembers a token it once acquired with, and does not ask the backend who holds the lock now.",
		run: func(e *env) {
			key, t1, t2 := e.key(), e.token(), e.token()
			first := e.A.takes(key, t1, 50*time.Millisecond, "the key is fresh")
			e.B.takesOver(first, t2, long)
			e.A.blockedAs(key, t1, "its time is up, and B has taken the lock over")
			e.B.takes(key, t2, long, "its own token holds the lock")
			e.B.releases(key, t2, "B holds the lock")
			e.A.takes(key, t1, long, "B has released it")
			e.B.blockedAs(key, t2, "A holds the lock")
		},
	}, {
		name:   "sametoken/never-refused",
		rule:   ruleSameToken + " " + ruleOutcomes,
		causes: "an Acquire that, repeated while the first is still under way, reads its own token as another's.",
		run: func(e *env) {
			e.note("again and again: four goroutines call A.Acquire of one free key at the same time, with the same token")
			var u unknowns
			e.until(60, 2*time.Second, func() {
				key, token := e.key(), randomToken()
				for _, r := range e.race(4, func(int) call { return e.A.quietly("Acquire", key, token, long) }) {
					u.saw(e, r)
					if r.err == nil && !r.ok {
						e.fail("true for each: no other token holds the lock", fmt.Sprintf("one of them is %s", r.result()))
					}
				}
				e.B.must(e.B.quietly("Acquire", key, randomToken(), blockedTTL), false, "A holds the lock")
				e.A.must(e.A.quietly("Release", key, token, 0), true, "A holds the lock")
			})
		},
	}}
}
