package conformance

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/pprof"
	"sync"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/harness"
)

func hangChecks() []harness.Check {
	return []harness.Check{{
		Name:  "fault/hang-deadline",
		Rules: []string{c9During, c10Faults},
		Causes: "a ctx that is not passed on to the client library; a library that honors deadlines only when told to (go-redis: " +
			"ContextTimeoutEnabled) or not at all: then run the call in a goroutine and abandon it; an I/O timeout returned " +
			"although ctx has ended: a socket with ctx's deadline may time out shortly before ctx ends, so compare the time " +
			"with ctx.Deadline as well.",
		Run: hangDeadline,
	}, {
		Name:  "fault/hang-leak",
		Rules: []string{c9During, c14NothingLeft},
		Causes: "a goroutine for each call that waits forever on a client without I/O timeouts, or that sends its result on " +
			"an unbuffered channel that is no longer read. Also idle connections that have goroutines of their own and stay " +
			"in the pool for long, as of an http.Transport: use an idle timeout of a few seconds in the tests.",
		Run: hangLeak,
	}, {
		Name:  "fault/hang-cancel",
		Rules: []string{c9During, c10Faults},
		Causes: "a client without I/O timeouts (redigo by default), used without a context: give it timeouts; the client's " +
			"I/O timeout returned although ctx has ended.",
		Run: hangCancel,
	}, {
		Name:  "fault/hang-waiter",
		Rules: []string{q7Dead, q9Leave},
		Needs: harness.NeedsWait,
		Causes: "a waiter that has gone, and whose cleanup gives up while the server hangs: when the server goes on, it " +
			"executes what it has received. Try to undo it until the server has answered.",
		Run: hangWaiter,
	}}
}

const (
	hangCtx = 200 * time.Millisecond // the timeout of a call to a server that hangs
	// hangFor is longer than the I/O timeout of most clients and a cleanup of five seconds together.
	hangFor = 12 * time.Second
)

// hungCall is a call of some method to a server that hangs.
type hungCall struct {
	name string
	do   func(ctx context.Context) (ok bool, err error)
}

// hungCalls returns a call of each method that D has.
func (f *faulty) hungCalls(held, token string) []hungCall {
	e := f.Env
	op := func(name, key, token string) hungCall {
		return hungCall{name, func(ctx context.Context) (bool, error) {
			r := f.DoContext(ctx, name, key, token, asked(name, pausedAsk))
			return r.OK, r.Err
		}}
	}
	calls := []hungCall{op("Acquire", e.Key(), e.Token()), op("Extend", held, token), op("Release", held, token)}
	if e.Has(harness.NeedsWait) {
		calls = append(calls, op("Wait", e.Key(), e.Token()))
	}
	if e.Has(harness.NeedsFence) {
		calls = append(calls, op("Fence", held, token))
	}
	if e.Has(harness.NeedsWatch) {
		calls = append(calls, op("Watch", e.Key(), ""))
	}
	if e.Has(harness.NeedsInspect) {
		calls = append(calls, op("Inspect", held, ""))
	}
	if e.Has(harness.NeedsList) {
		calls = append(calls, op("List", held, ""))
	}
	return calls
}

// hangDeadline calls all methods at the same time while the server hangs, so that some use an open
// connection and others dial.
func hangDeadline(e *harness.Env) {
	f := newFaulty(e)
	held, token, _ := f.prepared(harness.Long)
	f.p.Hang()
	e.Note("the server hangs")
	calls := f.hungCalls(held, token)
	e.Each(len(calls), func(i int) {
		// A slow machine may be late once. A call that waits for another timeout is late each time.
		// A call that fails before its ctx ends does not count, unless most calls do: a client that
		// ignores ctx may give up a connection just then, or refuse a call after an earlier one failed.
		const tries = 4
		least := time.Duration(math.MaxInt64)
		for counted, failed := 0, 0; counted < tries; {
			late, ended := f.hung(calls[i])
			if !ended {
				failed++
			}
			if ended && late <= e.Allow(harness.CtxEnd) || failed > tries {
				return
			}
			if ended {
				least = min(least, late)
				counted++
			}
		}
		e.FailTime(harness.CtxEnd, least, e.Check.Causes, "", fmt.Sprintf("D.%s returns about when its ctx ends, after %v: the server hangs", calls[i].name,
			hangCtx), fmt.Sprintf("the quickest of %d calls returned %v later", tries, least.Round(time.Millisecond)))
	})
	f.healed(held, token)
}

// hung makes one call to a server that hangs. It returns whether its ctx had ended when it returned,
// and how long before.
func (f *faulty) hung(c hungCall) (late time.Duration, ended bool) {
	ctx, cancel := context.WithTimeout(f.Env.Ctx, hangCtx)
	defer cancel()
	// On a busy machine the deadline is noticed late as well: the call is late relative to that.
	seen := make(chan time.Time, 1)
	go func() { <-ctx.Done(); seen <- time.Now() }()
	ok, err := c.do(ctx)
	end := time.Now()
	deadline, _ := ctx.Deadline()
	ended = !end.Before(deadline)
	f.failed(c.name, ok, err, ended, context.DeadlineExceeded)
	if ended {
		late = end.Sub(<-seen)
	}
	return late, ended
}

