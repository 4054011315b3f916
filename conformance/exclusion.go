package conformance

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	ruleExclusive = "C3 Never early: after Acquire returned true, no other token acquires before ttl has passed " +
		"since that call started, unless this token releases."
	ruleOutcomes = "C2 Three outcomes: true is done, false is certainly not (another token holds the lock), " +
		"an error is unknown."
	ruleOneAttempt = "C1 One attempt: no method waits for a holder, sleeps, or retries on contention."
)

// exclusionChecks are about who gets a lock. Those about names and tokens are in names.go.
func exclusionChecks() []check {
	return append(nameChecks(), []check{{
		name: "exclusion/one-holder",
		rule: ruleExclusive,
		causes: "setting the key whether or not it is there (SET without NX), looking first and setting then " +
			"(EXISTS, SET), a Locker that keeps its locks in this process, a release that does not free.",
		run: checkOneHolder,
	}, {
		name:   "exclusion/owner-is-the-token",
		rule:   "C2, C5: a lock belongs to the token that acquired it, not to a client, connection, host or process.",
		causes: "comparing the owner by client, connection, host name or process id, or not at all.",
		run:    checkOwnerIsToken,
	}, {
		name:   "exclusion/one-attempt",
		rule:   ruleOneAttempt,
		causes: "a retry loop inside Acquire. Waiting is the caller's: locker.Lock does it.",
		run:    checkOneAttempt,
	}, {
		name:   "exclusion/one-winner-on-a-free-key",
		rule:   ruleExclusive + " " + ruleOutcomes,
		causes: "two steps where it must be one: looking whether the key is free, then taking it.",
		run:    checkWinnerFree,
	}, {
		name: "exclusion/one-winner-on-an-expired-key",
		rule: ruleExclusive + " " + ruleOutcomes,
		causes: "a take-over of an expired key in two steps: deleting it and then setting it lets two in, and so " +
			"does an unguarded GETSET.",
		run: checkWinnerExpired,
	}, {
		name:   "exclusion/no-lost-update",
		rule:   ruleExclusive,
		causes: "any hole in mutual exclusion: two workers were inside the lock together and one undid the other's work.",
		run:    checkNoLostUpdate,
	}, {
		name: "exclusion/refused-attempts-cost-nothing",
		rule: "C3, C4, C6: only the token that holds the lock moves its expiry; an attempt that is refused " +
			"changes nothing.",
		causes: "an expiry that is set, in a step of its own, whether or not the acquisition came about (SETNX, then " +
			"EXPIRE for losers too), or a value that a loser overwrites (GETSET); where expiry/never-early fails, too, a " +
			"ttl rounded down.",
		run: checkRefusedCostNothing,
	}}...)
}

func checkOneHolder(e *env) {
	key, t1, t2 := e.key(), e.token(), e.token()
	e.A.takes(key, t1, long, "the key is fresh")
	e.B.blocked(key, "A holds the lock")
	e.C.blocked(key, "A holds the lock")
	e.A.extends(key, t1, long, "two refused attempts of others have not changed that A holds the lock")
	e.B.blocked(key, "A holds the lock, extended")
	e.A.releases(key, t1, "A holds the lock")
	e.B.takes(key, t2, long, "A has released it")
	e.A.blocked(key, "B holds the lock")
	e.A.blockedAs(key, t1, "B holds the lock, and A's token did once but does no more")
	e.B.releases(key, t2, "B holds the lock")
	e.C.takes(key, e.token(), long, "B has released it")
}

func checkOwnerIsToken(e *env) {
	key, t1, t2 := e.key(), e.token(), e.token()
	e.A.takes(key, t1, long, "the key is fresh")
	e.A.blockedAs(key, t2, "t1 holds the lock; that both are tokens of A does not matter")
	e.A.cannotExtend(key, t2, long, "t1 holds the lock")
	e.A.cannotRelease(key, t2, "t1 holds the lock")
	e.A.extends(key, t1, long, "t1 holds the lock")
	e.B.blocked(key, "t1 holds the lock")
	e.A.releases(key, t1, "t1 holds the lock")
}

