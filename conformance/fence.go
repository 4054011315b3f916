package conformance

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golockers/locker/conformance/internal/harness"
)

func fenceChecks() []harness.Check {
	list := []harness.Check{{
		Name:  "fence/monotonic",
		Rules: []string{f1Monotonic, f4Range},
		Causes: "a counter that is kept beside the lock and deleted with it, or expires; one in the Locker; a clock; random " +
			"numbers of 64 bits.",
		Run: checkFenceMonotonic,
	}, {
		Name:   "fence/holder-only",
		Rules:  []string{f2Holder},
		Causes: "a counter that is incremented without checking the token.",
		Run:    checkFenceHolder,
	}, {
		Name:  "fence/stale-holder",
		Rules: []string{f1Monotonic, f2Holder},
		Causes: "checking the token and then incrementing: between them another token takes the lock and mints a number. " +
			"Increment first, then check.",
		Run: checkFenceStale,
	}, {
		Name:   "fence/concurrent",
		Rules:  []string{f1Monotonic},
		Causes: "a counter that is read and written in two steps, or numbers handed out to clients in blocks.",
		Run:    checkFenceConcurrent,
	}, {
		Name:   "fence/outlives-data",
		Rules:  []string{f1Monotonic, f3Lost},
		Causes: "a counter that starts again at 1: let it start at the server's time.",
		Needs:  harness.NeedsDataLoss,
		Alone:  true,
		Run:    checkFenceOutlivesData,
	}, {
		Name:   "fence/no-side-effects",
		Rules:  []string{c4Late, "Fence does not move the expiry."},
		Causes: "a Fence that extends the lock, or sets its value again.",
		Run: func(e *harness.Env) {
			e.InTime("A mints numbers while it holds a lock of a second or more", func(scale time.Duration) bool {
				key, token := e.Key(), e.Token()
				held := e.A.Takes(key, token, scale*1200*time.Millisecond, "the key is fresh")
				minted, last := 0, uint64(0)
				e.Until(10, time.Second, func() {
					r := e.A.Do("Fence", key, token, 0)
					if r.Err != nil || r.OK || r.End.Before(held.Until()) {
						last = increases(e.A.Must(r, true, "A holds the lock"), last)
						minted++
					}
					e.Sleep(40 * time.Millisecond)
				})
				e.B.TakesOver(held, e.Token(), harness.Long)
				return minted > 0
			})
		},
	}, {
		Name:   "fence/context",
		Rules:  []string{c9Before},
		Causes: "a context that is not passed on, or an error in place of ctx's.",
		Run: func(e *harness.Env) {
			key, token := e.Key(), e.Token()
			e.A.Takes(key, token, harness.Long, "the key is fresh")
			for how, ctx := range doneContexts(e.Ctx) {
				e.Ended(ctx, e.A.DoContext(ctx, "Fence", key, token, 0), "its context was "+how+" before the call")
			}
			ctx, cancel := context.WithTimeout(e.Ctx, 10*time.Second)
			defer cancel()
			increases(e.A.Must(e.A.DoContext(ctx, "Fence", key, token, 0), true, "A holds the lock"), 0)
		},
	}}
	for i := range list {
		list[i].Needs |= harness.NeedsFence
	}
	return list
}

// mint returns a number for a lock that token must hold. It must be greater than last.
func mint(c *harness.Client, key, token string, last uint64) uint64 {
	return increases(c.Must(c.Do("Fence", key, token, 0), true, "its token holds the lock"), last)
}

// increases returns the number that r returned, which must be greater than last and less than 2^63.
func increases(r harness.Call, last uint64) uint64 {
	if r.Fence <= last {
		r.Client.Env.Fail(fmt.Sprintf("%s.Fence returns a number greater than %d, which was minted for that key before", r.Client.Name, last),
			fmt.Sprintf("it returned %d", r.Fence))
	}
	if r.Fence >= 1<<63 {
		r.Client.Env.Fail(fmt.Sprintf("%s.Fence returns a number less than 2^63", r.Client.Name), fmt.Sprintf("it returned %d", r.Fence))
	}
	return r.Fence
}

