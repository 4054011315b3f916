package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/golockers/locker/conformance/internal/harness"
	"github.com/golockers/locker/conformance/internal/names"
)

func waitChecks() []harness.Check {
	list := []harness.Check{{
		Name:  "wait/uncontended",
		Rules: []string{q2Wait},
		Causes: "a Wait that joins the queue without trying first; a lock that is not the one that Acquire, Extend and " +
			"Release know.",
		Run: checkWaitUncontended,
	}, {
		Name:  "wait/unsupported",
		Rules: []string{q11Unsupported},
		Needs: harness.NeedsUnsupportedWait,
		Causes: "a place in the queue that is given up in the background after Wait has returned: that releases the lock if " +
			"the same token has acquired it meanwhile in another way.",
		Run: checkWaitUnsupported,
	}, {
		Name:   "wait/fifo",
		Rules:  []string{q1FIFO, q3Handoff},
		Causes: "a release that wakes all waiters and lets them race, or a queue that serves the last one first.",
		Run:    checkWaitFIFO,
	}, {
		Name:  "wait/keeps-place",
		Rules: []string{q5Place, q1FIFO},
		Causes: "a waiter that finds the lock free or expired and joins the queue again at its end; a lock that goes to the " +
			"first waiter that looks after its holder vanished; a place that is lost when the holder extends, or when another " +
			"attempt is refused.",
		Run: checkWaitKeepsPlace,
	}, {
		Name:  "wait/own-ttl",
		Rules: []string{q3Handoff, q4Deadline},
		Causes: "a grant with the ttl of the previous holder, of another waiter, or of the adapter; a ttl that is looked up " +
			"separately from the waiter's place.",
		Run: checkWaitOwnTTL,
	}, {
		Name:  "wait/queued-token",
		Rules: []string{q6Queued},
		Causes: "comparing with a record of the queue instead of the lock's value; a Release that removes its token from the " +
			"queue, so that its Wait is never served.",
		Run: checkWaitQueuedToken,
	}, {
		Name:   "wait/no-barging",
		Rules:  []string{aAcquire, q3Handoff},
		Causes: "a release that frees the lock before the head of the queue has it, while Acquire ignores the queue.",
		Run:    checkWaitNoBarging,
	}, {
		Name:  "wait/deadline",
		Rules: []string{q4Deadline},
		Causes: "a deadline that counts from when the news of the grant arrived, not from a moment before the grant; or from " +
			"when the waiter joined the queue, so that it has passed when the waiter is served.",
		Run: checkWaitDeadline,
	}, {
		Name:   "wait/cancel",
		Rules:  []string{q9Leave},
		Causes: "a waiter that stays in the queue after its ctx has ended and is handed a lock that is never released.",
		Run:    checkWaitCancel,
	}, {
		Name:  "wait/cancel-stress",
		Rules: []string{q9Leave, c3NeverEarly},
		Causes: "a grant that arrives while its waiter leaves and is neither released nor passed on; a waiter that leaves " +
			"and removes another's place from the queue.",
		Run: checkWaitCancelStress,
	}, {
		Name:   "wait/holder-vanishes",
		Rules:  []string{q8Looks, q2Wait, c4Late, c3NeverEarly},
		Causes: "a queue that moves only after a release; a waiter that trusts the holder's ttl as it was when it joined.",
		Run:    checkWaitHolderVanishes,
	}, {
		Name:  "wait/head-leaves",
		Rules: []string{q8Looks, q9Leave, c4Late},
		Causes: "only the head of the queue watches for the holder's expiry, and when it leaves, the next waiter is not told " +
			"that it is the head now.",
		Run: checkWaitHeadLeaves,
	}, {
		Name:   "wait/context",
		Rules:  []string{c9Before, c14NothingLeft},
		Causes: "joining the queue before looking at ctx, or a goroutine for each waiter that does not end with it.",
		Run:    checkWaitContext,
	}, {
		Name:   "wait/any-key",
		Rules:  []string{c12AnyName, q11Unsupported},
		Causes: "a queue whose own key is derived from the name in a way that does not work for every name.",
		Run:    checkWaitAnyKey,
	}}
	for i := range list {
		if list[i].Needs == 0 {
			list[i].Needs = harness.NeedsWait
		}
	}
	return list
}

func checkWaitUncontended(e *harness.Env) {
	key, t1, t2 := e.Key(), e.Token(), e.Token()
	wait := func(c *harness.Client, token string, ttl time.Duration, why string) harness.Call {
		return c.Must(c.Do("Wait", key, token, ttl), true, why) // which judges the deadline
	}
	wait(e.A, t1, harness.Long, "the key is fresh")
	e.B.Blocked(key, "A holds the lock")
	e.A.Takes(key, t1, harness.Long, "its token holds the lock")
	wait(e.A, t1, harness.Long, "its own token holds the lock already")
	e.A.Extends(key, t1, harness.Long, "A holds the lock")
	e.A.Releases(key, t1, "A holds the lock")
	e.A.CannotRelease(key, t1, "A has released it; acquisitions do not nest")
	e.B.Takes(key, t2, harness.Long, "A has released it")
	e.B.Releases(key, t2, "B holds the lock")

	held := wait(e.A, t1, 700*time.Millisecond, "the key is free")
	e.C.TakesOver(held, e.Token(), harness.Long)
}