// failed checks that a call to a server that hangs returned an error, and that it is ctx's if ctx
// has ended.
func (f *faulty) failed(name string, ok bool, err error, ended bool, cause error) {
	switch {
	case err == nil || ok:
		f.Env.Fail(fmt.Sprintf("D.%s = an error: the server has not answered", name), fmt.Sprintf("D.%s = %v, %v", name, ok, err))
	case ended && !errors.Is(err, cause):
		f.Env.Fail(fmt.Sprintf("D.%s returns an error that wraps %q: its ctx had ended when it returned", name, cause),
			fmt.Sprintf("D.%s = %v, %q", name, ok, err.Error()))
	}
}

// healed checks that D works again after a hang.
func (f *faulty) healed(held, token string) {
	e := f.Env
	f.p.Heal(e.TB)
	e.Note("the server works again")
	f.warm()
	key, other := e.Key(), e.Token()
	again := f.insists("Acquire", key, other, harness.Long)
	f.Must(again, true, "the key is fresh")
	f.insists("Release", held, token, 0) // a call that was under way may have released it
	e.B.TakesWhen(held, e.Token(), harness.Long, time.Time{}, time.Now().Add(pausedAsk), "D has released the lock, "+
		"whatever its abandoned Extend did before")
}

// hangLeak calls all methods repeatedly while the server hangs, and checks that the goroutines that
// wait for the server end while it still hangs.
func hangLeak(e *harness.Env) {
	f := newFaulty(e)
	held, token, _ := f.prepared(harness.Long)
	f.p.Hang()
	e.Note("the server hangs")
	// A client may start a few goroutines once. A method that leaks one with each call leaves more.
	const times, limit = 6, 5
	id := e.ID + "/hung"
	pprof.Do(e.Ctx, pprof.Labels(harness.LeakLabel, id), func(ctx context.Context) {
		var all sync.WaitGroup
		for range times {
			for _, c := range f.hungCalls(held, token) {
				all.Go(func() {
					ctx, cancel := context.WithTimeout(ctx, hangCtx)
					defer cancel()
					c.do(ctx)
				})
			}
		}
		all.Wait()
	})
	if n, stacks := e.SettlesAs(id, limit, e.Allow(harness.IOTimeout)); n > limit {
		e.Fail(fmt.Sprintf("%d calls of each method, all of which have returned, leave hardly any goroutines %v later",
			times, e.Allow(harness.IOTimeout)), fmt.Sprintf("%d are left:\n%s", n, stacks))
	}
	f.healed(held, token)
}

// hangCancel cancels calls to a server that hangs. They must return within the client's I/O
// timeout.
func hangCancel(e *harness.Env) {
	f := newFaulty(e)
	held, token, _ := f.prepared(harness.Long)
	f.p.Hang()
	e.Note("the server hangs")
	calls := f.hungCalls(held, token)
	e.Each(len(calls), func(i int) {
		ctx, cancel := context.WithCancel(e.Ctx)
		defer cancel()
		type result struct {
			ok, ended bool
			err       error
		}
		done := make(chan result, 1)
		go e.Guard(func() {
			ok, err := calls[i].do(ctx)
			done <- result{ok, ctx.Err() != nil, err}
		})
		e.Sleep(hangCtx)
		e.Note("the ctx of D.%s is canceled", calls[i].name)
		cancel()
		ended := time.Now()
		r, _ := harness.Receive(e, harness.IOTimeout, done, func() time.Time { return ended },
			fmt.Sprintf("D.%s returns within one I/O timeout of the client: its ctx was canceled", calls[i].name))
		f.failed(calls[i].name, r.ok, r.err, r.ended, context.Canceled)
	})
	f.healed(held, token)
}

// hangWaiter ends a Wait of D while the server hangs, and lets the server hang until D has given
// up. Then the server executes all that it has received. D waits for a lock that is free, and for
// one that expires while the server hangs.
func hangWaiter(e *harness.Env) {
	e.Each(2, func(i int) {
		f := newFaulty(e)
		key := e.Key()
		ctx, cancel := context.WithCancel(e.Ctx)
		defer cancel()
		var result <-chan harness.Call
		if i == 0 {
			f.p.Hang()
			e.Note("the server hangs")
			result = f.Client.Waits(ctx, key, e.Token(), harness.Long)
			e.Sleep(hangCtx)
		} else {
			held := e.B.Takes(key, e.Token(), waitTTL, "the key is fresh")
			result = f.Client.Waits(ctx, key, e.Token(), harness.Long)
			f.joinsQueue(result)
			f.p.Hang()
			e.Note("the server hangs")
			e.SleepUntil(held.End.Add(waitTTL + e.Granularity() + f.moment()))
		}
		e.Note("the ctx of D's waiter is canceled")
		cancel()
		e.Sleep(hangFor)
		e.Note("the server goes on")
		f.p.Heal(e.TB)
		f.warm()
		switch w := <-result; {
		case w.OK: // it was granted the lock before the server hung
			e.Inconclusive("D.Wait returned a deadline before the server hung")
		case !errors.Is(w.Err, locker.ErrHeld): // then the caller cleans up, as after an Acquire
			f.insists("Release", key, w.Token, 0)
		}
		c := e.C.TakesWhen(key, e.Token(), harness.Long, time.Time{}, time.Now().Add(cleanupWindow),
			"D's waiter, which has gone, costs the others nothing: its process lives")
		e.C.Releases(key, c.Token, "C has just taken it")
	})
}

// within makes one call with a timeout.
func (f *faulty) within(d time.Duration, op, key, token string, ttl time.Duration) harness.Call {
	ctx, cancel := context.WithTimeout(f.Env.Ctx, d)
	defer cancel()
	return f.DoContext(ctx, op, key, token, ttl)
}
