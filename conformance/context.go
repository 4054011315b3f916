package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/golockers/locker/conformance/internal/harness"
)

func contextChecks() []harness.Check {
	return []harness.Check{{
		Name:  "context/already-done",
		Rules: []string{c9Before},
		Causes: "a context that is not passed on to a client library that takes one, or not examined if the library takes " +
			"none; an error of the library in place of ctx's.",
		Run: checkAlreadyDone,
	}, {
		Name:   "context/future-deadline",
		Rules:  []string{c9During},
		Causes: "a separate path for contexts with a deadline, which does not do, or does not return, the same.",
		Run:    checkFutureDeadline,
	}, {
		Name:  "context/no-late-success",
		Rules: []string{c9During},
		Causes: "a context that is not passed on to the client library; a library that ignores contexts, or was not told to " +
			"honor them, and an operation that does not check ctx when the library returns; false in place of ctx's error.",
		Run: checkNoLateSuccess,
	}, {
		Name:  "context/cancel-during-call",
		Rules: []string{c9During, c9InOrder, c4Late},
		Causes: "an error of the library in place of ctx's; a lock that gets its expiry in a second step, which was never done " +
			"(SETNX, then EXPIRE); an abandoned call in a goroutine that acquires after the Release that was to undo it.",
		Run: checkCancelDuringCall,
	}, {
		Name:   "context/no-leak",
		Rules:  []string{c14NothingLeft},
		Causes: "a goroutine, or a timer that starts one, for every lock or every call, which outlives it.",
		Run:    checkNoLeak,
	}}
}

// optional returns the methods of optional interfaces that succeed for the holder of a lock, and what
// they need.
func optional() map[string]harness.Needs {
	return map[string]harness.Needs{"Wait": harness.NeedsWait, "Watch": harness.NeedsWatch, "Fence": harness.NeedsFence,
		"Inspect": harness.NeedsInspect, "List": harness.NeedsList}
}

// doneContexts returns contexts that have ended in different ways.
func doneContexts(parent context.Context) map[string]context.Context {
	cancelled, cancel := context.WithCancel(parent)
	cancel()
	caused, cancelCause := context.WithCancelCause(parent)
	cancelCause(errors.New("the cause, which is not the context's error"))
	expired, cancel := context.WithDeadline(parent, time.Now().Add(-time.Hour))
	cancel()
	return map[string]context.Context{"canceled": cancelled, "canceled with a cause": caused, "past its deadline": expired}
}

func checkAlreadyDone(e *harness.Env) {
	for how, ctx := range doneContexts(e.Ctx) {
		key, token := e.Key(), e.Token()
		why := "its context was " + how + " before the call"
		e.Note("the next context is %s", how)
		e.Ended(ctx, e.A.DoContext(ctx, "Acquire", key, token, harness.Long), why)
		e.B.Takes(key, token, harness.Long, "the key is fresh: A's Acquire did nothing, since "+why)
		e.Ended(ctx, e.A.DoContext(ctx, "Acquire", key, e.Token(), harness.Long), why)

		e.Note("the next context is %s", how)
		e.Ended(ctx, e.B.DoContext(ctx, "Extend", key, token, time.Millisecond), why)
		e.Ended(ctx, e.B.DoContext(ctx, "Acquire", key, token, time.Millisecond), why)
		e.Ended(ctx, e.B.DoContext(ctx, "Release", key, token, 0), why)
		e.Sleep(5 * time.Millisecond)
		e.C.Blocked(key, "B holds the lock: its Extend and its Release did nothing, since "+why)
		e.B.Releases(key, token, "B holds the lock")
	}
}