// checkWaitUnsupported is for a Locker that has Wait, but not on this backend.
func checkWaitUnsupported(e *harness.Env) {
	e.Until(30, 2*time.Second, func() {
		key, token := e.Key(), e.Token()
		other := e.B.Takes(key, e.Token(), harness.Long, "the key is fresh")
		if r := e.A.Do("Wait", key, token, harness.Long); !errors.Is(r.Err, errors.ErrUnsupported) {
			e.Fail("A.Wait returns errors.ErrUnsupported, as it did before", "A.Wait = "+r.Result())
		}
		e.B.Releases(key, other.Token, "B holds the lock")
		e.A.Takes(key, token, harness.Long, "B has released it")
		e.Sleep(5 * time.Millisecond)
		e.A.Extends(key, token, harness.Long, "A holds the lock")
		e.C.Blocked(key, "A holds the lock")
		e.A.Releases(key, token, "A holds the lock")
	})
}

func checkWaitDeadline(e *harness.Env) {
	by := []string{"release", "expiry"}
	e.Each(len(by), func(i int) {
		// A first request that is delayed until the lock is free acquires it with a deadline that
		// has passed.
		if want, got := grantedUntil(e, by[i]); got != "" {
			e.FailTime(harness.Joining, 2*e.Allow(harness.Joining), e.Check.Causes, "", want, got)
		}
	})
}

// grantedUntil makes B wait for A's lock until that is released or expires. It checks that B holds
// the lock until its deadline, and returns what is wrong if the deadline has passed when the lock
// is granted.
func grantedUntil(e *harness.Env, by string) (want, got string) {
	ttl, hold := e.Stretched(1500*time.Millisecond), e.Stretched(3500*time.Millisecond) // longer than ttl, and than it takes to join
	key, t1, t2 := e.Key(), e.Token(), e.Token()
	first := harness.Long
	if by == "expiry" {
		first = hold
	}
	held := e.A.Takes(key, t1, first, "the key is fresh")
	waiter := e.B.Waits(e.Ctx, key, t2, ttl)
	granted, due := held.Until(), held.End.Add(first+e.Granularity())
	e.SleepUntil(held.Start.Add(hold))
	if by == "release" {
		r := e.A.Releases(key, t1, "A holds the lock")
		granted, due = r.Start, r.End
	}
	r := e.B.Must(e.Outcome(waiter, due, "the lock is free by "+by+", and B is the head of the queue"), true, "B is the head of the queue")
	if r.Deadline.Before(granted) {
		want = fmt.Sprintf("a deadline after the grant, which was not before %s", e.At(granted))
		got = fmt.Sprintf("it is at %s", e.At(r.Deadline))
	}
	e.C.TakesWhen(key, e.Token(), harness.Long, r.Deadline, r.End.Add(ttl),
		fmt.Sprintf("B's Wait returned that deadline, %s", e.At(r.Deadline)))
	return want, got
}

// checkWaitOwnTTL judges whichever waiter is served first by its own ttl.
func checkWaitOwnTTL(e *harness.Env) {
	cases := [][]time.Duration{{e.Stretched(900 * time.Millisecond), harness.Long}, {e.Stretched(3 * time.Second), 600 * time.Millisecond}}
	e.Each(len(cases), func(i int) {
		e.Surely(func(rest time.Duration) harness.Verdict { return servedForOwnTTL(e, cases[i], rest) })
	})
}

