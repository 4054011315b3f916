package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golockers/locker"
)

const (
	ruleWaitFree = "Wait takes the lock as Acquire does when it is free."
	ruleWaitTurn = "Wait: first come, first served; a release hands the lock to the next in the queue directly. Acquire does " +
		"not pass a queue on the same Locker."
	ruleWaitDeadline = "Wait's deadline is on this process's monotonic clock and never after the real expiry."
	ruleWaitLeave    = "Wait: leaving the queue leaves nothing; a grant that arrives meanwhile is released or passed " +
		"on: never lost. The error wraps both ctx's error and ErrHeld."
	ruleWaitUnsupported = "Watch, Wait and Fence may return errors.ErrUnsupported: then nothing has happened, and the caller " +
		"goes on in another way, with the same token."
	ruleWaitVanished = "Wait: a holder that vanished costs the queue its ttl."
)

func waitChecks() []check {
	list := []check{{
		name:   "wait/free-at-once",
		rule:   ruleWaitFree,
		causes: "a Wait that joins a queue without trying, or whose lock is not the one that Acquire, Extend and Release know.",
		run:    checkWaitFree,
	}, {
		name:  "wait/unsupported",
		rule:  ruleWaitUnsupported,
		needs: needsNoWait,
		causes: "a place in the queue that is given up in the background after Wait has returned: that releases the lock " +
			"which the same token has acquired meanwhile in another way.",
		run: checkWaitUnsupported,
	}, {
		name:   "wait/in-turn",
		rule:   ruleWaitTurn,
		causes: "a release that wakes all waiters and lets them race, or a queue that serves the last one first.",
		run:    checkWaitInTurn,
	}, {
		name: "wait/place-kept",
		rule: ruleWaitTurn + " " + ruleWaitVanished,
		causes: "a waiter that finds the lock free, or the holder's time over, and joins the queue again at its end; a lock that " +
			"goes to the first that looks after its holder vanished; a place that is lost when the holder extends, or when " +
			"another attempt is refused.",
		run: checkWaitPlaceKept,
	}, {
		name: "wait/own-ttl",
		rule: "Wait takes the lock for the ttl that it was asked for. " + ruleWaitDeadline,
		causes: "a grant with the ttl of the holder before, of another waiter, or of the adapter's own; a lock that is granted " +
			"by its place alone, and a ttl that is looked up somewhere else.",
		run: checkWaitOwnTTL,
	}, {
		name: "wait/token-in-line",
		rule: "A token that waits in the queue does not hold the lock: Extend, Release and Fence are false, and it keeps its place.",
		causes: "comparing with a record of the queue in place of the lock's value; a Release that takes its token out of the " +
			"queue, and leaves its Wait without a turn.",
		run: checkWaitTokenInLine,
	}, {
		name:   "wait/not-passed",
		rule:   ruleWaitTurn,
		causes: "a release that frees the lock before the next in the queue has it, while Acquire does not look at the queue.",
		run:    checkWaitNotPassed,
	}, {
		name: "wait/deadline",
		rule: ruleWaitDeadline,
		causes: "a deadline counted from when the news of the grant arrived, not from a moment before the grant; or from " +
			"when the waiter joined the queue, which is so early that it has passed when the turn comes.",
		run: checkWaitDeadline,
	}, {
		name:   "wait/cancelled",
		rule:   ruleWaitLeave,
		causes: "a waiter that stays in the queue after its ctx has ended and is handed a lock that is never released.",
		run:    checkWaitCancelled,
	}, {
		name: "wait/storm",
		rule: ruleWaitLeave + " " + ruleExclusive,
		causes: "a grant that arrives while its waiter is leaving and is neither released nor passed on; a waiter that leaves " +
			"and takes another's place in the queue with it.",
		run: checkWaitStorm,
	}, {
		name:   "wait/holder-vanishes",
		rule:   ruleWaitVanished + " " + ruleNotEarly,
		causes: "a queue that moves only after a release, or a waiter that trusts the holder's ttl as it was when it joined.",
		run:    checkWaitVanished,
	}, {
		name: "wait/first-leaves",
		rule: ruleWaitVanished + " " + ruleWaitLeave,
		causes: "only the first in line watches for the holder's expiry, and when it leaves, the one behind it is not told that it " +
			"is first now.",
		run: checkWaitFirstLeaves,
	}, {
		name:   "wait/context",
		rule:   ruleDoneBefore + " " + ruleNothingLeft,
		causes: "joining the queue before looking at ctx, or a goroutine for each waiter that does not end with it.",
		run:    checkWaitContext,
	}, {
		name:   "wait/any-name",
		rule:   ruleAnyName + " Where Wait cannot do a name, it is errors.ErrUnsupported, and nothing happened.",
		causes: "a queue whose own key is derived from the name in a way that does not carry every name.",
		run:    checkWaitAnyName,
	}}
	for i := range list {
		if list[i].needs == 0 {
			list[i].needs = needsWait
		}
	}
	return list
}