func checkOneAttempt(e *env) {
	key := e.key()
	e.A.takes(key, e.token(), long, "the key is fresh")
	// The quickest of several, against the quickest of as many that need not wait, and once more if need be:
	// a busy machine does not slow down all of them.
	quickest := func(fn func() call) time.Duration {
		best := time.Duration(1<<63 - 1)
		for range 5 {
			r := fn()
			best = min(best, r.end.Sub(r.start))
		}
		return best
	}
	var refused, limit time.Duration
	for range 3 {
		idle := quickest(func() call { return e.B.takes(e.key(), e.token(), long, "the key is fresh") })
		refused = quickest(func() call { return e.B.blocked(key, "A holds the lock") })
		if limit = 20*idle + 40*time.Millisecond; refused <= limit {
			return
		}
	}
	e.fail(fmt.Sprintf("an attempt at a held lock comes back about as soon as one at a free lock: within %v", limit),
		fmt.Sprintf("the quickest of five took %v", refused))
}

// racers is how many goroutines, on three clients, compete for one key.
const racers = 9

// unknowns counts operations of unknown outcome where many compete. A Locker may report some, when the
// value changed under it again and again, on a busy machine many; but not nearly always.
type unknowns struct{ calls, errors atomic.Int64 }

func (u *unknowns) saw(e *env, calls ...call) {
	for _, r := range calls {
		n := u.calls.Add(1)
		if r.err == nil {
			continue
		}
		if errs := u.errors.Add(1); errs > 50 && errs*4 > 3*n {
			e.fail("under contention true or false, and an error not nearly always",
				fmt.Sprintf("%d errors in %d calls, the last one %s.%s = %s", errs, n, r.client.name, r.op, r.result()))
		}
	}
}

func checkWinnerFree(e *env) {
	e.note("again and again: %d goroutines on A, B and C, each with a token of its own, call Acquire on one free key at the "+
		"same time; then the winner calls Release", racers)
	var u unknowns
	e.until(200, 3*time.Second, func() {
		key := e.key()
		calls := e.race(racers, func(i int) call {
			return e.clients()[i%3].quietly("Acquire", key, randomToken(), long)
		})
		u.saw(e, calls...)
		oneWinner(e, key, calls)
	})
}

// oneWinner checks that one of calls acquired key, and releases it.
func oneWinner(e *env, key string, calls []call) {
	var winners, errs []call
	for _, r := range calls {
		switch {
		case r.err != nil:
			errs = append(errs, r)
		case r.ok:
			winners = append(winners, r)
		}
	}
	switch {
	case len(winners) > 1:
		e.fail("one of them has it", fmt.Sprintf("%d have it: %s", len(winners), describe(winners)))
	case len(winners) == 0 && len(errs) == 0:
		e.fail("one of them has it: false says that another token holds the lock", "all were refused")
	}
	for _, r := range winners {
		r.client.must(r.client.quietly("Release", key, r.token, 0), true, "it has won the race for the lock")
	}
	for _, r := range errs {
		r.client.quietly("Release", key, r.token, 0)
	}
}

func describe(calls []call) string {
	var b []byte
	for i, r := range calls {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = fmt.Appendf(b, "%s from %s to %s", r.client.name, r.client.e.at(r.start), r.client.e.at(r.end))
	}
	return string(b)
}

// expire lets a lock of a fresh key expire while racers compete for it, and returns the calls that won and
// those that were refused after that.
func raceForExpired(e *env, u *unknowns) (key string, won, lost []call) {
	key = e.key()
	held := e.A.must(e.A.quietly("Acquire", key, randomToken(), time.Millisecond), true, "the key is fresh")
	latest := held.end.Add(held.ttl)
	var mu sync.Mutex
	var over atomic.Bool
	e.each(racers, func(i int) {
		c, token := e.clients()[i%3], randomToken()
		e.sleepUntil(held.until().Add(-500 * time.Microsecond))
		for ; ; e.near(held.until()) {
			r := c.quietly("Acquire", key, token, long)
			u.saw(e, r)
			if r.ok || over.Load() || r.err != nil && time.Since(latest) > e.slack() {
				over.Store(true)
				mu.Lock()
				defer mu.Unlock()
				if r.ok {
					won = append(won, r)
				} else if r.err == nil {
					lost = append(lost, r)
				}
				return
			}
			if r.start.After(latest.Add(e.slack())) {
				e.show(held)
				e.failLate(e.check.causes, "", fmt.Sprintf("the key is free for others, with all patience, at %s", e.at(latest.Add(e.slack()))),
					fmt.Sprintf("%s was still refused at %s", c.name, e.at(r.start)))
			}
		}
	})
	return key, won, lost
}