func checkFenceMonotonic(e *harness.Env) {
	key, t1, t2 := e.Key(), e.Token(), e.Token()
	e.A.Takes(key, t1, harness.Long, "the key is fresh")
	last := mint(e.A, key, t1, 0)
	last = mint(e.A, key, t1, last)
	e.A.Releases(key, t1, "A holds the lock")

	e.B.Takes(key, t2, harness.Long, "A has released it")
	last = mint(e.B, key, t2, last)
	e.B.Releases(key, t2, "B holds the lock")

	e.A.Takes(key, t1, harness.Long, "B has released it")
	last = mint(e.A, key, t1, last)
	e.A.Extends(key, t1, harness.Long, "A holds the lock")
	last = mint(e.A, key, t1, last)
	e.A.Takes(key, t1, harness.Long, "A holds the lock already")
	last = mint(e.A, key, t1, last)

	held := e.A.Extends(key, t1, 50*time.Millisecond, "A holds the lock")
	e.C.TakesOver(held, t2, harness.Long)
	last = mint(e.C, key, t2, last)
	e.C.Releases(key, t2, "C holds the lock")

	// While the lock is free, the backend may drop what it does not need.
	held = e.A.Takes(key, t1, time.Millisecond, "C has released it")
	e.SleepUntil(held.End.Add(e.Granularity() + 300*time.Millisecond))
	e.B.TakesOver(held, t2, harness.Long)
	mint(e.B, key, t2, last)
}

func checkFenceOutlivesData(e *harness.Env) {
	key, t1, t2 := e.Key(), e.Token(), e.Token()
	e.A.Takes(key, t1, harness.Long, "the key is fresh")
	last := uint64(0)
	for range 3 {
		last = mint(e.A, key, t1, last)
	}
	e.Note("the backend loses its data")
	e.LoseData()
	e.B.Takes(key, t2, harness.Long, "the lock was lost with the data")
	mint(e.B, key, t2, last)
}

func checkFenceHolder(e *harness.Env) {
	key, t1, t2 := e.Key(), e.Token(), e.Token()
	refused := func(c *harness.Client, token, why string) {
		c.Must(c.Do("Fence", key, token, 0), false, why)
	}
	refused(e.A, t1, "the key is free")
	e.A.Takes(key, t1, harness.Long, "the key is free; a refused Fence does not create a lock")
	refused(e.A, t2, "t1 holds the lock")
	refused(e.B, t2, "t1 holds the lock")
	mint(e.A, key, t1, 0)
	e.A.Releases(key, t1, "A holds the lock")
	refused(e.A, t1, "A has released it")
	e.B.Takes(key, t2, harness.Long, "A has released it")
	refused(e.A, t1, "B holds the lock")
	e.B.Releases(key, t2, "B holds the lock")

	afterExpiry(e, func(held harness.Call) harness.Call { return e.A.Do("Fence", held.Key, held.Token, 0) })

	held := e.A.Takes(key, t1, 50*time.Millisecond, "B has released it")
	e.B.TakesOver(held, t2, harness.Long)
	refused(e.A, t1, "its lock has expired, and B has taken it over")
	mint(e.B, key, t2, 0)
}