func checkWaitFree(e *env) {
	key, t1, t2 := e.key(), e.token(), e.token()
	wait := func(c *client, token string, ttl time.Duration, why string) call {
		ctx, cancel := context.WithTimeout(e.ctx, opTimeout)
		defer cancel()
		r := c.must(c.doCtx(ctx, "Wait", key, token, ttl), true, why)
		if left := r.deadline.Sub(r.start); left < ttl/2 || left > ttl+r.end.Sub(r.start) {
			e.fail(fmt.Sprintf("a deadline about %v from now", ttl), fmt.Sprintf("it is %v after the Wait was started", left))
		}
		return r
	}
	wait(e.A, t1, long, "the key is fresh")
	e.B.blocked(key, "A holds the lock")
	e.A.takes(key, t1, long, "its token holds the lock")
	wait(e.A, t1, long, "its own token holds the lock already")
	e.A.extends(key, t1, long, "A holds the lock")
	e.A.releases(key, t1, "A holds the lock")
	e.A.cannotRelease(key, t1, "A has released it, once, however often it was acquired")
	e.B.takes(key, t2, long, "A has released it")
	e.B.releases(key, t2, "B holds the lock")

	held := wait(e.A, t1, 700*time.Millisecond, "the key is free")
	e.C.takesOver(held, e.token(), long)
}

// checkWaitUnsupported is for a Locker that has Wait, but not here.
func checkWaitUnsupported(e *env) {
	w := e.A.l.(locker.Waiter)
	e.until(30, 2*time.Second, func() {
		key, token := e.key(), e.token()
		other := e.B.takes(key, e.token(), long, "the key is fresh")
		if _, err := w.Wait(e.ctx, key, token, long); !errors.Is(err, errors.ErrUnsupported) {
			e.fail("A.Wait says errors.ErrUnsupported, as it did at first", fmt.Sprintf("A.Wait says %v", err))
		}
		e.note("A.Wait(%s, %s) is errors.ErrUnsupported", e.short(key), e.short(token))
		e.B.releases(key, other.token, "B holds the lock")
		e.A.takes(key, token, long, "B has released it")
		e.sleep(5 * time.Millisecond)
		e.A.extends(key, token, long, "A holds the lock")
		e.C.blocked(key, "A holds the lock")
		e.A.releases(key, token, "A holds the lock")
	})
}

func checkWaitInTurn(e *env) {
	e.patiently(func(rest time.Duration) (bool, string, string) {
		const waiters = 6
		key, token := e.key(), e.token()
		e.A.takes(key, token, long, "the key is fresh")
		ctx, cancel := context.WithCancel(e.ctx)
		defer cancel()
		var mu sync.Mutex
		var order []string
		var all sync.WaitGroup
		for i := range waiters {
			t := e.token()
			e.goes(&all, func() {
				r := e.B.doCtx(ctx, "Wait", key, t, long)
				mu.Lock()
				order = append(order, fmt.Sprint(i+1))
				mu.Unlock()
				e.B.must(r, true, "those before it in the queue have released the lock")
				e.B.releases(key, t, "its Wait has returned")
			})
			e.sleep(rest)
		}
		e.sleep(e.standing()) // all are in the queue: one that is served before another joins shows no order
		e.A.releases(key, token, "A holds the lock")
		e.finish(&all, cancel, "all six waiters have their turn")
		if got := strings.Join(order, " "); got != "1 2 3 4 5 6" {
			return false, "waiters that join one after the other, on one Locker, have the lock in the order 1 2 3 4 5 6",
				fmt.Sprintf("it was %s (%v between one and the next)", got, rest)
		}
		return true, "", ""
	})
}

