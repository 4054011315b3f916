package conformance

import (
	"errors"
	"fmt"
	"math"

	"time"

	"github.com/golockers/locker"
)

const (
	ruleNotEarly = "C3 Never early: after Acquire or Extend returned true, no other token acquires before ttl has " +
		"passed since that call started, unless this token releases."
	ruleNotLate = "C4 Late by little: ttl plus the backend's granularity after the call returned, the lock is free " +
		"for others."
	ruleTTL = "C13 Any ttl from 1 ms: rounding is up only; what a backend cannot express is ErrInvalidTTL, never a " +
		"lock without expiry, never one that is gone at once."
)

func expiryChecks() []check {
	return []check{{
		name: "expiry/never-early",
		rule: ruleNotEarly,
		causes: "a ttl rounded down; a backend that counts whole seconds and starts somewhere within one (round up, and " +
			"add one); an expiry computed from the client's own clock.",
		run: checkNeverEarly,
	}, {
		name: "expiry/not-late",
		rule: ruleNotLate,
		causes: "a lock without an expiry (SETNX, and EXPIRE in a second step that did not come about, or 0, which is for " +
			"ever), milliseconds sent as seconds, or a Config.Granularity that says less than the backend needs.",
		run: checkNotLate,
	}, {
		name:   "expiry/rounds-up",
		rule:   ruleTTL,
		causes: "a fraction of a millisecond that is cut off: round up.",
		run:    checkRoundsUp,
	}, {
		name: "expiry/any-ttl",
		rule: ruleTTL,
		causes: "an overflow (ttl + a millisecond - 1 does, at the largest Duration; now + ttl may), a number that " +
			"the backend reads as something else (over 30 days is an absolute time for memcached, 0 is for ever), or a " +
			"backend's error that is passed on where it means ErrInvalidTTL.",
		run: checkAnyTTL,
	}, {
		name: "expiry/winner-owns",
		rule: ruleOutcomes + " " + ruleNotEarly,
		causes: "a loser that overwrites the winner's value (the classic GETSET), so that the winner can prove " +
			"nothing any more; a loser that is told it has won.",
		run: checkWinnerOwns,
	}}
}

// checkNeverEarly spreads its attempts over all phases of a second, because some backends count in seconds
// of their own.
func checkNeverEarly(e *env) {
	const phases = 8
	begun := time.Now()
	ttls := []time.Duration{20 * time.Millisecond, 900 * time.Millisecond, time.Second, 1500 * time.Millisecond, 2 * time.Second}
	e.each(phases*len(ttls), func(i int) {
		ttl, phase := ttls[i%len(ttls)], time.Duration(i/len(ttls))*time.Second/phases
		e.sleepUntil(begun.Add(phase))
		rounds := 1
		if ttl < 100*time.Millisecond && e.suite.config.Granularity < ttl {
			rounds = 5
		}
		for range rounds {
			held := e.clients()[i%3].takes(e.key(), e.token(), ttl, "the key is fresh")
			e.clients()[(i+1)%3].takesOver(held, e.token(), time.Millisecond)
		}
	})
}

func checkNotLate(e *env) {
	ttls := []time.Duration{time.Millisecond, 300 * time.Millisecond, 900 * time.Millisecond, time.Second}
	e.each(len(ttls), func(i int) {
		held := e.A.takes(e.key(), e.token(), ttls[i], "the key is fresh")
		// Not asked before it is due: that it expires is not because somebody looked.
		e.sleepUntil(held.end.Add(held.ttl + e.suite.config.Granularity))
		next := e.B.takesOver(held, e.token(), ttls[i])
		e.C.takesOver(next, e.token(), long)
	})
}

func checkRoundsUp(e *env) {
	const ttl = 2*time.Millisecond - time.Microsecond
	e.note("again and again: A acquires a key for %v, and B calls Acquire until it has it", ttl)
	e.until(60, time.Second, func() {
		key := e.key()
		held := e.A.must(e.A.quietly("Acquire", key, randomToken(), ttl), true, "the key is fresh")
		token := randomToken()
		for {
			r := e.B.quietly("Acquire", key, token, time.Second)
			if r.err != nil {
				e.B.must(r, false, "A holds the lock, or its time is up")
			}
			if r.ok && r.end.Before(held.until()) {
				e.journal.show(held)
				e.journal.show(r)
				e.fail(fmt.Sprintf("nobody else acquires it within %v", ttl),
					fmt.Sprintf("B had it %v after A's Acquire was started", r.end.Sub(held.start)))
			}
			if r.ok || r.start.After(held.until()) {
				e.B.quietly("Release", key, token, 0)
				return
			}
		}
	})
}

