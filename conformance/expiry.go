package conformance

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/harness"
)

func expiryChecks() []harness.Check {
	return []harness.Check{{
		Name:   "expiry/never-early",
		Rules:  []string{c3NeverEarly},
		Direct: true,
		Causes: "a ttl that is rounded down; a backend that counts whole seconds, of which the first has begun already (round " +
			"up, and add one); an expiry computed from the client's clock.",
		Run: checkNeverEarly,
	}, {
		Name:  "expiry/not-late",
		Rules: []string{c4Late},
		Causes: "a lock without an expiry (SETNX without its EXPIRE, or an expiry of 0, which means none); milliseconds sent " +
			"as seconds; a Config.Granularity below what the backend needs.",
		Run: checkNotLate,
	}, {
		Name:  "expiry/rounds-up",
		Rules: []string{c13AnyTTL},
		Causes: "a fraction of a millisecond, or of the second that the backend counts in, that is cut off: round up; a " +
			"minimum ttl that is correct, while every ttl above it is rounded down.",
		Run: checkRoundsUp,
	}, {
		Name:  "expiry/any-ttl",
		Rules: []string{c13AnyTTL},
		Causes: "an overflow (ttl + a millisecond - 1 overflows at the largest Duration; now + ttl may); a number that the " +
			"backend reads as something else (over 30 days is an absolute time for memcached, 0 is no expiry); seconds or " +
			"milliseconds cut to 32 bits; a backend's error that is passed on where it means ErrInvalidTTL.",
		Run: checkAnyTTL,
	}, {
		Name:  "expiry/takeover-ownership",
		Rules: []string{c2Outcomes, c3NeverEarly},
		Causes: "a loser that overwrites the winner's value (the classic GETSET), so that the winner no longer owns the lock; " +
			"a loser whose Acquire returns true.",
		Run: checkTakeoverOwnership,
	}}
}

// checkNeverEarly spreads its attempts over all phases of a second, since some backends count whole
// seconds.
func checkNeverEarly(e *harness.Env) {
	const phases = 8
	begun := time.Now()
	ttls := []time.Duration{20 * time.Millisecond, 900 * time.Millisecond, time.Second, 1500 * time.Millisecond, 2 * time.Second}
	var seen sightings
	e.Each(phases*len(ttls), func(i int) {
		ttl, phase := ttls[i%len(ttls)], time.Duration(i/len(ttls))*time.Second/phases
		e.SleepUntil(begun.Add(phase))
		rounds := 1
		if ttl < 100*time.Millisecond && e.Granularity() < ttl {
			rounds = 5
		}
		for range rounds {
			held := e.Clients()[i%3].Takes(e.Key(), e.Token(), ttl, "the key is fresh")
			seen.took(e.Clients()[(i+1)%3], held, ttl/2)
		}
	})
	seen.enough(e)
}

// sightings counts, by ttl, the locks that were seen to be held shortly before they expired. If the
// backend is slower than a ttl, there is none, and the check has shown nothing about that ttl.
type sightings struct {
	mu   sync.Mutex
	near map[time.Duration]int
}

