package conformance

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
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
		causes: "a lock without an expiry (SETNX, and EXPIRE in a second step that did not come about, or 0, which is " +
			"forever), milliseconds sent as seconds, or a Config.Granularity below what the backend needs.",
		run: checkNotLate,
	}, {
		name: "expiry/rounds-up",
		rule: ruleTTL,
		causes: "a fraction of a millisecond, or of the second that the backend counts in, that is cut off: round up; a least " +
			"ttl that is put in place of what is below it, while all above it is rounded down.",
		run: checkRoundsUp,
	}, {
		name: "expiry/any-ttl",
		rule: ruleTTL,
		causes: "an overflow (ttl + a millisecond - 1 does, at the largest Duration; now + ttl may), a number that " +
			"the backend reads as something else (over 30 days is an absolute time for memcached, 0 is forever), a number of " +
			"seconds or milliseconds cut to 32 bits, or a " +
			"backend's error that is passed on where it means ErrInvalidTTL.",
		run: checkAnyTTL,
	}, {
		name: "expiry/winner-owns",
		rule: ruleOutcomes + " " + ruleNotEarly,
		causes: "a loser that overwrites the winner's value (the classic GETSET), so that the winner can no longer prove " +
			"anything; a loser that is told it has won.",
		run: checkWinnerOwns,
	}}
}

// checkNeverEarly spreads its attempts over all phases of a second, because some backends count in seconds
// of their own.
func checkNeverEarly(e *env) {
	const phases = 8
	begun := time.Now()
	ttls := []time.Duration{20 * time.Millisecond, 900 * time.Millisecond, time.Second, 1500 * time.Millisecond, 2 * time.Second}
	var seen sightings
	e.each(phases*len(ttls), func(i int) {
		ttl, phase := ttls[i%len(ttls)], time.Duration(i/len(ttls))*time.Second/phases
		e.sleepUntil(begun.Add(phase))
		rounds := 1
		if ttl < 100*time.Millisecond && e.granularity() < ttl {
			rounds = 5
		}
		for range rounds {
			held := e.clients()[i%3].takes(e.key(), e.token(), ttl, "the key is fresh")
			seen.took(e.clients()[(i+1)%3], held, ttl/2)
		}
	})
	seen.enough(e)
}

// sightings counts, by ttl, the locks that were seen to be held near their end: a backend that is slower than
// a ttl shows nothing about it.
type sightings struct {
	mu   sync.Mutex
	near map[time.Duration]int
}

