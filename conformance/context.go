package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

const (
	ruleDoneBefore = "C9 Context: done before the call is its error, and nothing happened."
	ruleDoneDuring = "C9 Context: done during the call, the method returns ctx's error, starts nothing more, and a " +
		"Release of that token on the same Locker waits its turn behind what is still under way."
	ruleNothingLeft = "C14 Nothing left behind: after release or expiry the adapter keeps no goroutine, timer or map " +
		"entry for a lock."
)

func contextChecks() []check {
	return []check{{
		name: "context/done-before",
		rule: ruleDoneBefore,
		causes: "a context that is not passed on to a client library which takes one, or not looked at where the " +
			"library takes none; an error of the library's own in place of ctx's.",
		run: checkDoneBefore,
	}, {
		name:   "context/deadline-ahead",
		rule:   "C9 Context: a deadline that has not passed changes nothing.",
		causes: "a path of its own for contexts with a deadline that does not do, or does not say, the same.",
		run:    checkDeadlineAhead,
	}, {
		name: "context/no-late-success",
		rule: ruleDoneDuring,
		causes: "a context that is not passed on to the client library, or a library that knows none or was not told to mind " +
			"it, and an operation that does not look at ctx when the library returns; false in place of ctx's error.",
		run: checkNoLateSuccess,
	}, {
		name: "context/cancelled-midway",
		rule: ruleDoneDuring + " What has left the process may still take effect: then the key is held by nobody for " +
			"at most its ttl.",
		causes: "an error of the library's own in place of ctx's; a lock that gets its expiry in a second step, which did not " +
			"come about (SETNX, then EXPIRE); a call that is left behind in a goroutine and acquires after the Release that " +
			"was to undo it.",
		run: checkCancelledMidway,
	}, {
		name:   "context/nothing-left",
		rule:   ruleNothingLeft,
		causes: "a goroutine, or a timer that runs one, for every lock or every call, which outlives it.",
		run:    checkNothingLeft,
	}}
}

// doneContexts are contexts that have ended, each in its way.
func doneContexts(parent context.Context) map[string]context.Context {
	cancelled, cancel := context.WithCancel(parent)
	cancel()
	caused, cancelCause := context.WithCancelCause(parent)
	cancelCause(errors.New("the cause, which is not the error"))
	expired, cancel := context.WithDeadline(parent, time.Now().Add(-time.Hour))
	cancel()
	return map[string]context.Context{"cancelled": cancelled, "cancelled with a cause": caused, "past its deadline": expired}
}

func checkDoneBefore(e *env) {
	for how, ctx := range doneContexts(e.ctx) {
		key, token := e.key(), e.token()
		why := "its context was " + how + " before the call"
		e.note("the next context is %s", how)
		e.ended(ctx, e.A.doCtx(ctx, "Acquire", key, token, long), why)
		e.B.takes(key, token, long, "the key is fresh: A's Acquire, "+why+", did nothing")
		e.ended(ctx, e.A.doCtx(ctx, "Acquire", key, e.token(), long), why)

		e.note("the next context is %s", how)
		e.ended(ctx, e.B.doCtx(ctx, "Extend", key, token, time.Millisecond), why)
		e.ended(ctx, e.B.doCtx(ctx, "Acquire", key, token, time.Millisecond), why)
		e.ended(ctx, e.B.doCtx(ctx, "Release", key, token, 0), why)
		e.sleep(5 * time.Millisecond)
		e.C.blocked(key, "B holds the lock: its Extend and its Release, "+why+", did nothing")
		e.B.releases(key, token, "B holds the lock")
	}
}

func checkDeadlineAhead(e *env) {
	// From near to far: adapters may choose how to do it by how near the deadline is.
	ahead := []time.Duration{300 * time.Millisecond, time.Second, 2500 * time.Millisecond, 10 * time.Second, time.Hour}
	const times, tries = 5, 15
	e.each(len(ahead), func(i int) {
		do := func(op, key, token string) (r call, ok bool) {
			ctx, cancel := context.WithTimeout(e.ctx, ahead[i])
			defer cancel()
			r = e.A.doCtx(ctx, op, key, token, long)
			if r.err == nil || !r.over(ctx) {
				return e.A.must(r, true, fmt.Sprintf("the context's deadline was %v ahead", ahead[i])), true
			}
			e.ended(ctx, r, "its context ended during the call")
			return r, false // so slow a machine
		}
		done := 0
		for try := 0; done < times && try < tries; try++ {
			key, token := e.key(), e.token()
			if _, ok := do("Acquire", key, token); !ok {
				continue
			}
			e.B.blocked(key, "A holds the lock")
			if _, ok := do("Extend", key, token); !ok {
				continue
			}
			if _, ok := do("Release", key, token); !ok {
				continue
			}
			e.B.takes(key, e.token(), long, "A has released it")
			done++
		}
		if done == 0 {
			e.inconclusive("no Acquire, Extend and Release were done within %v, in %d tries", ahead[i], tries)
		}
	})
}