// took makes c take over the lock that held acquired, and counts it if an attempt was refused
// within the last part of its ttl.
func (s *sightings) took(c *harness.Client, held harness.Call, last time.Duration) {
	e, token, near := c.Env, c.Env.Token(), 0
	window := held.Until().Add(-last)
	for time.Now().Before(held.Until()) {
		r := c.Polls(held.Key, token, time.Millisecond)
		if r.Err != nil || r.OK {
			c.Must(r, r.OK && !r.End.Before(held.Until()), fmt.Sprintf("A asked for %v at %s", held.TTL, e.At(held.Start)))
			break
		}
		if r.End.After(window) && r.End.Before(held.Until()) {
			near = 1
		}
		e.Sleep(harness.PollRest(r, held.Until()))
	}
	c.TakesOver(held, token, time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.near == nil {
		s.near = make(map[time.Duration]int)
	}
	s.near[held.TTL] += near
}

// enough tries again for some seconds if a ttl has no sighting, and then ends the check as
// inconclusive. A ttl as short as a few round trips is excused.
func (s *sightings) enough(e *harness.Env) {
	for ttl := range s.near {
		for end := time.Now().Add(10 * time.Second); s.near[ttl] == 0 && ttl > 20*e.Quickest() && time.Now().Before(end); {
			s.took(e.B, e.A.Takes(e.Key(), e.Token(), ttl, "the key is fresh"), ttl/2)
		}
		if s.near[ttl] == 0 && ttl > 20*e.Quickest() {
			e.Inconclusive("no attempt to acquire a lock of %v returned within the last part of that time", ttl)
		}
	}
}

func checkNotLate(e *harness.Env) {
	ttls := []time.Duration{time.Millisecond, 300 * time.Millisecond, 900 * time.Millisecond, time.Second}
	e.Each(len(ttls), func(i int) {
		held := e.A.Takes(e.Key(), e.Token(), ttls[i], "the key is fresh")
		// Do not poll before it is due: a lock must expire without being looked at.
		e.SleepUntil(held.End.Add(held.TTL + e.Granularity()))
		next := e.B.TakesOver(held, e.Token(), ttls[i])
		e.C.TakesOver(next, e.Token(), harness.Long)
	})
}

// checkRoundsUp asks for slightly less than a multiple of the units that a backend may count in,
// from milliseconds to seconds, and for more than its minimum ttl.
func checkRoundsUp(e *harness.Env) {
	e.Each(2, func(i int) {
		if i == 0 {
			roundsUpMilliseconds(e)
			return
		}
		var seen sightings
		// Some would become shorter by rounding to the nearest tenth or second.
		ttls := []time.Duration{20*time.Millisecond - time.Microsecond, 114 * time.Millisecond, 200*time.Millisecond - time.Microsecond,
			1040 * time.Millisecond, 1400 * time.Millisecond, 2490 * time.Millisecond,
			2*time.Second - time.Millisecond, 2900 * time.Millisecond, 4*time.Second - time.Millisecond, 5900 * time.Millisecond}
		const times = 4
		e.Each(times*len(ttls), func(i int) {
			ttl := ttls[i/times]
			last := ttl / 3
			if ttl > time.Second {
				last = 500 * time.Millisecond
			}
			held := e.A.Takes(e.Key(), e.Token(), ttl, "the key is fresh")
			if i%times > 0 {
				ops := []string{"Extend", "Acquire", "Wait"}
				op := ops[i%times-1]
				if op == "Wait" && !e.Has(harness.NeedsWait) {
					op = "Extend"
				}
				next := e.A.Do(op, held.Key, held.Token, ttl)
				if next.Err == nil && !next.OK && !next.End.Before(held.Until()) {
					return // it had expired; others count
				}
				held = e.A.Must(next, true, "A holds the lock")
			}
			seen.took(e.B, held, last)
		})
		seen.enough(e)
	})
}

// roundsUpMilliseconds can see a fraction of a millisecond if a request takes less than that.
func roundsUpMilliseconds(e *harness.Env) {
	ttls := []time.Duration{2*time.Millisecond - time.Microsecond, 1400 * time.Microsecond, 3*time.Millisecond + 450*time.Microsecond}
	e.Note("repeatedly, A acquires a key for %v, and B calls Acquire until it has acquired it", ttls)
	rounds, held, quickest := 0, 0, time.Second // held: an attempt was refused in the last fraction of a millisecond
	round := func() {
		ttl := ttls[rounds%len(ttls)]
		rounds++
		key := e.Key()
		a := e.A.Must(e.A.Quietly("Acquire", key, harness.RandomToken(), ttl), true, "the key is fresh")
		token, last := harness.RandomToken(), a.End.Add(ttl.Truncate(time.Millisecond))
		for {
			r := e.B.Quietly("Acquire", key, token, time.Second)
			if r.Err != nil {
				e.B.Must(r, false, "A holds the lock, or it has expired")
			}
			if r.OK && r.End.Before(a.Until()) {
				e.Show(a)
				e.Show(r)
				e.Fail(fmt.Sprintf("no other token acquires it within %v", ttl),
					fmt.Sprintf("B had it %v after A's Acquire started", r.End.Sub(a.Start)))
			}
			if quickest = min(quickest, r.End.Sub(r.Start)); !r.OK && r.Start.After(last) && r.End.Before(a.Until()) {
				held++
			}
			if r.OK || r.Start.After(a.Until()) {
				e.B.Quietly("Release", key, token, 0)
				return
			}
		}
	}
	e.Until(90, 1500*time.Millisecond, round)
	const enough = 3
	isQuick := quickest < 200*time.Microsecond
	for end := time.Now().Add(5 * time.Second); isQuick && held < enough && time.Now().Before(end); {
		round()
	}
	if isQuick && held < enough {
		e.Inconclusive("of %s, only %d had an attempt that was refused in the last fraction of a millisecond of the lock",
			harness.Plural(rounds, "lock"), held)
	}
}

func checkAnyTTL(e *harness.Env) {
	ttls := []struct {
		ttl      time.Duration
		optional bool // ErrInvalidTTL is acceptable
	}{
		{time.Millisecond, false}, {time.Millisecond + 1, false}, {1500 * time.Microsecond, false}, {20 * time.Millisecond, false},
		{999 * time.Millisecond, false}, {1500 * time.Millisecond, false}, {time.Minute + 1, false}, {24 * time.Hour, false},
		{30 * 24 * time.Hour, true}, {30*24*time.Hour + time.Second, true}, {31 * 24 * time.Hour, true},
		{math.MaxInt32 * time.Millisecond, true}, {math.MaxUint32 * time.Millisecond, true}, {math.MaxInt32 * time.Second, true},
		{70 * 365 * 24 * time.Hour, true}, {math.MaxUint32 * time.Second, true},
		// If only the low 31 or 32 bits of these are kept, little is left.
		{1<<31*time.Microsecond + 50*time.Millisecond, false}, {1<<32*time.Microsecond + 50*time.Millisecond, false},
		{1<<31*time.Millisecond + 50*time.Millisecond, true}, {1<<32*time.Millisecond + 50*time.Millisecond, true},
		{1<<31*time.Second + 50*time.Millisecond, true}, {1<<32*time.Second + 50*time.Millisecond, true},
		{math.MaxInt64 / time.Millisecond * time.Millisecond, true}, {math.MaxInt64 - 1, true}, {math.MaxInt64, true},
	}
	e.Each(len(ttls), func(i int) {
		ttl, optional := ttls[i].ttl, ttls[i].optional
		refused := func(r harness.Call) bool { return optional && !r.OK && errors.Is(r.Err, locker.ErrInvalidTTL) }

		key, token := e.Key(), e.Token()
		held := e.A.Acquire(key, token, ttl)
		if refused(held) {
			e.B.Takes(key, e.Token(), harness.Long, "A's Acquire returned ErrInvalidTTL, so it has acquired nothing")
		} else {
			e.A.Must(held, true, "the key is fresh; for a ttl that the backend cannot express the error is ErrInvalidTTL")
			heldFor(e, held, 2500*time.Millisecond)
		}

		for try := 0; try < 5; try++ {
			key = e.Key()
			e.A.Takes(key, token, harness.Long, "the key is fresh")
			held = e.A.Extend(key, token, ttl)
			if held.Err != nil || held.OK || held.End.Before(held.Until()) {
				break // otherwise the new ttl has passed during the call
			}
		}
		if held.Err == nil && !held.OK && !held.End.Before(held.Until()) {
			e.Inconclusive("each of A's Extends by %v took longer than that", ttl)
		}
		if refused(held) {
			e.B.Blocked(key, "A holds the lock; the Extend that returned ErrInvalidTTL has changed nothing")
			e.A.Releases(key, token, "A holds the lock; the Extend that returned ErrInvalidTTL has changed nothing")
		} else {
			e.A.Must(held, true, "A holds the lock; for a ttl that the backend cannot express the error is ErrInvalidTTL")
			heldFor(e, held, 2500*time.Millisecond)
		}
	})
}

// heldFor checks a few times during d that no other token acquires the lock that held took.
func heldFor(e *harness.Env, held harness.Call, d time.Duration) {
	token := e.Token()
	for end := time.Now().Add(min(d, time.Until(held.Until()))); ; e.Sleep(d / 5) {
		r := e.B.Polls(held.Key, token, time.Millisecond)
		switch {
		case r.Err != nil:
			e.B.Must(r, false, "A holds the lock")
		case r.OK && r.End.Before(held.Until()):
			e.Fail(fmt.Sprintf("no other token acquires it within %v", held.TTL),
				fmt.Sprintf("B had it %v after A's %s started", r.End.Sub(held.Start), held.Op))
		}
		if r.OK || r.Start.After(end) {
			return
		}
	}
}

func checkTakeoverOwnership(e *harness.Env) {
	e.Note("repeatedly, A acquires a key for a millisecond; then %d goroutines on A, B and C, each with its own token, "+
		"call Acquire until one has acquired it; then all of them call Extend and Release", racers)
	var u unknowns
	var single atomic.Int64
	e.Lanes(120, 4*time.Second, func() {
		key, won, lost := raceForExpired(e, &u)
		why := fmt.Sprintf("only its token took over the expired lock, of %d in the race", racers)
		for _, r := range lost {
			c := r.Client
			if x := c.Quietly("Extend", key, r.Token, harness.Long); x.Err != nil || x.OK {
				c.Must(x, false, "its Acquire was refused")
			}
		}
		if len(won) != 1 {
			return // exclusion/race-for-expired-key reports that
		}
		single.Add(1)
		c := won[0].Client
		c.Must(c.Quietly("Extend", key, won[0].Token, harness.Long), true, why)
		for _, r := range lost {
			r.Client.Must(r.Client.Quietly("Release", key, r.Token, 0), false, "its Acquire was refused")
		}
		c.Must(c.Quietly("Release", key, won[0].Token, 0), true, why)
	})
	if single.Load() == 0 {
		e.Inconclusive("no race had exactly one winner of %d", racers)
	}
}