func checkWaitNotPassed(e *env) {
	const locks = 8
	e.patiently(func(rest time.Duration) (bool, string, string) {
		var passed atomic.Int64
		e.each(locks, func(int) {
			if barges(e, rest) {
				passed.Add(1)
			}
		})
		return passed.Load() == 0, "Acquire on B is refused while another waits in the queue on B, also when A releases the lock",
			fmt.Sprintf("of %d locks B.Acquire had %d, %v after that Wait was called", locks, passed.Load(), rest)
	})
}

// passes lets B wait in the queue and call Acquire with another token while A releases the lock. It reports
// whether the Acquire overtook the queue.
func barges(e *env, rest time.Duration) bool {
	key, t1, t2, t3 := e.key(), e.token(), e.token(), e.token()
	e.A.takes(key, t1, long, "the key is fresh")
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	waiter := e.B.waits(ctx, key, t2, long)
	e.sleep(rest)
	var released time.Time
	passed := call{}
	over := make(chan struct{})
	e.each(2, func(i int) {
		if i == 0 {
			defer close(over)
			e.sleep(5 * time.Millisecond)
			released = e.A.releases(key, t1, "A holds the lock").start
			e.sleep(15 * time.Millisecond)
			return
		}
		for last := false; !passed.ok && !last; {
			select {
			case <-over:
				last = true
			default:
			}
			passed = e.B.answers(e.B.acquire(key, t3, long))
			e.sleep(100 * time.Microsecond)
		}
	})
	if passed.ok {
		e.B.release(key, t3)
		cancel()
		if r := <-waiter; r.ok {
			e.B.release(key, t2)
		}
		return true
	}
	e.B.must(e.outcome(waiter, released, "A has released the lock"), true, "A has released the lock, and it is next in the queue")
	e.B.releases(key, t2, "its Wait has returned")
	return false
}

func checkWaitDeadline(e *env) {
	const ttl = 1500 * time.Millisecond
	by := []string{"release", "expiry"}
	e.each(len(by), func(i int) {
		key, t1, t2 := e.key(), e.token(), e.token()
		const hold = 3500 * time.Millisecond
		first := long
		if by[i] == "expiry" {
			first = hold
		}
		held := e.A.takes(key, t1, first, "the key is fresh")
		waiter := e.B.waits(e.ctx, key, t2, ttl)
		granted, due := held.until(), held.end.Add(first+e.granularity())
		e.sleepUntil(held.start.Add(hold)) // longer than the waiter's own ttl, and than it takes to join
		if by[i] == "release" {
			r := e.A.releases(key, t1, "A holds the lock")
			granted, due = r.start, r.end
		}
		r := e.B.must(e.outcome(waiter, due, "the lock is free by "+by[i]+", and it is next in the queue"), true, "it is next in the queue")
		if r.deadline.Before(granted) {
			e.fail(fmt.Sprintf("a deadline after the grant, which was not before %s", e.at(granted)),
				fmt.Sprintf("it is at %s", e.at(r.deadline)))
		}
		e.C.takesWhen(key, e.token(), long, r.deadline, r.end.Add(ttl),
			fmt.Sprintf("B's Wait said that it holds the lock until %s", e.at(r.deadline)))
	})
}

// left checks what a Wait says that ctx ended.
func leftQueue(e *env, ctx context.Context, r call, inLine bool) (ok bool, expected, happened string) {
	if r.ok || !r.over(ctx) || !errors.Is(r.err, ctx.Err()) || inLine && !errors.Is(r.err, locker.ErrHeld) {
		return false, fmt.Sprintf("an error for which errors.Is holds with %q and with locker.ErrHeld: its context has ended "+
			"while it stood in the queue", fmt.Sprint(ctx.Err())), "B.Wait = " + r.result()
	}
	return true, "", ""
}