func checkWinnerExpired(e *env) {
	e.note("again and again: A acquires a key for a millisecond; then %d goroutines on A, B and C, each with a token of its "+
		"own, call Acquire until one has it", racers)
	var u unknowns
	e.lanes(160, 4*time.Second, func() {
		key, won, _ := raceForExpired(e, &u)
		if len(won) > 1 {
			e.fail("one of them takes it over, for ten minutes",
				fmt.Sprintf("%d have it: %s", len(won), describe(won)))
		}
		for _, r := range won {
			r.client.quietly("Release", key, r.token, 0)
		}
	})
}

func checkNoLostUpdate(e *env) {
	const keys, perClient = 3, 4
	e.note("%d goroutines on A, B and C add to %d counters, each under a lock of its own", 3*perClient, keys)
	type counter struct {
		key   string
		value atomic.Int64 // read and written in two steps: the lock has to make them one
		added atomic.Int64
	}
	var counters [keys]counter
	for i := range counters {
		counters[i].key = e.key()
	}
	var u unknowns
	deadline := time.Now().Add(2500 * time.Millisecond)
	e.each(3*perClient, func(i int) {
		c := e.clients()[i%3]
		for n := i; n < i+40 && (n == i || time.Now().Before(deadline)); {
			k, token := &counters[n%keys], randomToken()
			r := c.quietly("Acquire", k.key, token, long)
			u.saw(e, r)
			if !r.ok {
				if r.err != nil {
					c.quietly("Release", k.key, token, 0)
				}
				if time.Now().After(deadline.Add(e.patience())) {
					return
				}
				e.sleep(rand.N(4 * time.Millisecond))
				continue
			}
			v := k.value.Load()
			runtime.Gosched()
			k.value.Store(v + 1)
			k.added.Add(1)
			c.must(c.quietly("Release", k.key, token, 0), true, "it holds the lock")
			n++
		}
	})
	var total int64
	for i := range counters {
		value, added := counters[i].value.Load(), counters[i].added.Load()
		if value != added {
			e.fail(fmt.Sprintf("counter %d, after %d additions, is at %d", i+1, added, added),
				fmt.Sprintf("it is at %d", value))
		}
		total += added
	}
	if total == 0 {
		e.fail("they get the locks in turn", "nobody has got one")
	}
}

func checkRefusedCostNothing(e *env) {
	lasting, t2 := e.key(), e.token()
	e.A.takes(lasting, t2, long, "the key is fresh")
	tries := []time.Duration{time.Millisecond, time.Hour, time.Second}
	thief := e.token()
	var held call
	e.inTime("B is refused a lock of some seconds again and again", func(scale time.Duration) (inTime bool) {
		brief, ttl := e.key(), scale*1500*time.Millisecond
		held = e.A.takes(brief, e.token(), ttl, "the key is fresh")
		inTime = true
		e.until(100, time.Second, func() {
			for _, other := range tries {
				e.B.must(e.B.acquire(lasting, thief, other), false, "A holds the lock for ten minutes")
				if r := e.B.acquire(brief, thief, other); inTime && (r.ok || r.err != nil) {
					e.B.must(r, r.ok && !r.end.Before(held.until()), fmt.Sprintf("A holds the lock for %v", ttl))
					e.B.release(brief, thief)
					inTime = false
				}
			}
		})
		return inTime
	})
	e.sleep(5 * time.Millisecond)
	e.B.blockedAs(lasting, thief, "A holds the lock for ten minutes, whatever ttl others tried it with")
	e.A.extends(lasting, t2, long, "A holds the lock")
	e.A.releases(lasting, t2, "A holds the lock")
	e.C.takesOver(held, e.token(), long)
}
