package conformance

import (
	"context"
	"errors"
	"fmt"
	"runtime/pprof"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/faultproxy"
	"github.com/golockers/locker/conformance/internal/harness"
)

// In these checks a request or a reply arrives after the caller has given up.

func lateChecks() []harness.Check {
	return []harness.Check{{
		Name:  "fault/reply-after-cancel",
		Rules: []string{c9During},
		Causes: "returning what the client library returned without looking at ctx: if ctx has ended, the caller may have gone " +
			"on, and a success must be an error.",
		Run: func(e *harness.Env) { newFaulty(e).replyAfterCancel() },
	}, {
		Name:  "fault/late-acquire",
		Rules: []string{c9During, c2Outcomes, c4Late},
		Causes: "setting the key in one request and its expiry in another; an abandoned goroutine that goes on with its next " +
			"step or its next attempt.",
		Run: func(e *harness.Env) {
			f := newFaulty(e)
			f.eachStep(func(n int) bool { return f.lateAcquire(n, false, hangCtx) })
		},
	}, {
		Name:  "fault/late-acquire-released",
		Rules: []string{c9During, c9InOrder, c4Late},
		Causes: "setting the key in one request and its expiry in another; an Acquire that is sent again in the background, " +
			"after the Release of its token.",
		Run: func(e *harness.Env) {
			f := newFaulty(e)
			f.eachStep(func(n int) bool { return f.lateAcquire(n, true, hangCtx) })
		},
	}, {
		Name:  "fault/late-acquire-cleanup",
		Rules: []string{c9InOrder, c7Release},
		Causes: "a Locker that remembers in the process which locks it holds, and releases no others; a client whose " +
			"connections are unusable after a timeout. locker.TryLock relies on Release to clean up after an Acquire of " +
			"unknown outcome.",
		Run: func(e *harness.Env) {
			f := newFaulty(e)
			f.eachStep(func(n int) bool { return f.lateTryLock(n, hangCtx) })
		},
	}, {
		Name:  "fault/late-wait",
		Rules: []string{q7Dead, q9Leave},
		Needs: harness.NeedsWait,
		Causes: "a request for a place in the queue that had no answer, is sent again on another connection, and arrives " +
			"when its waiter was served or has gone: what is granted to that place must be released, and nothing else.",
		Run: func(e *harness.Env) { e.Each(4, func(i int) { newFaulty(e).lateWait(i + 1) }) },
	}}
}

// replyAfterCancel cancels each operation while the reply to its nth request is held back.
func (f *faulty) replyAfterCancel() {
	for _, op := range []string{"Acquire", "Extend", "Release"} {
		f.eachStep(func(n int) bool {
			e := f.Env
			key, token := e.Key(), e.Token()
			if op != "Acquire" {
				key, token, _ = f.prepared(harness.Long)
			}
			ctx, cancel := context.WithCancel(e.Ctx)
			defer cancel()
			x := f.arm(faultproxy.HoldReply, n)
			defer x.Release()
			result := e.Meanwhile(func() harness.Call { return f.DoContext(ctx, op, key, token, asked(op, harness.Long)) })
			r := f.stopped(x, result)
			if r != nil {
				f.Must(*r, true, "no fault affected it")
				f.insists("Release", key, token, 0)
				return false
			}
			ended := time.Now()
			cancel()
			e.Note("D's ctx is canceled, then the reply is delivered")
			x.Release()
			last := <-result
			if !last.End.After(ended) {
				e.Inconclusive("D.%s returned before its ctx was canceled, although the reply was held back: %s", op, last.Result())
			}
			if last.OK || !errors.Is(last.Err, context.Canceled) {
				e.Fail(fmt.Sprintf("D.%s = false and an error that wraps %q: its ctx was canceled before the reply arrived",
					op, context.Canceled), fmt.Sprintf("D.%s = %s", op, last.Result()))
			}
			f.insists("Release", key, token, 0)
			return true
		})
	}
}

