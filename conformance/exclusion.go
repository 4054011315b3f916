package conformance

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golockers/locker/conformance/internal/harness"
)

// exclusionChecks are about which token gets a lock.
func exclusionChecks() []harness.Check {
	return []harness.Check{{
		Name:   "exclusion/one-holder",
		Rules:  []string{c3NeverEarly},
		Direct: true,
		Causes: "setting the key whether or not it exists (SET without NX); looking first and setting then (EXISTS, SET); a " +
			"Locker that keeps its locks in this process; a release that frees nothing.",
		Run: checkOneHolder,
	}, {
		Name:   "exclusion/owner-is-token",
		Rules:  []string{c2Outcomes, c5SameToken},
		Causes: "comparing the owner by client, connection, host name or process id, or not at all.",
		Run:    checkOwnerIsToken,
	}, {
		Name:   "exclusion/one-attempt",
		Rules:  []string{c1OneAttempt},
		Causes: "a retry loop inside Acquire. Waiting is left to the caller: locker.Lock does it.",
		Run:    checkOneAttempt,
	}, {
		Name:   "exclusion/race-for-free-key",
		Rules:  []string{c3NeverEarly, c2Outcomes},
		Causes: "two steps where one is needed: looking whether the key is free, then taking it.",
		Run:    checkRaceForFreeKey,
	}, {
		Name:  "exclusion/race-for-expired-key",
		Rules: []string{c3NeverEarly, c2Outcomes, c1OwnSteps},
		Causes: "a takeover of an expired key in two steps: deleting it and then setting it lets two in, and so does an " +
			"unguarded GETSET.",
		Run: checkRaceForExpiredKey,
	}, {
		Name:   "exclusion/no-lost-update",
		Rules:  []string{c3NeverEarly},
		Causes: "any hole in mutual exclusion: two workers held the lock at the same time and one undid the other's work.",
		Run:    checkNoLostUpdate,
	}, {
		Name:  "exclusion/contender-no-effect",
		Rules: []string{c3NeverEarly, c4Late, aAcquire},
		Causes: "an expiry that is set, in a separate step, whether or not the acquisition succeeded (SETNX, then EXPIRE by " +
			"losers as well); a value that a loser overwrites (GETSET); if expiry/never-early fails as well, a ttl that is " +
			"rounded down.",
		Run: checkContenderNoEffect,
	}}
}

func checkOneHolder(e *harness.Env) {
	key, t1, t2 := e.Key(), e.Token(), e.Token()
	e.A.Takes(key, t1, harness.Long, "the key is fresh")
	e.B.Blocked(key, "A holds the lock")
	e.C.Blocked(key, "A holds the lock")
	e.A.Extends(key, t1, harness.Long, "A holds the lock; two refused attempts of others change nothing")
	e.B.Blocked(key, "A holds the lock, extended")
	e.A.Releases(key, t1, "A holds the lock")
	e.B.Takes(key, t2, harness.Long, "A has released it")
	e.A.Blocked(key, "B holds the lock")
	e.A.BlockedAs(key, t1, "B holds the lock; A's token no longer does")
	e.B.Releases(key, t2, "B holds the lock")
	e.C.Takes(key, e.Token(), harness.Long, "B has released it")
}

func checkOwnerIsToken(e *harness.Env) {
	key, t1, t2 := e.Key(), e.Token(), e.Token()
	e.A.Takes(key, t1, harness.Long, "the key is fresh")
	e.A.BlockedAs(key, t2, "t1 holds the lock; t2 is another token, although of the same client")
	e.A.CannotExtend(key, t2, harness.Long, "t1 holds the lock")
	e.A.CannotRelease(key, t2, "t1 holds the lock")
	e.A.Extends(key, t1, harness.Long, "t1 holds the lock")
	e.B.Blocked(key, "t1 holds the lock")
	e.A.Releases(key, t1, "t1 holds the lock")
}

