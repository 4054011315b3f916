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
)

const ruleHang = "C9 Context: done during the call, even when the server hangs and whatever the client library does: " +
	"the method returns ctx's error within one I/O timeout of the client, and promptly when ctx's deadline is nearer " +
	"than that timeout. C10: a backend that hangs is never false, nil."

func hangChecks() []check {
	return []check{{
		name: "fault/hang-deadline",
		rule: ruleHang,
		causes: "ctx not passed on to the client library, or one that minds deadlines only when told to (go-redis: " +
			"ContextTimeoutEnabled) or not at all: then run the call in a goroutine and leave it behind; an i/o timeout " +
			"returned where it is ctx that has ended: a socket that has ctx's deadline may be a little before ctx itself, " +
			"so compare the time with ctx.Deadline, too.",
		run: hangDeadline,
	}, {
		name: "fault/hang-leak",
		rule: ruleHang + " C14 Nothing left behind: the adapter keeps no goroutine.",
		causes: "a goroutine per call that waits for a client without I/O timeouts, forever; one that sends its result " +
			"on an unbuffered channel that nobody reads any more.",
		run: hangLeak,
	}, {
		name: "fault/hang-cancel",
		rule: ruleHang,
		causes: "a client without I/O timeouts (redigo, by default), used without a context: give it timeouts; the " +
			"client's i/o timeout returned where it is ctx that has ended.",
		run: hangCancel,
	}}
}

const (
	hangCtx = 200 * time.Millisecond // the deadline of a call to a server that hangs
	// hangLate is how long after that it may return: less than the shortest I/O timeouts in use, of a second.
	hangLate = 400 * time.Millisecond
	// hangTimeout is longer than the I/O timeout of any client that minds its callers.
	hangTimeout = 40 * time.Second
)

// hungCall is a call, of any method, to a server that hangs.
type hungCall struct {
	name string
	do   func(ctx context.Context) (ok bool, err error)
}

// hungCalls is a call of each method that D has.
func (f *faulty) hungCalls(held, token string) []hungCall {
	e, l := f.e, f.l
	op := func(name, key, token string) hungCall {
		return hungCall{name, func(ctx context.Context) (bool, error) {
			r := f.doCtx(ctx, name, key, token, asked(name, pausedAsk))
			return r.ok, r.err
		}}
	}
	calls := []hungCall{op("Acquire", e.key(), e.token()), op("Extend", held, token), op("Release", held, token)}
	if e.has(needsWait) {
		calls = append(calls, op("Wait", e.key(), e.token()))
	}
	if e.has(needsFence) {
		calls = append(calls, op("Fence", held, token))
	}
	if e.has(needsWatch) {
		calls = append(calls, hungCall{"Watch", func(ctx context.Context) (bool, error) {
			e.note("D.Watch is called")
			_, err := l.(locker.Watcher).Watch(ctx, e.key())
			return err == nil, err
		}})
	}
	return calls
}

// hangDeadline calls each method of a server that hangs, on a connection that is there and, by calling them
// all at once, on ones that are not.
func hangDeadline(e *env) {
	f := newFaulty(e)
	held, token, _ := f.prepared(long)
	f.p.hang()
	e.note("the server hangs")
	calls := f.hungCalls(held, token)
	e.each(len(calls), func(i int) {
		// What is late once may be the machine's doing. What waits for another timeout is late each time.
		// How slow the machine was at another time excuses nothing.
		const tries = 4
		var now lag
		measured, stop := context.WithCancel(e.ctx)
		defer stop()
		go now.measure(measured)
		least, most := time.Duration(math.MaxInt64), time.Duration(0)
		var took, late time.Duration
		for range tries {
			if took, late = f.hung(calls[i]); late <= hangLate {
				return
			}
			least, most = min(least, late), max(most, late)
		}
		slowest := now.worst()
		if !timedOut(least, most, slowest) {
			e.inconclusive("D.%s was %v to %v late, and the machine so slow meanwhile, by %v, that this says nothing", calls[i].name,
				least.Round(time.Millisecond), most.Round(time.Millisecond), slowest.Round(time.Millisecond))
		}
		e.fail(fmt.Sprintf("D.%s, with %v for its ctx, returns in about that time: the server hangs", calls[i].name, hangCtx),
			fmt.Sprintf("it returned after %v, the last of %d times; each time it was %v to %v late", took.Round(time.Millisecond), tries,
				least.Round(time.Millisecond), most.Round(time.Millisecond)))
	})
	f.healed(held, token)
}