func checkWaitCancelled(e *env) {
	e.surely(func(rest time.Duration) (ok bool, expected, happened string) {
		key, t1 := e.key(), e.token()
		e.A.takes(key, t1, long, "the key is fresh")
		cancelled, cancel := context.WithCancel(e.ctx)
		expired, cancel2 := context.WithTimeout(e.ctx, rest)
		defer cancel2()
		w1, w2 := e.B.waits(cancelled, key, e.token(), long), e.C.waits(expired, key, e.token(), long)
		e.sleep(rest)
		cancel()
		e.note("the contexts of both waiters have ended")
		now := time.Now()
		r1, r2 := e.outcome(w1, now, "its context was cancelled"), e.outcome(w2, now, "its context's deadline passed")
		if ok, expected, happened = leftQueue(e, cancelled, r1, true); !ok {
			return
		}
		if ok, expected, happened = leftQueue(e, expired, r2, true); !ok {
			return
		}
		released := e.A.releases(key, t1, "A holds the lock")
		e.B.takesFree(key, e.token(), long, released.start, released.end, "A has released it, and both waiters have left the queue")
		return true, "", ""
	})
}

// checkWaitStorm lets many waiters come and leave at random, and some that stay until they are served.
func checkWaitStorm(e *env) {
	key := e.key()
	const ttl = long // a lost grant is a time in which nobody is served
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	e.note("many waiters on A, B and C come and leave at random, and hold the lock for a moment when they have it")
	var inside, entered atomic.Int64
	serve := func(c *client, r call) {
		if n := inside.Add(1); n > 1 {
			e.fail("one at a time", fmt.Sprintf("%d at the same time", n))
		}
		entered.Add(1)
		if rand.IntN(2) == 0 {
			e.sleep(rand.N(time.Millisecond))
		}
		inside.Add(-1)
		c.must(c.quietly("Release", key, r.token, 0), true, "its Wait has returned")
	}
	deadline := time.Now().Add(2500 * time.Millisecond)
	var all sync.WaitGroup
	for i := range 18 {
		c, patient := e.clients()[i%3], i < 6
		e.goes(&all, func() {
			for n := 0; n == 0 || n < 100 && time.Now().Before(deadline); n++ {
				mine, leave := ctx, context.CancelFunc(func() {})
				switch {
				case patient:
				case rand.IntN(2) == 0:
					mine, leave = context.WithTimeout(ctx, rand.N(12*time.Millisecond))
				default:
					mine, leave = context.WithCancel(ctx)
					time.AfterFunc(rand.N(12*time.Millisecond), leave)
				}
				r := c.send(mine, call{client: c, op: "Wait", key: key, token: randomToken(), ttl: ttl})
				if r.ok {
					serve(c, r)
				} else if ctx.Err() == nil && (!r.over(mine) || !errors.Is(r.err, mine.Err())) {
					leave()
					c.must(r, true, "its context has not ended, or that is not its error")
				}
				leave()
				if patient {
					e.sleep(rand.N(2 * time.Millisecond))
				}
			}
		})
	}
	e.finish(&all, cancel, "18 waiters on A, B and C, of whom 12 leave at random, and no grant is lost: all come to an end")
	e.note("%d turns were taken", entered.Load())
	last, token := time.Now(), e.token()
	e.C.takesFree(key, token, ttl, last, last, "all have left")
}

