package conformance

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golockers/locker/conformance/internal/harness"
)

// demandChecks are for Lockers that keep a lock after its release, for the next caller of the
// process, until another process demands it. Callers must not see a difference from other Lockers,
// so every Locker must pass them.
func demandChecks() []harness.Check {
	return []harness.Check{{
		Name:  "demand/gives-way",
		Rules: []string{c1GivesWay, c7Kept},
		Causes: "a process that keeps its lock although another asks for it; an attempt that takes a lock that is only kept " +
			"for one that is in use.",
		Run: checkDemandGivesWay,
	}, {
		Name:   "demand/in-use",
		Rules:  []string{c7Kept, c3NeverEarly},
		Causes: "a kept lock that is given up for another process after it was given to a caller of this one.",
		Run:    checkDemandInUse,
	}, {
		Name:  "demand/deadline",
		Rules: []string{c3NeverEarly, c7Kept},
		Causes: "a kept lock that is given to the next caller for its whole ttl, although the backend holds it for less; or " +
			"although its time on the backend is over.",
		Run: checkDemandDeadline,
	}, {
		Name:   "demand/waiter",
		Rules:  []string{c7Kept, q3Handoff},
		Needs:  harness.NeedsWait,
		Causes: "a demand that comes while the lock is in use, or is being released, and is forgotten when it is kept.",
		Run:    checkDemandWaiter,
	}, {
		Name:  "demand/race",
		Rules: []string{c3NeverEarly, c7Kept},
		Causes: "a caller of the process that gets a kept lock after another process was promised it, or while it is being " +
			"given up.",
		Run: checkDemandRace,
	}, {
		Name:   "demand/close",
		Rules:  []string{c7Kept},
		Causes: "a Close that stops listening to demands and leaves the locks that are kept.",
		Run:    checkDemandClose,
	}}
}

// uses makes c acquire and release a lock, so that c may keep it.
func uses(c *harness.Client, key string, ttl time.Duration, why string) {
	c.Env.TB.Helper()
	token := c.Env.Token()
	c.Takes(key, token, ttl, why)
	c.Releases(key, token, "it holds the lock")
}

func checkDemandGivesWay(e *harness.Env) {
	key := e.Key()
	uses(e.A, key, harness.Long, "the key is fresh")
	e.Until(100, 2*time.Second, func() {
		for i, c := range e.Clients() {
			for range 1 + i {
				uses(c, key, harness.Long, "no token holds the lock")
			}
		}
	})
}

func checkDemandInUse(e *harness.Env) {
	key, token := e.Key(), e.Token()
	for range 20 {
		uses(e.A, key, harness.Long, "no token holds the lock")
		e.A.Takes(key, token, harness.Long, "no token holds the lock")
		e.B.Blocked(key, "A holds the lock")
		e.C.Blocked(key, "A holds the lock")
		e.A.Extends(key, token, harness.Long, "A holds the lock")
		e.A.Releases(key, token, "A holds the lock")
		uses(e.B, key, harness.Long, "A has released it")
		e.C.Takes(key, token, harness.Long, "B has released it")
		e.A.Blocked(key, "C holds the lock")
		e.C.Releases(key, token, "C holds the lock")
	}
}

func checkDemandDeadline(e *harness.Env) {
	const what = "A uses a lock of less than a second"
	e.Each(4, func(i int) {
		e.InTime(what, func(scale time.Duration) bool {
			first, second := scale*600*time.Millisecond, scale*600*time.Millisecond
			if i%2 == 1 {
				second *= 2
			}
			key := e.Key()
			for range 1 + i/2 { // so that it may have been kept before
				if !usesInTime(e.A, key, first) {
					return false
				}
			}
			e.Sleep(first * 2 / 3)
			held := e.A.Takes(key, e.Token(), second, "no token holds the lock")
			e.B.TakesOver(held, e.Token(), harness.Long)
			return true
		})
	})
	// The lock is kept until its time has passed, and then another token takes it.
	e.InTime(what, func(scale time.Duration) bool {
		key, token, ttl := e.Key(), e.Token(), scale*100*time.Millisecond
		if !usesInTime(e.A, key, ttl) {
			return false
		}
		e.Sleep(ttl + e.Granularity())
		e.B.Takes(key, token, harness.Long, "no token holds the lock")
		e.A.Blocked(key, "B holds the lock")
		e.B.Extends(key, token, harness.Long, "B holds the lock")
		e.B.Releases(key, token, "B holds the lock")
		return true
	})
}

// usesInTime is uses, but returns false if the lock expires before it is released.
func usesInTime(c *harness.Client, key string, ttl time.Duration) bool {
	c.Env.TB.Helper()
	held := c.Takes(key, c.Env.Token(), ttl, "no token holds the lock")
	released := c.Release(key, held.Token)
	if released.Err == nil && !released.OK && !released.End.Before(held.Until()) {
		return false
	}
	c.Must(released, true, "it holds the lock")
	return true
}