// took lets c take over the lock that held took, and takes note of an attempt that was refused in the last
// part of its ttl.
func (s *sightings) took(c *client, held call, last time.Duration) {
	e, token, near := c.e, c.e.token(), 0
	window := held.until().Add(-last)
	for time.Now().Before(held.until()) {
		r := c.acquire(held.key, token, time.Millisecond)
		if r.err != nil || r.ok {
			c.must(r, r.ok && !r.end.Before(held.until()), fmt.Sprintf("A asked for %v at %s", held.ttl, e.at(held.start)))
			break
		}
		if r.end.After(window) && r.end.Before(held.until()) {
			near = 1
		}
		e.sleep(pollRest(r, held.until()))
	}
	c.takesOver(held, token, time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.near == nil {
		s.near = make(map[time.Duration]int)
	}
	s.near[held.ttl] += near
}

// enough looks again where it has seen nothing of a ttl, for some seconds, and then ends the check. A backend that
// is far away shows nothing about times as short as a few of its answers: those need not be seen.
func (s *sightings) enough(e *env) {
	for ttl := range s.near {
		for end := time.Now().Add(10 * time.Second); s.near[ttl] == 0 && ttl > 20*e.quickest() && time.Now().Before(end); {
			s.took(e.B, e.A.takes(e.key(), e.token(), ttl, "the key is fresh"), ttl/2)
		}
		if s.near[ttl] == 0 && ttl > 20*e.quickest() {
			e.inconclusive("no attempt at a lock of %v came back in the last part of that time", ttl)
		}
	}
}

func checkNotLate(e *env) {
	ttls := []time.Duration{time.Millisecond, 300 * time.Millisecond, 900 * time.Millisecond, time.Second}
	e.each(len(ttls), func(i int) {
		held := e.A.takes(e.key(), e.token(), ttls[i], "the key is fresh")
		// Not asked before it is due: that it expires is not because somebody looked.
		e.sleepUntil(held.end.Add(held.ttl + e.granularity()))
		next := e.B.takesOver(held, e.token(), ttls[i])
		e.C.takesOver(next, e.token(), long)
	})
}

// checkRoundsUp asks for little less than what a backend may count in, from milliseconds to seconds, and for
// more than the least that it may keep a lock: both are rounded up, and so is what is between.
func checkRoundsUp(e *env) {
	e.each(2, func(i int) {
		if i == 0 {
			roundsUpMilliseconds(e)
			return
		}
		var seen sightings
		ttls := []time.Duration{20*time.Millisecond - time.Microsecond, 200*time.Millisecond - time.Microsecond,
			2*time.Second - time.Millisecond, 2900 * time.Millisecond, 4*time.Second - time.Millisecond, 5900 * time.Millisecond}
		const times = 4
		e.each(times*len(ttls), func(i int) {
			ttl := ttls[i/times]
			last := ttl / 3
			if ttl > time.Second {
				last = 500 * time.Millisecond
			}
			held := e.A.takes(e.key(), e.token(), ttl, "the key is fresh")
			if i%2 == 1 {
				next := e.A.extend(held.key, held.token, ttl)
				if next.err == nil && !next.ok && !next.end.Before(held.until()) {
					return // its time was up; seen counts the others
				}
				held = e.A.must(next, true, "A holds the lock")
			}
			seen.took(e.B, held, last)
		})
		seen.enough(e)
	})
}

// roundsUpMilliseconds sees a fraction of a millisecond where a request takes less than that.
func roundsUpMilliseconds(e *env) {
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
				e.show(held)
				e.show(r)
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
		// Of these little is left when all but the low 31 or 32 bits are dropped.
		{1<<31*time.Microsecond + 50*time.Millisecond, false}, {1<<32*time.Microsecond + 50*time.Millisecond, false},
		{1<<31*time.Millisecond + 50*time.Millisecond, true}, {1<<32*time.Millisecond + 50*time.Millisecond, true},
		{1<<31*time.Second + 50*time.Millisecond, true}, {1<<32*time.Second + 50*time.Millisecond, true},
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
			heldFor(e, held, 2500*time.Millisecond)
		}

		for try := 0; try < 5; try++ {
			key = e.key()
			e.A.takes(key, token, long, "the key is fresh")
			held = e.A.extend(key, token, ttl)
			if held.err != nil || held.ok || held.end.Before(held.until()) {
				break // otherwise all of its new time has passed during the call
			}
		}
		if held.err == nil && !held.ok && !held.end.Before(held.until()) {
			e.inconclusive("A's Extend by %v took longer than that, each time", ttl)
		}
		if refused(held) {
			e.B.blocked(key, "A holds the lock; the Extend that said ErrInvalidTTL has changed nothing")
			e.A.releases(key, token, "A holds the lock; the Extend that said ErrInvalidTTL has changed nothing")
		} else {
			e.A.must(held, true, "A holds the lock, and what a backend cannot express is ErrInvalidTTL")
			heldFor(e, held, 2500*time.Millisecond)
		}
	})
}

// heldFor checks, a few times during d, that nobody else acquires what held took before its time is up.
func heldFor(e *env, held call, d time.Duration) {
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
	var single atomic.Int64
	e.lanes(120, 4*time.Second, func() {
		key, won, lost := raceForExpired(e, &u)
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
		single.Add(1)
		c := won[0].client
		c.must(c.quietly("Extend", key, won[0].token, long), true, why)
		for _, r := range lost {
			r.client.must(r.client.quietly("Release", key, r.token, 0), false, "its Acquire was refused")
		}
		c.must(c.quietly("Release", key, won[0].token, 0), true, why)
	})
	if single.Load() == 0 {
		e.inconclusive("there was no race that one of the %d won", racers)
	}
}