func checkFutureDeadline(e *harness.Env) {
	// Adapters may do their work differently if the deadline is near.
	ahead := []time.Duration{300 * time.Millisecond, time.Second, 2500 * time.Millisecond, 10 * time.Second, time.Hour, 200 * 365 * 24 * time.Hour}
	const times, tries = 5, 15
	e.Each(len(ahead), func(i int) {
		do := func(op, key, token string) (r harness.Call, ok bool) {
			ctx, cancel := context.WithTimeout(e.Ctx, ahead[i])
			defer cancel()
			r = e.A.DoContext(ctx, op, key, token, harness.Long)
			if r.Err == nil || !r.Over(ctx) {
				return e.A.Must(r, true, fmt.Sprintf("the context's deadline was %v ahead", ahead[i])), true
			}
			e.Ended(ctx, r, "its context ended during the call")
			return r, false // the machine was too slow
		}
		done := 0
		for try := 0; done < times && try < tries; try++ {
			key, token := e.Key(), e.Token()
			if _, ok := do("Acquire", key, token); !ok {
				continue
			}
			e.B.Blocked(key, "A holds the lock")
			if _, ok := do("Extend", key, token); !ok {
				continue
			}
			also := true
			for op, needs := range optional() {
				if also && e.Has(needs) {
					_, also = do(op, key, token)
				}
			}
			if !also {
				continue
			}
			if _, ok := do("Release", key, token); !ok {
				continue
			}
			e.B.Takes(key, e.Token(), harness.Long, "A has released it")
			done++
		}
		if done == 0 {
			e.Inconclusive("in none of %[2]d tries Acquire, Extend and Release each returned within %[1]v", ahead[i], tries)
		}
	})
}