func checkDemandWaiter(e *harness.Env) {
	e.Surely(func(rest time.Duration) harness.Verdict {
		key, token := e.Key(), e.Token()
		uses(e.A, key, harness.Long, "the key is fresh")
		e.A.Takes(key, token, harness.Long, "no token holds the lock")
		ctx, cancel := context.WithCancel(e.Ctx)
		defer cancel()
		next := e.Token()
		waiter := e.B.Waits(ctx, key, next, harness.Long)
		e.Sleep(rest)
		released := e.A.Releases(key, token, "A holds the lock")
		e.B.Must(e.Outcome(waiter, released.End, "A has released the lock"), true, "A has released the lock")
		e.A.Blocked(key, "B holds the lock")
		e.B.Releases(key, next, "its Wait has returned")
		return harness.Right()
	})
	// Each Wait meets A somewhere between two releases.
	key := e.Key()
	done := make(chan struct{})
	e.Go(func() {
		defer close(done)
		for end := time.Now().Add(2 * time.Second); time.Now().Before(end) && e.Ctx.Err() == nil; {
			token := e.Token()
			r := e.A.Quietly("Acquire", key, token, harness.Long)
			if e.A.Answers(r); r.OK {
				e.A.Must(e.A.Quietly("Release", key, token, 0), true, "A holds the lock")
			}
		}
	})
	for ended := false; !ended; {
		token := e.Token()
		begun := time.Now()
		waiter := e.B.Waits(e.Ctx, key, token, harness.Long)
		e.B.Must(e.Outcome(waiter, begun, "A keeps the lock for a moment at a time"), true, "A releases the lock each time")
		e.B.Releases(key, token, "its Wait has returned")
		select {
		case <-done:
			ended = true
		default:
		}
	}
}

func checkDemandRace(e *harness.Env) {
	key := e.Key()
	var holders atomic.Int64
	var all sync.WaitGroup
	var u unknowns
	// release repeats a Release that returns errors until it has an answer, and returns the first.
	release := func(c *harness.Client, token string) harness.Call {
		first := c.Quietly("Release", key, token, 0)
		for r := first; r.Err != nil; r = c.Quietly("Release", key, token, 0) {
			u.saw(e, r)
		}
		return first
	}
	end := time.Now().Add(2 * time.Second)
	for i := range 6 {
		c := e.Clients()[i%3]
		e.Goes(&all, func() {
			for time.Now().Before(end) && e.Ctx.Err() == nil {
				token := e.Token()
				r := c.Quietly("Acquire", key, token, harness.Long)
				if u.saw(e, r); r.Err != nil { // it may have acquired the lock
					release(c, token)
				}
				if !r.OK {
					continue
				}
				if n := holders.Add(1); n > 1 {
					e.Show(r)
					e.FailAbout(key, "one holder at a time: each of them releases the lock after it has been counted",
						fmt.Sprintf("%d Acquires returned true for a lock that was not released", n))
				}
				if i < 3 {
					e.Sleep(time.Millisecond)
				}
				holders.Add(-1)
				if r := release(c, token); r.Err == nil {
					c.Must(r, true, "it holds the lock")
				}
			}
		})
	}
	all.Wait()
	e.GoOn()
	uses(e.B, key, harness.Long, "each that has acquired it has released it")
}

func checkDemandClose(e *harness.Env) {
	l := e.NewLocker(e.Addr())
	closer, ok := l.(interface{ Close() error })
	if !ok {
		e.Skip(fmt.Sprintf("%T has no Close", l))
	}
	d := e.NewClient("D", l)
	held, token := e.Key(), e.Token()
	keys := []string{e.Key(), e.Key(), e.Key()}
	for range 2 {
		for _, key := range keys {
			uses(d, key, harness.Long, "no token holds the lock")
		}
	}
	d.Takes(held, token, harness.Long, "the key is fresh")
	e.Note("D is closed")
	if err := closer.Close(); err != nil {
		e.Fail("D.Close = nil", fmt.Sprintf("D.Close = %v", err))
	}
	last := d // D may have closed its connections, and then B releases what D holds
	if r := d.Acquire(keys[0], e.Token(), harness.Long); r.Err == nil {
		d.Must(r, true, "no token holds the lock, and this Locker works after Close")
		d.Releases(keys[0], r.Token, "it holds the lock")
	} else {
		e.Note("D does not work after Close, as a Locker that owns its connections may")
		e.HandOver(d, e.B)
		e.B.Release(keys[0], r.Token)
		last = e.B
	}
	for _, key := range keys {
		e.B.Blocked(held, "D holds it; Close gives up only what is kept")
		uses(e.B, key, harness.Long, "no token holds the lock, and D is closed")
		if last == d {
			uses(d, key, harness.Long, "no token holds the lock, and this Locker works after Close")
		}
		uses(e.C, key, harness.Long, "no token holds the lock, and D is closed")
	}
	last.Releases(held, token, "D holds it")
	e.C.Takes(held, e.Token(), harness.Long, "D has released it")
}
