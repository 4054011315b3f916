package conformance

import "time"

const ruleRelease = "C7 Release only when the token holds the lock, as one atomic step; the lock is free at once."

func releaseChecks() []check {
	return []check{{
		name:   "release/frees-at-once",
		rule:   ruleRelease,
		causes: "a release that only shortens the lock's time, is sent in the background, or says true and does nothing.",
		run: func(e *env) {
			key := e.key()
			e.until(60, 2*time.Second, func() {
				for _, c := range e.clients() {
					token := e.token()
					c.takes(key, token, long, "the one before has released it")
					c.releases(key, token, "it holds the lock")
				}
			})
		},
	}, {
		name:   "release/only-the-owner",
		rule:   ruleRelease,
		causes: "releasing by a bare delete of the key, without comparing the token.",
		run: func(e *env) {
			key, t1 := e.key(), e.token()
			e.A.takes(key, t1, long, "the key is fresh")
			for _, c := range e.clients() {
				c.cannotRelease(key, e.token(), "t1 holds the lock")
			}
			e.C.blocked(key, "A has not released it")
			e.A.extends(key, t1, long, "its token has held the lock all the time")
			e.A.releases(key, t1, "its token has held the lock all the time")
		},
	}, {
		name:   "release/twice",
		rule:   ruleOutcomes + " A Release of a lock that the token does not hold is false.",
		causes: "a release that says true whatever it finds.",
		run: func(e *env) {
			key, t1 := e.key(), e.token()
			e.A.cannotRelease(key, t1, "nobody holds the lock")
			e.A.takes(key, t1, long, "the key is fresh")
			e.A.releases(key, t1, "A holds the lock")
			e.A.cannotRelease(key, t1, "A has released it already")
			e.A.takes(key, t1, long, "it is free")
			e.A.releases(key, t1, "A holds the lock")
		},
	}, {
		name:   "release/after-expiry",
		rule:   ruleOutcomes + " A Release of a lock that has expired is false.",
		causes: "a release that says true whatever it finds, or does not know that what it finds has expired.",
		run: func(e *env) {
			afterExpiry(e, func(held call) call { return e.A.release(held.key, held.token) })
		},
	}, {
		name:   "release/after-takeover",
		rule:   ruleRelease,
		causes: "a stale holder's release that deletes its successor's lock.",
		run: func(e *env) {
			key, t1, t2 := e.key(), e.token(), e.token()
			first := e.A.takes(key, t1, 50*time.Millisecond, "the key is fresh")
			e.B.takesOver(first, t2, long)
			e.A.cannotRelease(key, t1, "its time is up and B has taken the lock over")
			e.C.blocked(key, "B holds the lock")
			e.B.extends(key, t2, long, "B holds the lock")
			e.B.releases(key, t2, "B holds the lock")
		},
	}, {
		name:   "release/from-another-client",
		rule:   "C2, C5: a lock belongs to the token that acquired it, not to a client, connection, host or process.",
		causes: "state of a lock that is kept in the Locker which acquired it.",
		run: func(e *env) {
			key, t1 := e.key(), e.token()
			e.A.takes(key, t1, long, "the key is fresh")
			e.B.extends(key, t1, long, "its token holds the lock, whoever acquired it")
			e.C.takes(key, t1, long, "its token holds the lock, whoever acquired it")
			e.A.blocked(key, "t1 holds the lock")
			e.B.releases(key, t1, "its token holds the lock, whoever acquired it")
			e.A.cannotExtend(key, t1, long, "B has released it")
			e.C.takes(key, e.token(), long, "B has released it")
		},
	}, {
		name: "release/atomic",
		rule: ruleRelease,
		causes: "reading the owner, comparing it, and deleting the key in a step of its own: in between the lock expires " +
			"and another takes it.",
		run: func(e *env) {
			raceExpiry(e, func(held call) call { return e.A.quietly("Release", held.key, held.token, 0) })
		},
	}}
}