const lateTTL = time.Second

// lateAcquire holds back the nth request of an Acquire until its ctx has ended, after d, and then
// delivers it, after a Release or without one.
func (f *faulty) lateAcquire(n int, release bool, d time.Duration) (reached bool) {
	e := f.Env
	f.warm()
	key, token := e.Key(), e.Token()
	x := f.arm(faultproxy.HoldRequest, n)
	defer x.Release()
	id := e.ID + "/late"
	var result <-chan harness.Call
	pprof.Do(e.Ctx, pprof.Labels(harness.LeakLabel, id), func(context.Context) {
		result = e.Meanwhile(func() harness.Call { return f.within(d, "Acquire", key, token, lateTTL) })
	})
	r := f.stopped(x, result)
	if r != nil && r.Err == nil {
		f.Must(*r, true, "the key is fresh")
		f.insists("Release", key, token, 0)
		return false
	}
	if r == nil {
		last := <-result
		r = &last
	}
	if !x.Acted() { // on a busy machine ctx may end first
		f.insists("Release", key, token, 0)
		f.givesUpOn(d)
		return f.lateAcquire(n, release, 2*d)
	}
	if r.Err == nil {
		e.Fail("D.Acquire = an error: its request was not delivered", fmt.Sprintf("D.Acquire = %s", r.Result()))
	}
	sent, _ := f.p.Count()
	var released <-chan harness.Call
	if release {
		released = e.Meanwhile(func() harness.Call { return f.Release(key, token) })
		// The Release may wait for the Acquire, or be sent on another connection.
		for end := time.Now().Add(f.moment()); len(released) == 0 && time.Now().Before(end); {
			e.Sleep(time.Millisecond)
		}
	}
	e.Note("D's Acquire is delivered")
	x.Release()
	f.carriedOut(x)
	letGo := time.Now()
	if release {
		if r := <-released; r.OK && r.Err == nil {
			b := e.B.Takes(key, e.Token(), harness.Long, "D's Release returned true")
			e.B.Releases(key, b.Token, "B has just taken it")
		}
	}
	// Let abandoned goroutines of that call finish. Leaks are for other checks.
	e.SettlesAs(id, 0, e.Patience())
	if now, _ := f.p.Count(); !release && now-sent > lateRequests {
		e.Fail("D sends nothing more for an Acquire that has returned, except to undo it",
			fmt.Sprintf("it has sent %s since", harness.Plural(now-sent, "request")))
	}
	b := e.B.TakesWhen(key, e.Token(), harness.Long, time.Time{}, letGo.Add(lateTTL),
		"D's Acquire was late, and asked for "+lateTTL.String())
	e.B.Releases(key, b.Token, "B has just taken it")
	b = e.B.Takes(key, e.Token(), harness.Long, "B has released it, and D gave up long ago")
	e.B.Releases(key, b.Token, "B has just taken it")
	return true
}

// givesUpOn ends the check if an Acquire has not reached its nth request within d, which is long.
func (f *faulty) givesUpOn(d time.Duration) {
	if d > harness.OpTimeout/2 {
		f.Env.FailTime(harness.Healing, 2*f.Env.Allow(harness.Healing), harness.HungCauses, "", "D.Acquire = true, nil, on a link that works", "it failed with a ctx of "+d.String())
	}
}

// lateRequests is how many requests a client library may need to abandon a call: to roll back, to
// unwatch, to cancel it on the server.
const lateRequests = 2

// carriedOut returns when the server has executed the request that was held back.
func (f *faulty) carriedOut(x *faultproxy.Fault) {
	since := time.Now()
	harness.Receive(f.Env, harness.Healing, x.Answered, func() time.Time { return since }, "the backend answers D's request")
}