func checkFenceStale(e *harness.Env) {
	e.Note("repeatedly, A acquires a lock for some milliseconds and mints numbers all the time, while B calls Acquire " +
		"until it has acquired it and then mints a number")
	var minted atomic.Int64 // by A
	var scale atomic.Int64  // a slow backend needs longer for a number than some milliseconds
	scale.Store(1)
	e.Lanes(80, 3*time.Second, func() {
		key, t2 := e.Key(), harness.RandomToken()
		held := e.A.Must(e.A.Quietly("Acquire", key, harness.RandomToken(), time.Duration(scale.Load())*time.Duration(2+rand.IntN(4))*time.Millisecond),
			true, "the key is fresh")
		const minters = 4
		var stale [minters][]harness.Call
		var mine harness.Call
		over := make(chan struct{})
		e.Each(minters+1, func(i int) {
			if i < minters { // A mints numbers until B has the lock, and a little longer
				for more := 2; more > 0; {
					r := e.A.Quietly("Fence", key, held.Token, 0)
					e.A.Answers(r)
					if r.OK {
						stale[i] = append(stale[i], r)
					}
					select {
					case <-over:
						more--
					default:
						e.Near(held.Until())
					}
				}
				return
			}
			defer close(over)
			for !mine.OK {
				r := e.B.Quietly("Acquire", key, t2, harness.Long)
				if r.Err != nil {
					e.B.Must(r, true, "A's lock has expired")
				}
				if !r.OK {
					e.Overdue(harness.Event, r.Start.Sub(held.End.Add(held.TTL+e.Granularity())), e.Check.Causes, key,
						"B acquires the lock, since A's has expired", "it is still refused")
				}
				if r.OK {
					mine = e.B.Must(e.B.Quietly("Fence", key, t2, 0), true, "B has taken the lock over")
				} else {
					e.Near(held.Until())
				}
			}
		})
		all := slices.Concat(stale[:]...)
		if minted.Add(int64(len(all))); len(all) == 0 {
			scale.Store(min(2*scale.Load(), 64))
		}
		for _, r := range all {
			if r.Fence >= mine.Fence {
				e.Show(held)
				e.Show(r)
				e.Show(mine)
				e.Fail(fmt.Sprintf("all of A's numbers are less than %d", mine.Fence),
					fmt.Sprintf("A got %d from a Fence between %s and %s; B's Fence was between %s and %s", r.Fence,
						e.At(r.Start), e.At(r.End), e.At(mine.Start), e.At(mine.End)))
			}
		}
		e.B.Quietly("Release", key, t2, 0)
	})
	if minted.Load() == 0 {
		e.Inconclusive("each time A's lock expired before A had minted a number")
	}
}

// checkFenceConcurrent mints numbers for two keys, which may share a counter.
func checkFenceConcurrent(e *harness.Env) {
	type series struct {
		key  string
		mu   sync.Mutex // uncontended if the lock works
		last uint64
	}
	var all [2]series
	for i := range all {
		all[i].key = e.Key()
	}
	e.Note("six goroutines on A, B and C take turns with two locks, and mint a number each time")
	var u unknowns
	var turns atomic.Int64
	deadline := time.Now().Add(1500 * time.Millisecond)
	e.Each(6, func(i int) {
		c := e.Clients()[i%3]
		for n := 0; n < 40 && (n == 0 || time.Now().Before(deadline)); {
			s, token := &all[(i+n)%2], harness.RandomToken()
			r := c.Quietly("Acquire", s.key, token, harness.Long)
			u.saw(e, r)
			if !r.OK {
				if r.Err != nil {
					c.Quietly("Release", s.key, token, 0)
				}
				if time.Now().After(deadline.Add(e.Patience())) {
					return
				}
				e.Sleep(rand.N(4 * time.Millisecond))
				continue
			}
			f := c.Must(c.Quietly("Fence", s.key, token, 0), true, "it holds the lock")
			s.mu.Lock()
			last := s.last
			s.last = max(last, f.Fence)
			s.mu.Unlock()
			if f.Fence <= last {
				e.Fail(fmt.Sprintf("a number greater than %d, which was minted for the key before", last), fmt.Sprintf("%s.Fence = %d", c.Name, f.Fence))
			}
			c.Must(c.Quietly("Release", s.key, token, 0), true, "it holds the lock")
			n++
			turns.Add(1)
		}
	})
	if turns.Load() < int64(2*len(all)) {
		e.Inconclusive("the goroutines took only %d turns, too few to see an order", turns.Load())
	}
}