// servedForOwnTTL makes B wait with two different ttls. The first one to be served keeps the lock
// until it expires. The verdict is unclear if that is the second waiter.
func servedForOwnTTL(e *harness.Env, ttls []time.Duration, rest time.Duration) harness.Verdict {
	q := newQueue(e, harness.Long, rest, ttls...)
	defer q.leave()
	released := e.A.Releases(q.key, q.holder.Token, "A holds the lock")
	n, w := q.first(released.End, "A has released the lock, and two wait for it")
	e.B.Must(w, true, "A has released the lock")
	if n != 0 {
		e.B.Release(q.key, w.Token)
		return harness.Unclear("the second waiter was served first")
	}
	ttl := ttls[0]
	if w.Deadline.Before(released.Start.Add(ttl / 2)) {
		return harness.Wrong(fmt.Sprintf("a deadline about %v after A's Release at %s: the first waiter asked for that", ttl, e.At(released.Start)),
			fmt.Sprintf("it is at %s", e.At(w.Deadline)))
	}
	// C may acquire the lock next, or the second waiter: not before the deadline, and soon after
	// it.
	why := fmt.Sprintf("the first waiter asked for %v, and its Wait returned the deadline %s", ttl, e.At(w.Deadline))
	token := e.Token()
	for {
		r := e.C.Polls(q.key, token, harness.Long)
		end := r.End
		select {
		case next := <-q.results[1]:
			q.results[1] = nil
			e.B.Must(next, true, "it is the head of the queue")
			defer e.B.Release(q.key, next.Token)
			if !next.Deadline.After(w.End) { // it had the lock before the first one, and returned late
				e.B.Release(q.key, w.Token)
				return harness.Unclear("the second waiter was served first")
			}
			r.OK, end = true, next.End
		default:
		}
		switch {
		case r.Err != nil:
			e.C.Must(r, true, why)
		case r.OK && end.Before(w.Deadline):
			e.FailAbout(q.key, "no other token acquires the lock earlier: "+why, fmt.Sprintf("another one had it at %s", e.At(end)))
		case r.OK:
			e.C.Release(q.key, token)
			return harness.Right()
		}
		e.Overdue(harness.Event, r.Start.Sub(w.End.Add(ttl+e.Granularity())), e.Check.Causes, q.key,
			fmt.Sprintf("another token has acquired it by %s, even on a slow machine: %s", e.At(w.End.Add(ttl+e.Slack())), why),
			fmt.Sprintf("none had at %s", e.At(r.Start)))
		e.Sleep(harness.PollRest(r, w.Deadline))
	}
}

func checkWaitHolderVanishes(e *harness.Env) {
	e.Each(3, func(i int) {
		var key, t2 string
		var held harness.Call
		var waiter <-chan harness.Call
		e.InTime("A extends a lock for which B waits", func(scale time.Duration) bool {
			var t1 string
			key, t1, t2 = e.Key(), e.Token(), e.Token()
			ttl := []time.Duration{100 * time.Millisecond, time.Second, scale * 700 * time.Millisecond}[i]
			held = e.A.Takes(key, t1, ttl, "the key is fresh")
			ctx, cancel := context.WithCancel(e.Ctx)
			e.TB.Cleanup(cancel)
			waiter = e.B.Waits(ctx, key, t2, harness.Long)
			if i < 2 {
				return true
			}
			e.Sleep(200 * time.Millisecond) // then the holder lives longer than the waiter first saw
			next := e.A.Extend(key, t1, scale*1500*time.Millisecond)
			if next.Err == nil && !next.OK && !next.End.Before(held.Until()) {
				cancel()
				<-waiter
				return false
			}
			held = e.A.Must(next, true, "A holds the lock")
			return true
		})
		due := held.End.Add(held.TTL + e.Granularity())
		e.SleepUntil(held.Until())
		r := e.B.Must(e.Outcome(waiter, due, "A's lock has expired"), true, "A's lock has expired, and B is the head of the queue")
		if r.End.Before(held.Until()) {
			e.Fail(fmt.Sprintf("not before %s, when A's lock expires", e.At(held.Until())),
				fmt.Sprintf("B.Wait returned at %s", e.At(r.End)))
		}
		e.C.Blocked(key, "B holds the lock")
		e.B.Releases(key, t2, "its Wait has returned")
	})
}

func checkWaitAnyKey(e *harness.Env) {
	base := e.Key()
	names := []string{base + "*", base + "\x00z", base + " z", base + "\r\n", base + "{", base + "}", "{" + base + "}", base + "}{", base + "{x}", "{}" + base,
		base + "\xff", base + "日本", base + strings.Repeat("n", 251-len(base)), base + strings.Repeat("n", names.Limit-len(base))}
	e.Spread(len(names), func(i int) {
		key, t1, t2 := names[i], e.Token(), e.Token()
		ctx, cancel := context.WithTimeout(e.Ctx, harness.OpTimeout)
		defer cancel()
		if r := e.A.DoContext(ctx, "Wait", key, t1, harness.Long); errors.Is(r.Err, errors.ErrUnsupported) {
			e.B.Takes(key, t2, harness.Long, "A's Wait returned errors.ErrUnsupported, so it did nothing")
			return
		} else {
			e.A.Must(r, true, "this key is as good as any other")
		}
		waiter := e.B.Waits(ctx, key, t2, harness.Long)
		e.C.Blocked(key, "A holds the lock")
		released := e.A.Releases(key, t1, "A holds the lock")
		e.B.Must(e.Outcome(waiter, released.End, "A has released the lock"), true, "A has released the lock, and B is the head of the queue")
		e.B.Releases(key, t2, "its Wait has returned")
	})
}
