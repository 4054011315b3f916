package conformance

import (
	"fmt"
	"time"

	"github.com/golockers/locker/conformance/internal/harness"
)

func sameTokenChecks() []harness.Check {
	return []harness.Check{{
		Name:   "sametoken/reacquire",
		Direct: true,
		Rules:  []string{c5SameToken, aAcquire},
		Causes: "setting the key only if it is absent (SET NX, add), without looking whether it holds the caller's own token.",
		Run: func(e *harness.Env) {
			key, token := e.Key(), e.Token()
			e.A.Takes(key, token, harness.Long, "the key is fresh")
			e.A.Takes(key, token, harness.Long, "its own token holds the lock")
			e.B.Blocked(key, "A holds the lock")
			e.A.Releases(key, token, "A holds the lock; acquisitions do not nest")
			e.A.CannotRelease(key, token, "A has released it")
			e.B.Takes(key, e.Token(), harness.Long, "A has released it")
		},
	}, {
		Name:  "sametoken/ttl-restarts",
		Rules: []string{c5SameToken, aAcquire},
		Causes: "an Acquire that recognizes its own token and returns true, but keeps the old expiry, or adds to it; one of " +
			"several requests that is refused by the first, finds by the second that the lock has ended, and returns false " +
			"instead of beginning again.",
		Run: func(e *harness.Env) {
			e.Each(2, func(i int) {
				first, second := 800*time.Millisecond, 2*time.Second
				if i == 1 {
					first, second = harness.Long, 700*time.Millisecond
				}
				key, token := e.Key(), e.Token()
				e.A.Takes(key, token, first, "the key is fresh")
				held := e.A.Takes(key, token, second, "its own token holds the lock")
				e.B.TakesOver(held, e.Token(), harness.Long)
			})
		},
	}, {
		Name:   "sametoken/after-loss",
		Rules:  []string{c5SameToken, c3NeverEarly},
		Causes: "a Locker that remembers the tokens that it acquired with, and does not ask the backend which token holds the lock now.",
		Run: func(e *harness.Env) {
			key, t1, t2 := e.Key(), e.Token(), e.Token()
			first := e.A.Takes(key, t1, 50*time.Millisecond, "the key is fresh")
			e.B.TakesOver(first, t2, harness.Long)
			e.A.BlockedAs(key, t1, "its lock has expired, and B has taken it over")
			e.B.Takes(key, t2, harness.Long, "its own token holds the lock")
			e.B.Releases(key, t2, "B holds the lock")
			e.A.Takes(key, t1, harness.Long, "B has released it")
			e.B.BlockedAs(key, t2, "A holds the lock")
		},
	}, {
		Name:   "sametoken/concurrent",
		Rules:  []string{c5SameToken, c2Outcomes},
		Causes: "an Acquire that takes its own token, set by a concurrent call, for another's.",
		Run: func(e *harness.Env) {
			e.Note("repeatedly, four goroutines call A.Acquire for one free key at the same time, with the same token")
			var u unknowns
			e.Until(60, 2*time.Second, func() {
				key, token := e.Key(), harness.RandomToken()
				isHeld := false
				for _, r := range e.Race(4, func(int) harness.Call { return e.A.Quietly("Acquire", key, token, harness.Long) }) {
					u.saw(e, r)
					if r.Err == nil && !r.OK {
						e.Fail("each of them returns true: no other token holds the lock", fmt.Sprintf("one of them returned %s", r.Result()))
					}
					isHeld = isHeld || r.OK
				}
				if !isHeld { // all of them returned errors, so it is not known whether it is held
					return
				}
				e.B.Must(e.B.Quietly("Acquire", key, harness.RandomToken(), harness.BlockedTTL), false, "A holds the lock")
				e.A.Must(e.A.Quietly("Release", key, token, 0), true, "A holds the lock")
			})
		},
	}}
}