func checkWaitVanished(e *env) {
	e.each(3, func(i int) {
		var key, t2 string
		var held call
		var waiter <-chan call
		e.inTime("A extends a lock for which B waits", func(scale time.Duration) bool {
			var t1 string
			key, t1, t2 = e.key(), e.token(), e.token()
			ttl := []time.Duration{100 * time.Millisecond, time.Second, scale * 700 * time.Millisecond}[i]
			held = e.A.takes(key, t1, ttl, "the key is fresh")
			ctx, cancel := context.WithCancel(e.ctx)
			e.tb.Cleanup(cancel)
			waiter = e.B.waits(ctx, key, t2, long)
			if i < 2 {
				return true
			}
			e.sleep(200 * time.Millisecond) // the holder lives longer than it seemed when the waiter joined
			next := e.A.extend(key, t1, scale*1500*time.Millisecond)
			if next.err == nil && !next.ok && !next.end.Before(held.until()) {
				cancel()
				<-waiter
				return false
			}
			held = e.A.must(next, true, "A holds the lock")
			return true
		})
		due := held.end.Add(held.ttl + e.granularity())
		e.sleepUntil(held.until())
		r := e.B.must(e.outcome(waiter, due, "the holder's ttl has passed"), true, "the holder's ttl has passed, and it is next in the queue")
		if r.end.Before(held.until()) {
			e.fail(fmt.Sprintf("not before %s, when A's time is up", e.at(held.until())),
				fmt.Sprintf("B.Wait had it at %s", e.at(r.end)))
		}
		e.C.blocked(key, "B holds the lock")
		e.B.releases(key, t2, "its Wait has returned")
	})
}

func checkWaitContext(e *env) {
	for how, ctx := range doneContexts(e.ctx) {
		key := e.key()
		why := "its context was " + how + " before the call"
		e.ended(ctx, e.A.doCtx(ctx, "Wait", key, e.token(), long), why)
		token := e.token()
		e.B.takes(key, token, long, "the key is fresh: A's Wait, "+why+", did nothing")
		e.ended(ctx, e.A.doCtx(ctx, "Wait", key, e.token(), long), why)
		e.B.releases(key, token, "B holds the lock")
		e.C.takes(key, e.token(), long, "B has released it: A's Wait, "+why+", did nothing")
	}
	const waiters, few = 150, 60
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	var all sync.WaitGroup
	for i := range waiters {
		key := e.key()
		if i%2 == 0 {
			e.A.takes(key, e.token(), long, "the key is fresh")
		}
		e.goes(&all, func() { // those of free keys have them; those in the queue leave
			e.B.send(ctx, call{client: e.B, op: "Wait", key: key, token: randomToken(), ttl: long})
		})
	}
	e.sleep(100 * time.Millisecond)
	cancel()
	e.finish(&all, cancel, "all waiters have left after their context has ended")
	if n, stacks := e.settles(few, e.patience()+5*time.Second); n > few {
		e.note("%d waiters on B, half of them in the queue; then their context is cancelled", waiters)
		e.fail(fmt.Sprintf("at most some goroutines are left, of connections and the like (%d)", few),
			fmt.Sprintf("%d goroutines are left that were started on the way:\n%s", n, stacks))
	}
}

func checkWaitAnyName(e *env) {
	base := e.key()
	names := []string{base + "*", base + "\x00z", base + " z", base + "\r\n", base + "{", base + "}", "{" + base + "}", base + "}{", base + "{x}", "{}" + base,
		base + "\xff", base + "日本", base + strings.Repeat("n", 251-len(base)), base + strings.Repeat("n", nameLimit-len(base))}
	e.spread(len(names), func(i int) {
		key, t1, t2 := names[i], e.token(), e.token()
		ctx, cancel := context.WithTimeout(e.ctx, opTimeout)
		defer cancel()
		if r := e.A.doCtx(ctx, "Wait", key, t1, long); errors.Is(r.err, errors.ErrUnsupported) {
			e.B.takes(key, t2, long, "A's Wait was errors.ErrUnsupported, and that has done nothing")
			return
		} else if r.err != nil {
			e.A.must(r, true, "it is a name like any other")
		}
		waiter := e.B.waits(ctx, key, t2, long)
		e.C.blocked(key, "A holds the lock")
		released := e.A.releases(key, t1, "A holds the lock")
		e.B.must(e.outcome(waiter, released.end, "A has released the lock"), true, "A has released the lock, and it is next in the queue")
		e.B.releases(key, t2, "its Wait has returned")
	})
}