// checkNoLateSuccess ends contexts within the first half of the time that the quickest calls take.
// A single success after that proves nothing, since ctx may end between the Locker's last look at
// it and the return; but if most calls succeed, the Locker does not look. If calls are so quick
// that this gap may be all of a call, a proxy slows them down; without a network, the check is
// skipped.
func checkNoLateSuccess(e *harness.Env) {
	type cut struct {
		harness.Call
		after time.Duration // from the start of the call to the end of its context
	}
	var cuts []cut
	c, quickest := e.A, e.Quickest()
	if quickest < time.Millisecond && e.Has(harness.NeedsNetwork) {
		f := newFaulty(e)
		f.p.Delay(5 * time.Millisecond)
		e.Note("each request and each reply of D is delayed by 5ms")
		c, quickest = f.Client, harness.OpTimeout
	}
	if quickest < time.Millisecond {
		e.Skip("an operation takes less than a millisecond, and there is no network to slow down")
	}
	const enough = 10
	e.Note("repeatedly, %s acquires a fresh key, and then makes a call with it whose context ends meanwhile", c.Name)
	count := func() (early, late, successes int) {
		for _, r := range cuts {
			if r.after >= quickest/2 {
				continue
			}
			early++
			if r.End.Sub(r.Start) < quickest*3/4 {
				continue // it ended early, as soon as its context did
			}
			late++
			if r.Err == nil {
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
			key, token := e.Key(), harness.RandomToken()
			undisturbed := c.Must(c.Quietly("Acquire", key, token, harness.Long), true, "the key is fresh")
			quickest = min(quickest, undisturbed.End.Sub(undisturbed.Start))
			ctx, cancel := context.WithCancel(e.Ctx)
			var ended time.Time
			done := make(chan struct{})
			go func() {
				defer close(done)
				time.Sleep(rand.N(quickest/2 + 1))
				cancel()
				ended = time.Now()
			}()
			r := c.QuietlyContext(ctx, op, key, token, asked(op, harness.Long))
			<-done
			switch {
			case r.Err == nil && !r.OK:
				c.Must(r, true, c.Name+" holds the lock; if the context has ended, the call returns its error")
			case r.Err != nil && r.End.After(ended):
				e.Ended(ctx, r, "its context ended during the call")
			}
			cuts = append(cuts, cut{r, ended.Sub(r.Start)})
			c.Quietly("Release", key, token, 0)
		}
	}
	early, late, successes := count()
	if early < enough {
		e.Inconclusive("of %s, the contexts of only %d ended within the first half of %v, the time of the quickest",
			harness.Plural(len(cuts), "operation"), early, quickest)
	}
	if late >= enough && successes > late/2 {
		e.Note("%s makes calls that take at least %v, and whose context ends within the first half of that", c.Name, quickest)
		e.Fail("those that return well after their context has ended return its error",
			fmt.Sprintf("%d of %d succeeded", successes, late))
	}
}

func checkCancelDuringCall(e *harness.Env) {
	e.Lanes(120, 3*time.Second, func() {
		key, token := e.Key(), e.Token()
		const ttl = 250 * time.Millisecond
		ctx, cancel := context.WithTimeout(e.Ctx, rand.N(1500*time.Microsecond))
		if rand.IntN(2) == 0 {
			cancel()
			ctx, cancel = context.WithCancel(e.Ctx)
			stop := time.AfterFunc(rand.N(1500*time.Microsecond), cancel)
			defer stop.Stop()
		}
		defer cancel()
		r := e.A.QuietlyContext(ctx, "Acquire", key, token, ttl)
		switch {
		case r.Err == nil:
			e.A.Must(r, true, "the key is fresh")
		case !r.Over(ctx):
			e.A.Must(r, true, "the key is fresh, and the context has not ended")
		default:
			e.Ended(ctx, r, "its context ended during the call")
		}
		released := e.A.Quietly("Release", key, token, 0)
		if released.Err != nil || !released.OK && r.Err == nil && released.End.Before(r.Until()) {
			e.A.Must(released, true, "its Acquire returned "+r.Result())
		}
		latest := released.End
		if r.Err != nil {
			latest = latest.Add(ttl)
		}
		e.Note("A.Acquire(%s, %s, %v) with a context that ends during the call = %s; A.Release = %s", e.Short(key),
			e.Short(token), ttl, r.Result(), released.Result())
		e.B.TakesWhen(key, e.Token(), harness.Long, released.Start, latest, "A has released it; an Acquire that was "+
			"under way when its context ended may hold it for at most its ttl")
	})
}

// checkNoLeak makes each call many times with each outcome.
func checkNoLeak(e *harness.Env) {
	const calls, few = 200, 60
	e.Note("A makes each call %d times with each outcome: true, false, and its context's error", calls)
	ctx, cancel := context.WithCancel(e.Ctx)
	defer cancel()
	ended, end := context.WithCancel(e.Ctx)
	end()
	taken := e.B.Takes(e.Key(), e.Token(), harness.Long, "the key is fresh").Key
	ops := []string{"Acquire", "Extend"}
	for op, needs := range optional() {
		if e.Has(needs) {
			ops = append(ops, op)
		}
	}
	ops = append(ops, "Release")
	e.Spread(calls, func(int) {
		key, token := e.Key(), harness.RandomToken()
		for _, op := range ops {
			e.A.Must(e.A.QuietlyContext(ctx, op, key, token, asked(op, time.Hour)), true, "no other token uses the key")
			switch op {
			case "Wait", "Acquire", "Extend", "Release", "Fence":
				midway, cancel := context.WithTimeout(e.Ctx, time.Millisecond+rand.N(time.Millisecond))
				if op != "Wait" { // whose only other answer is an error
					midway, cancel = e.Ctx, func() {}
				}
				if r := e.A.QuietlyContext(midway, op, taken, token, asked(op, time.Hour)); op != "Wait" {
					e.A.Must(r, false, "B's token holds the lock")
				}
				cancel()
			}
			e.A.QuietlyContext(ended, op, key, harness.RandomToken(), asked(op, time.Hour))
		}
		e.A.Must(e.A.QuietlyContext(ctx, "Acquire", key, token, time.Millisecond), true, "it is free")
		midway, cancel := context.WithTimeout(e.Ctx, rand.N(time.Millisecond))
		defer cancel()
		e.A.QuietlyContext(midway, "Acquire", e.Key(), token, time.Millisecond)
	})
	cancel()
	e.Settles(few)
}
