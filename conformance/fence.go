package conformance

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	ruleFenceGrows = "Fence is greater than every number minted for that key before, by anyone, across releases, " +
		"expiries and re-acquisitions."
	ruleFenceOwner = "Fence is checked against the token: false when it does not hold the lock, even if it did before."
)

func fenceChecks() []check {
	list := []check{{
		name:   "fence/grows",
		rule:   ruleFenceGrows,
		causes: "a counter that is kept beside the lock and deleted with it or expires, one in the Locker, or a clock.",
		run:    checkFenceGrows,
	}, {
		name:   "fence/only-the-holder",
		rule:   ruleFenceOwner,
		causes: "a counter that is incremented without checking the token.",
		run:    checkFenceOwner,
	}, {
		name: "fence/stale-holder",
		rule: ruleFenceOwner + " A stale holder cannot mint a number greater than its successor's.",
		causes: "checking the token first and incrementing then: in between another takes the lock and mints. Increment, " +
			"then check.",
		run: checkFenceStale,
	}, {
		name:   "fence/in-order",
		rule:   ruleFenceGrows,
		causes: "a counter that is read and written in two steps, or numbers handed out to clients in blocks.",
		run:    checkFenceOrder,
	}, {
		name:   "fence/moves-nothing",
		rule:   "C3, C4, C6: only Acquire and Extend by the token that holds the lock move its expiry.",
		causes: "a Fence that extends the lock, or sets its value again.",
		run: func(e *env) {
			e.inTime("A mints numbers for a lock of some seconds", func(scale time.Duration) bool {
				key, token := e.key(), e.token()
				held := e.A.takes(key, token, scale*1200*time.Millisecond, "the key is fresh")
				minted := 0
				e.until(10, time.Second, func() {
					r := e.A.do("Fence", key, token, 0)
					if r.err != nil || r.ok || r.end.Before(held.until()) {
						e.A.must(r, true, "A holds the lock")
						minted++
					}
					e.sleep(40 * time.Millisecond)
				})
				e.B.takesOver(held, e.token(), long)
				return minted > 0
			})
		},
	}, {
		name:   "fence/context",
		rule:   ruleDoneBefore,
		causes: "a context that is not passed on, or an error in place of ctx's.",
		run: func(e *env) {
			key, token := e.key(), e.token()
			e.A.takes(key, token, long, "the key is fresh")
			for how, ctx := range doneContexts(e.ctx) {
				e.ended(ctx, e.A.doCtx(ctx, "Fence", key, token, 0), "its context was "+how+" before the call")
			}
			ctx, cancel := context.WithTimeout(e.ctx, 10*time.Second)
			defer cancel()
			e.A.must(e.A.doCtx(ctx, "Fence", key, token, 0), true, "A holds the lock")
		},
	}}
	for i := range list {
		list[i].needs |= needsFence
	}
	return list
}

// fences mints a number for a lock that token must hold, greater than last.
func mint(c *client, key, token string, last uint64) uint64 {
	r := c.must(c.do("Fence", key, token, 0), true, "its token holds the lock")
	if r.fence <= last {
		c.e.fail(fmt.Sprintf("%s.Fence is greater than %d, which was minted for that key before", c.name, last),
			fmt.Sprintf("it is %d", r.fence))
	}
	return r.fence
}

func checkFenceGrows(e *env) {
	key, t1, t2 := e.key(), e.token(), e.token()
	e.A.takes(key, t1, long, "the key is fresh")
	last := mint(e.A, key, t1, 0)
	last = mint(e.A, key, t1, last)
	e.A.releases(key, t1, "A holds the lock")

	e.B.takes(key, t2, long, "A has released it")
	last = mint(e.B, key, t2, last)
	e.B.releases(key, t2, "B holds the lock")

	e.A.takes(key, t1, long, "B has released it; that t1 held it before does not matter")
	last = mint(e.A, key, t1, last)
	e.A.extends(key, t1, long, "A holds the lock")
	last = mint(e.A, key, t1, last)
	e.A.takes(key, t1, long, "A holds the lock already")
	last = mint(e.A, key, t1, last)

	held := e.A.extends(key, t1, 50*time.Millisecond, "A holds the lock")
	e.C.takesOver(held, t2, long)
	last = mint(e.C, key, t2, last)
	e.C.releases(key, t2, "C holds the lock")

	// Nobody holds it for a while, and what is not needed may be gone.
	held = e.A.takes(key, t1, time.Millisecond, "C has released it")
	e.sleepUntil(held.end.Add(e.granularity() + 300*time.Millisecond))
	e.B.takesOver(held, t2, long)
	mint(e.B, key, t2, last)
}