// timedOut reports whether calls to a server that hangs, all of them late by least to most, waited for something but
// their ctx, and not for a machine whose timers were late by slowest at worst meanwhile. A machine is not late by the
// same each time.
func timedOut(least, most, slowest time.Duration) bool {
	return least > hangLate+4*slowest || least > hangLate+slowest && most-least < least/4
}

// hung does one call to a server that hangs, and returns how long it took, and how late it was.
func (f *faulty) hung(c hungCall) (took, late time.Duration) {
	ctx, cancel := context.WithTimeout(f.e.ctx, hangCtx)
	defer cancel()
	// A busy machine is late to see the deadline, too: what counts is how long after this.
	seen := make(chan time.Time, 1)
	go func() { <-ctx.Done(); seen <- time.Now() }()
	start := time.Now()
	ok, err := c.do(ctx)
	end := time.Now()
	deadline, _ := ctx.Deadline()
	ended := !end.Before(deadline)
	f.failed(c.name, ok, err, ended, context.DeadlineExceeded)
	if ended {
		late = end.Sub(<-seen)
	}
	return end.Sub(start), late
}

// failed sees that a call to a server that hangs says nothing but that ctx has ended.
func (f *faulty) failed(name string, ok bool, err error, ended bool, cause error) {
	switch {
	case err == nil || ok:
		f.e.fail(fmt.Sprintf("D.%s = an error: nobody has answered", name), fmt.Sprintf("D.%s = %v, %v", name, ok, err))
	case ended && !errors.Is(err, cause):
		f.e.fail(fmt.Sprintf("the error of D.%s wraps %q: its ctx had ended when it returned", name, cause),
			fmt.Sprintf("D.%s = %v, %q", name, ok, err.Error()))
	}
}

// healed sees that D works again after a hang.
func (f *faulty) healed(held, token string) {
	e := f.e
	f.p.heal(e.tb)
	e.note("the server goes on")
	f.warm()
	key, other := e.key(), e.token()
	again := f.insists("Acquire", key, other, long)
	f.must(again, true, "the key is fresh")
	f.insists("Release", held, token, 0) // what was under way may have done it already
	e.B.takesWhen(held, e.token(), long, time.Time{}, time.Now().Add(pausedAsk), "D has released the lock, "+
		"whatever its abandoned Extend has done to it before")
}

// hangLeak calls the methods of a server that hangs again and again, and sees that what it takes to wait for
// the server goes away, while the server still hangs.
func hangLeak(e *env) {
	f := newFaulty(e)
	held, token, _ := f.prepared(long)
	f.p.hang()
	e.note("the server hangs")
	// A client may start something once, with its first call or with a connection. What does not go away is
	// told from that by its number: more than one for a method that leaks one at each call.
	const times, limit = 6, 5
	id := e.id + "/hung"
	pprof.Do(e.ctx, pprof.Labels(leakLabel, id), func(ctx context.Context) {
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
	if n, stacks := e.settlesAs(id, limit, hangTimeout); n > limit {
		e.fail(fmt.Sprintf("of %d calls of each method, all of which have returned, hardly a goroutine is left %v later",
			times, hangTimeout), fmt.Sprintf("%d are left:\n%s", n, stacks))
	}
	f.healed(held, token)
}

// hangCancel cancels calls to a server that hangs. How soon they return is up to the client's I/O timeout.
func hangCancel(e *env) {
	f := newFaulty(e)
	held, token, _ := f.prepared(long)
	f.p.hang()
	e.note("the server hangs")
	calls := f.hungCalls(held, token)
	e.each(len(calls), func(i int) {
		ctx, cancel := context.WithCancel(e.ctx)
		defer cancel()
		type result struct {
			ok, ended bool
			err       error
		}
		done := make(chan result, 1)
		go e.guard(func() {
			ok, err := calls[i].do(ctx)
			done <- result{ok, ctx.Err() != nil, err}
		})
		e.sleep(hangCtx)
		e.note("the ctx of D.%s is cancelled", calls[i].name)
		cancel()
		timeout := time.NewTimer(hangTimeout)
		defer timeout.Stop()
		select {
		case r := <-done:
			f.failed(calls[i].name, r.ok, r.err, r.ended, context.Canceled)
		case <-timeout.C:
			e.fail(fmt.Sprintf("D.%s returns within one I/O timeout of its client: its ctx was cancelled", calls[i].name),
				fmt.Sprintf("it had not returned %v later", hangTimeout))
		}
	})
	f.healed(held, token)
}

// within does one operation under a deadline.
func (f *faulty) within(d time.Duration, op, key, token string, ttl time.Duration) call {
	ctx, cancel := context.WithTimeout(f.e.ctx, d)
	defer cancel()
	return f.doCtx(ctx, op, key, token, ttl)
}
