package conformance

import (
	"time"

	"github.com/golockers/locker/conformance/internal/harness"
)

func releaseChecks() []harness.Check {
	return []harness.Check{{
		Name:   "release/immediate",
		Rules:  []string{c7Release},
		Causes: "a release that only shortens the ttl, is sent in the background, or returns true and does nothing.",
		Run: func(e *harness.Env) {
			key := e.Key()
			e.Until(60, 2*time.Second, func() {
				for _, c := range e.Clients() {
					token := e.Token()
					c.Takes(key, token, harness.Long, "the previous holder has released it")
					c.Releases(key, token, "it holds the lock")
				}
			})
		},
	}, {
		Name:   "release/owner-only",
		Direct: true,
		Rules:  []string{c7Release},
		Causes: "releasing by a bare delete of the key, without comparing the token.",
		Run: func(e *harness.Env) {
			key, t1 := e.Key(), e.Token()
			e.A.Takes(key, t1, harness.Long, "the key is fresh")
			for _, c := range e.Clients() {
				c.CannotRelease(key, e.Token(), "t1 holds the lock")
			}
			e.C.Blocked(key, "A has not released it")
			e.A.Extends(key, t1, harness.Long, "t1 still holds the lock")
			e.A.Releases(key, t1, "t1 still holds the lock")
		},
	}, {
		Name:   "release/twice",
		Rules:  []string{c2Outcomes, rRelease},
		Causes: "a release that returns true whatever it finds.",
		Run: func(e *harness.Env) {
			key, t1 := e.Key(), e.Token()
			e.A.CannotRelease(key, t1, "the key is free")
			e.A.Takes(key, t1, harness.Long, "the key is fresh")
			e.A.Releases(key, t1, "A holds the lock")
			e.A.CannotRelease(key, t1, "A has released it already")
			e.A.Takes(key, t1, harness.Long, "it is free")
			e.A.Releases(key, t1, "A holds the lock")
		},
	}, {
		Name:   "release/after-expiry",
		Rules:  []string{c2Outcomes, rRelease},
		Causes: "a release that returns true whatever it finds, or that does not notice that the lock has expired.",
		Run: func(e *harness.Env) {
			afterExpiry(e, func(held harness.Call) harness.Call { return e.A.Release(held.Key, held.Token) })
		},
	}, {
		Name:   "release/after-takeover",
		Rules:  []string{c7Release},
		Causes: "a stale holder's release that deletes its successor's lock.",
		Run: func(e *harness.Env) {
			key, t1, t2 := e.Key(), e.Token(), e.Token()
			first := e.A.Takes(key, t1, 50*time.Millisecond, "the key is fresh")
			e.B.TakesOver(first, t2, harness.Long)
			e.A.CannotRelease(key, t1, "its lock has expired, and B has taken it over")
			e.C.Blocked(key, "B holds the lock")
			e.B.Extends(key, t2, harness.Long, "B holds the lock")
			e.B.Releases(key, t2, "B holds the lock")
		},
	}, {
		Name:   "release/from-another-client",
		Rules:  []string{c2Outcomes, c5SameToken},
		Causes: "a Locker that keeps the state of the locks that it acquired.",
		Run: func(e *harness.Env) {
			key, t1 := e.Key(), e.Token()
			e.A.Takes(key, t1, harness.Long, "the key is fresh")
			e.B.Extends(key, t1, harness.Long, "its token holds the lock, whichever client acquired it")
			e.C.Takes(key, t1, harness.Long, "its token holds the lock, whichever client acquired it")
			e.A.Blocked(key, "t1 holds the lock")
			e.B.Releases(key, t1, "its token holds the lock, whichever client acquired it")
			e.A.CannotExtend(key, t1, harness.Long, "B has released it")
			e.C.Takes(key, e.Token(), harness.Long, "B has released it")
		},
	}, {
		Name:  "release/atomic",
		Rules: []string{c7Release},
		Causes: "reading the owner, comparing it, and deleting the key in a separate step: between them the lock expires and " +
			"another token takes it.",
		Run: func(e *harness.Env) {
			raceExpiry(e, func(held harness.Call) harness.Call { return e.A.Quietly("Release", held.Key, held.Token, 0) })
		},
	}}
}