func checkOneAttempt(e *harness.Env) {
	key := e.Key()
	e.A.Takes(key, e.Token(), harness.Long, "the key is fresh")
	// The quickest of several is compared with the quickest of as many that need not wait, up to
	// three times: a busy machine does not slow down all of them.
	quickest := func(fn func() harness.Call) time.Duration {
		best := time.Duration(1<<63 - 1)
		for range 5 {
			r := fn()
			best = min(best, r.End.Sub(r.Start))
		}
		return best
	}
	var refused, limit time.Duration
	for range 3 {
		idle := quickest(func() harness.Call { return e.B.Takes(e.Key(), e.Token(), harness.Long, "the key is fresh") })
		refused = quickest(func() harness.Call { return e.B.Blocked(key, "A holds the lock") })
		if limit = 20*idle + e.Allow(harness.Refusal); refused <= limit {
			return
		}
	}
	e.FailTime(harness.Refusal, refused-limit+e.Allow(harness.Refusal), e.Check.Causes, key, fmt.Sprintf("a refused Acquire returns about as soon as a successful one: within %v", limit),
		fmt.Sprintf("the quickest of five took %v", refused))
}

// racers is how many goroutines, on three clients, compete for a key.
const racers = 9

// unknowns counts errors under contention. A Locker may return some when the value keeps changing
// under it, and on a busy machine many, but not nearly always.
type unknowns struct{ calls, errors atomic.Int64 }

func (u *unknowns) saw(e *harness.Env, calls ...harness.Call) {
	for _, r := range calls {
		n := u.calls.Add(1)
		if r.Err == nil {
			continue
		}
		if errs := u.errors.Add(1); errs > 50 && errs*4 > 3*n {
			e.Fail("under contention, mostly true or false",
				fmt.Sprintf("%d errors in %d calls, the last one %s.%s = %s", errs, n, r.Client.Name, r.Op, r.Result()))
		}
	}
}

func checkRaceForFreeKey(e *harness.Env) {
	e.Note("repeatedly, %d goroutines on A, B and C, each with its own token, call Acquire for one free key at the "+
		"same time; then the winner calls Release", racers)
	var u unknowns
	e.Until(200, 3*time.Second, func() {
		key := e.Key()
		calls := e.Race(racers, func(i int) harness.Call {
			return e.Clients()[i%3].Quietly("Acquire", key, harness.RandomToken(), harness.Long)
		})
		u.saw(e, calls...)
		oneWinner(e, key, calls)
	})
}

// oneWinner checks that one of calls acquired key, and releases it.
func oneWinner(e *harness.Env, key string, calls []harness.Call) {
	var winners, errs []harness.Call
	for _, r := range calls {
		switch {
		case r.Err != nil:
			errs = append(errs, r)
		case r.OK:
			winners = append(winners, r)
		}
	}
	switch {
	case len(winners) > 1:
		e.Fail("one of them acquires it", fmt.Sprintf("%d acquired it: %s", len(winners), describe(winners)))
	case len(winners) == 0 && len(errs) == 0:
		e.Fail("one of them acquires it: false means that another token holds the lock", "all were refused")
	}
	for _, r := range winners {
		r.Client.Must(r.Client.Quietly("Release", key, r.Token, 0), true, "it has acquired the lock")
	}
	for _, r := range errs {
		r.Client.Quietly("Release", key, r.Token, 0)
	}
}

func describe(calls []harness.Call) string {
	var b []byte
	for i, r := range calls {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = fmt.Appendf(b, "%s from %s to %s", r.Client.Name, r.Client.Env.At(r.Start), r.Client.Env.At(r.End))
	}
	return string(b)
}

// raceForExpired lets a lock expire while racers compete for it, and returns the calls that
// acquired it and those that were refused after that.
func raceForExpired(e *harness.Env, u *unknowns) (key string, won, lost []harness.Call) {
	key = e.Key()
	held := e.A.Must(e.A.Quietly("Acquire", key, harness.RandomToken(), time.Millisecond), true, "the key is fresh")
	latest := held.End.Add(held.TTL)
	var mu sync.Mutex
	var over atomic.Bool
	e.Each(racers, func(i int) {
		c, token := e.Clients()[i%3], harness.RandomToken()
		e.SleepUntil(held.Until().Add(-500 * time.Microsecond))
		for ; ; e.Near(held.Until()) {
			r := c.Quietly("Acquire", key, token, harness.Long)
			u.saw(e, r)
			if r.OK || over.Load() || r.Err != nil && time.Since(latest) > e.Slack() {
				over.Store(true)
				mu.Lock()
				defer mu.Unlock()
				if r.OK {
					won = append(won, r)
				} else if r.Err == nil {
					lost = append(lost, r)
				}
				return
			}
			if late := r.Start.Sub(latest); late > e.Slack() {
				e.Show(held)
				e.Overdue(harness.Event, late-e.Granularity(), e.Check.Causes, "", fmt.Sprintf("the key is free at %s, even on a slow machine",
					e.At(latest.Add(e.Slack()))), fmt.Sprintf("%s was still refused at %s", c.Name, e.At(r.Start)))
			}
		}
	})
	return key, won, lost
}