// checkNoLateSuccess looks at calls whose context ended in the first half of what the quickest of them takes.
// That one of them is a success is not wrong in itself, since ctx may end while the result is on its way from
// the last look at it to the caller; but it is when most of them are. On a backend so quick that all of a call
// may be that way, a proxy makes the calls slower; where there is no network, nothing can be seen.
func checkNoLateSuccess(e *env) {
	type cut struct {
		call
		after time.Duration // from the start of the call to the end of its context
	}
	var cuts []cut
	c, quickest := e.A, e.quickest()
	if quickest < time.Millisecond && e.has(needsNetwork) {
		f := newFaulty(e)
		f.p.delay(5 * time.Millisecond)
		e.note("each request of D, and each reply, takes 5ms longer")
		c, quickest = f.client, opTimeout
	}
	if quickest < time.Millisecond {
		e.skip("an operation takes less than a millisecond, and there is no network that could be made slower")
	}
	const enough = 10
	e.note("again and again: %s acquires a fresh key, and then does an operation with it whose context ends meanwhile", c.name)
	count := func() (early, late, successes int) {
		for _, r := range cuts {
			if r.after >= quickest/2 {
				continue
			}
			early++
			if r.end.Sub(r.start) < quickest*3/4 {
				continue // as soon as its context ended
			}
			late++
			if r.err == nil {
				successes++
			}
		}
		return early, late, successes
	}
	for round, end := 0, time.Now().Add(10*time.Second); ; round++ {
		if early, _, _ := count(); round >= 40 && early >= enough || round > 0 && time.Now().After(end) {
			break
		}
		for _, op := range []string{"Acquire", "Extend", "Release"} {
			key, token := e.key(), randomToken()
			undisturbed := c.must(c.quietly("Acquire", key, token, long), true, "the key is fresh")
			quickest = min(quickest, undisturbed.end.Sub(undisturbed.start))
			ctx, cancel := context.WithCancel(e.ctx)
			var ended time.Time
			done := make(chan struct{})
			go func() {
				defer close(done)
				time.Sleep(rand.N(quickest/2 + 1))
				cancel()
				ended = time.Now()
			}()
			r := c.send(ctx, call{client: c, op: op, key: key, token: token, ttl: asked(op, long)})
			<-done
			switch {
			case r.err == nil && !r.ok:
				c.must(r, true, c.name+" holds the lock; when its context has ended, the call is that error")
			case r.err != nil && r.end.After(ended):
				e.ended(ctx, r, "its context ended during the call")
			}
			cuts = append(cuts, cut{r, ended.Sub(r.start)})
			c.quietly("Release", key, token, 0)
		}
	}
	early, late, successes := count()
	if early < enough {
		e.inconclusive("of %s only %d had their context end in the first half of the %v that the quickest takes",
			plural(len(cuts), "operation"), early, quickest)
	}
	if late >= enough && successes > late/2 {
		e.note("%s does operations, which take %v at least, and whose context ends in the first half of that", c.name, quickest)
		e.fail("those that return well after that return the context's error",
			fmt.Sprintf("%d of %d succeeded", successes, late))
	}
}

func checkCancelledMidway(e *env) {
	e.lanes(120, 3*time.Second, func() {
		key, token := e.key(), e.token()
		const ttl = 250 * time.Millisecond
		ctx, cancel := context.WithTimeout(e.ctx, rand.N(1500*time.Microsecond))
		if rand.IntN(2) == 0 {
			cancel()
			ctx, cancel = context.WithCancel(e.ctx)
			stop := time.AfterFunc(rand.N(1500*time.Microsecond), cancel)
			defer stop.Stop()
		}
		defer cancel()
		r := e.A.send(ctx, call{client: e.A, op: "Acquire", key: key, token: token, ttl: ttl})
		switch {
		case r.err == nil:
			e.A.must(r, true, "the key is fresh")
		case !r.over(ctx):
			e.A.must(r, true, "the key is fresh, and its context has not ended")
		default:
			e.ended(ctx, r, "its context ended during the call")
		}
		released := e.A.quietly("Release", key, token, 0)
		if released.err != nil || !released.ok && r.err == nil && released.end.Before(r.until()) {
			e.A.must(released, true, "its Acquire came to "+r.result())
		}
		latest := released.end
		if r.err != nil {
			latest = latest.Add(ttl)
		}
		e.note("A.Acquire(%s, %s, %v) under a context that ends about now = %s; A.Release = %s", e.short(key),
			e.short(token), ttl, r.result(), released.result())
		e.B.takesWhen(key, e.token(), long, released.start, latest, "A has released it, and an Acquire that was "+
			"under way when its context ended holds it for nobody, for its ttl at most")
	})
}

func checkNothingLeft(e *env) {
	const calls, few = 120, 60
	e.note("A acquires, extends and releases %d locks, lets as many expire, and cancels as many attempts", calls)
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	e.spread(calls, func(int) {
		key, token := e.key(), randomToken()
		for _, op := range []string{"Acquire", "Extend", "Release"} {
			e.A.must(e.A.send(ctx, call{client: e.A, op: op, key: key, token: token, ttl: time.Hour}), true, "nobody else uses the key")
		}
		e.A.must(e.A.send(ctx, call{client: e.A, op: "Acquire", key: key, token: token, ttl: time.Millisecond}), true, "it is free")
		midway, cancel := context.WithTimeout(e.ctx, rand.N(time.Millisecond))
		defer cancel()
		e.A.send(midway, call{client: e.A, op: "Acquire", key: e.key(), token: token, ttl: time.Millisecond})
	})
	if n, stacks := e.settles(few, e.patience()+5*time.Second); n > few {
		e.fail(fmt.Sprintf("at most some goroutines are left, of connections and the like (%d)", few),
			fmt.Sprintf("%d goroutines are left that were started on the way:\n%s", n, stacks))
	}
}