// lateTryLock is lateAcquire through locker.TryLock, which cleans up after an Acquire of unknown
// outcome.
func (f *faulty) lateTryLock(n int, d time.Duration) (reached bool) {
	e := f.Env
	f.warm()
	if f.slow > cleanupWindow/10 {
		f.calm()
	}
	if f.slow > cleanupWindow/10 {
		e.Inconclusive("an operation takes %v, which is too long for a cleanup of %v", f.slow, cleanupWindow)
	}
	key := e.Key()
	x := f.arm(faultproxy.HoldRequest, n)
	defer x.Release()
	ctx, cancel := context.WithTimeout(e.Ctx, d)
	defer cancel()
	e.Note("locker.TryLock is called on D, for ten minutes, with a ctx of %v", d)
	lease, err := locker.TryLock(ctx, f.Locker, key, harness.Long)
	e.Note("locker.TryLock returned: %v", err)
	f.p.Disarm()
	switch {
	case lease != nil: // the request that is held back is of an earlier cleanup
		x.Release()
		lease.Unlock(e.Ctx)
		return false
	case !x.Acted(): // on a busy machine ctx may end first
		f.givesUpOn(d)
		return f.lateTryLock(n, 2*d)
	}
	e.Note("D's Acquire is delivered")
	x.Release()
	f.carriedOut(x)
	b := e.B.TakesWhen(key, e.Token(), harness.Long, time.Time{}, time.Now().Add(cleanupWindow),
		"locker.TryLock releases in the background what a failed Acquire may have taken")
	e.B.Releases(key, b.Token, "B has just taken it")
	return true
}

// lateWait breaks the connection of the nth request of a Wait, and holds the request back until D
// was served through another request, or has left. Then it delivers the request while B holds the
// lock, so the request may put D's token in the queue again.
func (f *faulty) lateWait(n int) {
	e := f.Env
	key, token := e.Key(), e.Token()
	// D has another waiter, so it already listens, and a place in the queue is that of a live process.
	other := e.Key()
	e.B.Takes(other, e.Token(), harness.Long, "the key is fresh")
	f.joinsQueue(f.Client.Waits(e.Ctx, other, e.Token(), harness.Long))
	e.Sleep(f.moment())
	b := e.B.Takes(key, e.Token(), harness.Long, "the key is fresh")
	x := f.arm(faultproxy.StrandRequest, n)
	defer x.Release()
	ctx, cancel := context.WithCancel(e.Ctx)
	defer cancel()
	waited := f.Client.Waits(ctx, key, token, harness.Long)
	served := e.Meanwhile(func() harness.Call { // whenever that is
		w := <-waited
		for w.OK && f.Release(key, token).Err != nil && e.Ctx.Err() == nil {
			e.Sleep(harness.Rounding.Time)
		}
		return w
	})
	e.Sleep(time.Second + f.moment()) // D may make another request
	e.B.Releases(key, b.Token, "B holds it")
	hasReturned := false
	select {
	case <-served:
		hasReturned = true
	case <-time.After(lateFor):
	}
	b = e.B.TakesWhen(key, e.Token(), harness.Long, time.Time{}, time.Now().Add(cleanupWindow), "D has released the lock, or has gone")
	if x.Acted() {
		e.Note("D's request number %d is delivered", n)
		x.Release()
		f.carriedOut(x)
	}
	cancel()
	if !hasReturned {
		since := time.Now()
		harness.Receive(e, harness.IOTimeout, served, func() time.Time { return since }, "D.Wait returns: its ctx was canceled")
	}
	e.B.Releases(key, b.Token, "B holds it")
	c := e.C.TakesWhen(key, e.Token(), harness.Long, time.Time{}, time.Now().Add(cleanupWindow),
		"B has released it, and D, whose Wait has returned, costs the others nothing: its process lives")
	e.C.Releases(key, c.Token, "C has just taken it")
}

// lateFor is longer than a waiter needs to be served.
const lateFor = 3 * time.Second

// cleanupWindow is how long locker's cleanup goes on.
const cleanupWindow = 5 * time.Second