func checkRaceForExpiredKey(e *harness.Env) {
	e.Note("repeatedly, A acquires a key for a millisecond; then %d goroutines on A, B and C, each with its own token, "+
		"call Acquire until one has acquired it", racers)
	var u unknowns
	e.Lanes(160, 4*time.Second, func() {
		key, won, _ := raceForExpired(e, &u)
		if len(won) > 1 {
			e.Fail("one of them acquires it, for ten minutes",
				fmt.Sprintf("%d acquired it: %s", len(won), describe(won)))
		}
		for _, r := range won {
			r.Client.Quietly("Release", key, r.Token, 0)
		}
	})
}

func checkNoLostUpdate(e *harness.Env) {
	const keys, perClient = 3, 4
	e.Note("%d goroutines on A, B and C add to %d counters, each protected by its own lock", 3*perClient, keys)
	type counter struct {
		key   string
		value atomic.Int64 // read and written in two steps, which the lock must make one
		added atomic.Int64
	}
	var counters [keys]counter
	for i := range counters {
		counters[i].key = e.Key()
	}
	var u unknowns
	deadline := time.Now().Add(2500 * time.Millisecond)
	e.Each(3*perClient, func(i int) {
		c := e.Clients()[i%3]
		for n := i; n < i+40 && (n == i || time.Now().Before(deadline)); {
			k, token := &counters[n%keys], harness.RandomToken()
			r := c.Quietly("Acquire", k.key, token, harness.Long)
			u.saw(e, r)
			if !r.OK {
				if r.Err != nil {
					c.Quietly("Release", k.key, token, 0)
				}
				if time.Now().After(deadline.Add(e.Patience())) {
					return
				}
				e.Sleep(rand.N(4 * time.Millisecond))
				continue
			}
			v := k.value.Load()
			runtime.Gosched()
			k.value.Store(v + 1)
			k.added.Add(1)
			c.Must(c.Quietly("Release", k.key, token, 0), true, "it holds the lock")
			n++
		}
	})
	var total int64
	for i := range counters {
		value, added := counters[i].value.Load(), counters[i].added.Load()
		if value != added {
			e.Fail(fmt.Sprintf("counter %d is %d after %d additions", i+1, added, added),
				fmt.Sprintf("it is %d", value))
		}
		total += added
	}
	if total == 0 {
		e.Fail("they acquire the locks in turn", "no goroutine has acquired one")
	}
}

func checkContenderNoEffect(e *harness.Env) {
	lasting, t2 := e.Key(), e.Token()
	e.A.Takes(lasting, t2, harness.Long, "the key is fresh")
	tries := []time.Duration{time.Millisecond, time.Hour, time.Second}
	thief := e.Token()
	var held harness.Call
	e.InTime("B is refused a lock of some seconds repeatedly", func(scale time.Duration) (inTime bool) {
		brief, ttl := e.Key(), scale*1500*time.Millisecond
		held = e.A.Takes(brief, e.Token(), ttl, "the key is fresh")
		inTime = true
		e.Until(100, time.Second, func() {
			for _, other := range tries {
				e.B.Must(e.B.Acquire(lasting, thief, other), false, "A holds the lock for ten minutes")
				if r := e.B.Acquire(brief, thief, other); inTime && (r.OK || r.Err != nil) {
					e.B.Must(r, r.OK && !r.End.Before(held.Until()), fmt.Sprintf("A holds the lock for %v", ttl))
					e.B.Release(brief, thief)
					inTime = false
				}
			}
		})
		return inTime
	})
	e.Sleep(5 * time.Millisecond)
	e.B.BlockedAs(lasting, thief, "A holds the lock for ten minutes, whatever ttl others asked for")
	e.A.Extends(lasting, t2, harness.Long, "A holds the lock")
	e.A.Releases(lasting, t2, "A holds the lock")
	e.C.TakesOver(held, e.Token(), harness.Long)
}