func checkAnyTTL(e *env) {
	ttls := []struct {
		ttl      time.Duration
		optional bool // may be ErrInvalidTTL
	}{
		{time.Millisecond, false}, {time.Millisecond + 1, false}, {1500 * time.Microsecond, false}, {20 * time.Millisecond, false},
		{999 * time.Millisecond, false}, {1500 * time.Millisecond, false}, {time.Minute + 1, false}, {24 * time.Hour, false},
		{30 * 24 * time.Hour, true}, {30*24*time.Hour + time.Second, true}, {31 * 24 * time.Hour, true},
		{math.MaxInt32 * time.Millisecond, true}, {math.MaxUint32 * time.Millisecond, true}, {math.MaxInt32 * time.Second, true},
		{70 * 365 * 24 * time.Hour, true}, {math.MaxUint32 * time.Second, true},
		{math.MaxInt64 / time.Millisecond * time.Millisecond, true}, {math.MaxInt64 - 1, true}, {math.MaxInt64, true},
	}
	e.each(len(ttls), func(i int) {
		ttl, optional := ttls[i].ttl, ttls[i].optional
		refused := func(r call) bool { return optional && !r.ok && errors.Is(r.err, locker.ErrInvalidTTL) }

		key, token := e.key(), e.token()
		held := e.A.acquire(key, token, ttl)
		if refused(held) {
			e.B.takes(key, e.token(), long, "A's Acquire said ErrInvalidTTL, and that has acquired nothing")
		} else {
			e.A.must(held, true, "the key is fresh, and what a backend cannot express is ErrInvalidTTL")
			e.heldFor(held, time.Second)
		}

		key = e.key()
		e.A.takes(key, token, long, "the key is fresh")
		held = e.A.extend(key, token, ttl)
		if held.err == nil && !held.ok && !held.end.Before(held.until()) {
			return // all of its new time has passed during the call
		}
		if refused(held) {
			e.B.blocked(key, "A holds the lock; the Extend that said ErrInvalidTTL has changed nothing")
			e.A.releases(key, token, "A holds the lock; the Extend that said ErrInvalidTTL has changed nothing")
		} else {
			e.A.must(held, true, "A holds the lock, and what a backend cannot express is ErrInvalidTTL")
			e.heldFor(held, time.Second)
		}
	})
}

// heldFor checks, a few times during d, that nobody else acquires what held took before its time is up.
func (e *env) heldFor(held call, d time.Duration) {
	token := e.token()
	for end := time.Now().Add(min(d, time.Until(held.until()))); ; e.sleep(d / 5) {
		r := e.B.acquire(held.key, token, time.Millisecond)
		switch {
		case r.err != nil:
			e.B.must(r, false, "A holds the lock")
		case r.ok && r.end.Before(held.until()):
			e.fail(fmt.Sprintf("nobody else acquires it for %v", held.ttl),
				fmt.Sprintf("B had it %v after A's %s was started", r.end.Sub(held.start), held.op))
		}
		if r.ok || r.start.After(end) {
			return
		}
	}
}

func checkWinnerOwns(e *env) {
	e.note("again and again: A acquires a key for a millisecond; then %d goroutines on A, B and C, each with a token of its "+
		"own, call Acquire until one has it; then all of them call Extend and Release", racers)
	var u unknowns
	e.lanes(120, 4*time.Second, func() {
		key, won, lost := e.expire(&u)
		why := fmt.Sprintf("its token alone took over a lock that had expired, with %d in the race", racers)
		for _, r := range lost {
			c := r.client
			if x := c.quietly("Extend", key, r.token, long); x.err != nil || x.ok {
				c.must(x, false, "its Acquire was refused")
			}
		}
		if len(won) != 1 {
			return // exclusion/one-winner-on-an-expired-key has an eye on that
		}
		c := won[0].client
		c.must(c.quietly("Extend", key, won[0].token, long), true, why)
		for _, r := range lost {
			r.client.must(r.client.quietly("Release", key, r.token, 0), false, "its Acquire was refused")
		}
		c.must(c.quietly("Release", key, won[0].token, 0), true, why)
	})
}