func checkFenceOwner(e *env) {
	key, t1, t2 := e.key(), e.token(), e.token()
	refused := func(c *client, token, why string) {
		c.must(c.do("Fence", key, token, 0), false, why)
	}
	refused(e.A, t1, "nobody holds the lock")
	e.A.takes(key, t1, long, "the key is fresh; a Fence that was refused has not created the lock")
	refused(e.A, t2, "t1 holds the lock")
	refused(e.B, t2, "t1 holds the lock")
	mint(e.A, key, t1, 0)
	e.A.releases(key, t1, "A holds the lock")
	refused(e.A, t1, "A has released it")
	e.B.takes(key, t2, long, "A has released it")
	refused(e.A, t1, "B holds the lock")
	e.B.releases(key, t2, "B holds the lock")

	afterExpiry(e, func(held call) call { return e.A.do("Fence", held.key, held.token, 0) })

	held := e.A.takes(key, t1, 50*time.Millisecond, "B has released it")
	e.B.takesOver(held, t2, long)
	refused(e.A, t1, "its time is up, and B has taken the lock over")
	mint(e.B, key, t2, 0)
}

func checkFenceStale(e *env) {
	e.note("again and again: A acquires a lock for some milliseconds and mints numbers all the time, while B calls Acquire " +
		"until it has it and then mints one")
	var minted atomic.Int64 // by A
	var scale atomic.Int64  // a slow backend needs longer for a number than some milliseconds
	scale.Store(1)
	e.lanes(80, 3*time.Second, func() {
		key, t2 := e.key(), randomToken()
		held := e.A.must(e.A.quietly("Acquire", key, randomToken(), time.Duration(scale.Load())*time.Duration(2+rand.IntN(4))*time.Millisecond),
			true, "the key is fresh")
		const minters = 4
		var stale [minters][]call
		var mine call
		over := make(chan struct{})
		e.each(minters+1, func(i int) {
			if i < minters { // A mints until it is told that the lock is not its own, and somewhat longer
				for more := 2; more > 0; {
					r := e.A.quietly("Fence", key, held.token, 0)
					e.A.answers(r)
					if r.ok {
						stale[i] = append(stale[i], r)
					}
					select {
					case <-over:
						more--
					default:
						e.near(held.until())
					}
				}
				return
			}
			defer close(over)
			for patience := e.slack(); !mine.ok; {
				r := e.B.quietly("Acquire", key, t2, long)
				if r.err != nil || !r.ok && r.start.After(held.end.Add(held.ttl+patience)) {
					e.B.must(r, true, "A's time is up, with all patience")
				}
				if r.ok {
					mine = e.B.must(e.B.quietly("Fence", key, t2, 0), true, "B has taken the lock over")
				} else {
					e.near(held.until())
				}
			}
		})
		all := slices.Concat(stale[:]...)
		if minted.Add(int64(len(all))); len(all) == 0 {
			scale.Store(min(2*scale.Load(), 64))
		}
		for _, r := range all {
			if r.fence >= mine.fence {
				e.show(held)
				e.show(r)
				e.show(mine)
				e.fail(fmt.Sprintf("all of A's numbers are less than %d", mine.fence),
					fmt.Sprintf("A got %d from a Fence between %s and %s; B's was between %s and %s", r.fence,
						e.at(r.start), e.at(r.end), e.at(mine.start), e.at(mine.end)))
			}
		}
		e.B.quietly("Release", key, t2, 0)
	})
	if minted.Load() == 0 {
		e.inconclusive("A's time was up each time before it had minted a number")
	}
}

// checkFenceOrder mints for two keys, whose numbers may come from one counter.
func checkFenceOrder(e *env) {
	type series struct {
		key  string
		mu   sync.Mutex // the lock should make that it is never waited for
		last uint64
	}
	var all [2]series
	for i := range all {
		all[i].key = e.key()
	}
	e.note("six goroutines on A, B and C take turns with two locks, and each mints a number in its turn")
	var u unknowns
	var turns atomic.Int64
	deadline := time.Now().Add(1500 * time.Millisecond)
	e.each(6, func(i int) {
		c := e.clients()[i%3]
		for n := 0; n < 40 && (n == 0 || time.Now().Before(deadline)); {
			s, token := &all[(i+n)%2], randomToken()
			r := c.quietly("Acquire", s.key, token, long)
			u.saw(e, r)
			if !r.ok {
				if r.err != nil {
					c.quietly("Release", s.key, token, 0)
				}
				if time.Now().After(deadline.Add(e.patience())) {
					return
				}
				e.sleep(rand.N(4 * time.Millisecond))
				continue
			}
			f := c.must(c.quietly("Fence", s.key, token, 0), true, "it holds the lock")
			s.mu.Lock()
			last := s.last
			s.last = max(last, f.fence)
			s.mu.Unlock()
			if f.fence <= last {
				e.fail(fmt.Sprintf("after %d comes a greater one for the same key", last), fmt.Sprintf("%s got %d", c.name, f.fence))
			}
			c.must(c.quietly("Release", s.key, token, 0), true, "it holds the lock")
			n++
			turns.Add(1)
		}
	})
	if turns.Load() < int64(2*len(all)) {
		e.inconclusive("the goroutines came to %d turns in all, too few to see an order", turns.Load())
	}
}
