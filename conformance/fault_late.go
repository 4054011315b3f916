package conformance

import (
	"context"
	"errors"
	"fmt"
	"runtime/pprof"
	"time"

	"github.com/golockers/locker"
)

// In these checks a request or a reply is late: it arrives after the caller has given up.

func lateChecks() []check {
	const rule = "C9 Context: from the moment that ctx is done the adapter starts nothing more for that call. What has " +
		"left the process may still take effect: then the key is held by nobody for at most its ttl."
	return []check{{
		name: "fault/success-after-the-end",
		rule: "C9 Context: done during the call: the method returns ctx's error.",
		causes: "returning what the client library returned without looking at ctx: a success that comes after ctx has " +
			"ended is no success, since the caller may have gone on.",
		run: func(e *env) { newFaulty(e).successAfterTheEnd() },
	}, {
		name: "fault/late-acquire",
		rule: rule,
		causes: "setting the key in one request and its expiry in another; a goroutine that was left behind and goes on " +
			"with its next step or its next attempt.",
		run: func(e *env) {
			f := newFaulty(e)
			f.eachStep(func(n int) bool { return f.lateAcquire(n, false, hangCtx) })
		},
	}, {
		name: "fault/late-acquire-released",
		rule: rule + " A Release of that token on the same Locker waits its turn behind what is still under way.",
		causes: "setting the key in one request and its expiry in another; an Acquire that is sent again in the " +
			"background, behind the Release of its token.",
		run: func(e *env) {
			f := newFaulty(e)
			f.eachStep(func(n int) bool { return f.lateAcquire(n, true, hangCtx) })
		},
	}, {
		name: "fault/late-acquire-cleaned-up",
		rule: rule + " C7 Release frees a lock that token holds; locker.TryLock relies on that to clean up behind an " +
			"Acquire of unknown outcome.",
		causes: "a Locker that remembers in the process which locks it holds, and releases no other; a client whose " +
			"connections are of no use any more after a timeout.",
		run: func(e *env) {
			f := newFaulty(e)
			f.eachStep(func(n int) bool { return f.lateTryLock(n, hangCtx) })
		},
	}}
}

// successAfterTheEnd cancels each operation while the reply to its nth request is on its way.
func (f *faulty) successAfterTheEnd() {
	for _, op := range []string{"Acquire", "Extend", "Release"} {
		f.eachStep(func(n int) bool {
			e := f.e
			key, token := e.key(), e.token()
			if op != "Acquire" {
				key, token, _ = f.prepared(long)
			}
			ctx, cancel := context.WithCancel(e.ctx)
			defer cancel()
			x := f.arm(holdReply, n)
			defer x.release()
			result := e.meanwhile(func() call { return f.doCtx(ctx, op, key, token, asked(op, long)) })
			r := f.stopped(x, result)
			if r != nil {
				f.must(*r, true, "nothing was in its way")
				f.insists("Release", key, token, 0)
				return false
			}
			ended := time.Now()
			cancel()
			e.note("D's ctx is cancelled, then the reply is let go")
			x.release()
			last := <-result
			if !last.end.After(ended) {
				e.inconclusive("D.%s returned before its ctx was cancelled, although the reply was held: %s", op, last.result())
			}
			if last.ok || !errors.Is(last.err, context.Canceled) {
				e.fail(fmt.Sprintf("D.%s = false and an error that wraps %q: its ctx was cancelled before the reply came",
					op, context.Canceled), fmt.Sprintf("D.%s = %s", op, last.result()))
			}
			f.insists("Release", key, token, 0)
			return true
		})
	}
}

const lateTTL = time.Second

// lateAcquire holds the nth request of an Acquire until its ctx has ended, after d, and lets it go then,
// behind a Release or without one.
func (f *faulty) lateAcquire(n int, release bool, d time.Duration) (reached bool) {
	e := f.e
	f.warm()
	key, token := e.key(), e.token()
	x := f.arm(holdRequest, n)
	defer x.release()
	id := e.id + "/late"
	var result <-chan call
	pprof.Do(e.ctx, pprof.Labels(leakLabel, id), func(context.Context) {
		result = e.meanwhile(func() call { return f.within(d, "Acquire", key, token, lateTTL) })
	})
	r := f.stopped(x, result)
	if r != nil && r.err == nil {
		f.must(*r, true, "the key is fresh")
		f.insists("Release", key, token, 0)
		return false
	}
	if r == nil {
		last := <-result
		r = &last
	}
	if !x.acted() { // a busy machine: ctx had ended before
		f.insists("Release", key, token, 0)
		f.givesUpOn(d)
		return f.lateAcquire(n, release, 2*d)
	}
	if r.err == nil {
		e.fail("D.Acquire = an error: its request has not got through", fmt.Sprintf("D.Acquire = %s", r.result()))
	}
	sent, _ := f.p.count()
	var released <-chan call
	if release {
		released = e.meanwhile(func() call { return f.release(key, token) })
		// It may wait for the Acquire, or go ahead on another connection.
		for end := time.Now().Add(f.moment()); len(released) == 0 && time.Now().Before(end); {
			e.sleep(time.Millisecond)
		}
	}
	e.note("D's Acquire is let go")
	x.release()
	f.carriedOut(x)
	letGo := time.Now()
	if release {
		if r := <-released; r.ok && r.err == nil {
			b := e.B.takes(key, e.token(), long, "D's Release returned true")
			e.B.releases(key, b.token, "B has just taken it")
		}
	}
	// Whoever was left behind with that call gets done with it. What stays is the client's, or a leak, which
	// is another check's.
	e.settlesAs(id, 0, e.patience())
	if now, _ := f.p.count(); !release && now-sent > lateRequests {
		e.fail("D sends nothing more for an Acquire that has returned, but for a roll-back or the like",
			fmt.Sprintf("it has sent %s since", plural(now-sent, "request")))
	}
	b := e.B.takesWhen(key, e.token(), long, time.Time{}, letGo.Add(lateTTL),
		"D's Acquire was done late at best, for "+lateTTL.String())
	e.B.releases(key, b.token, "B has just taken it")
	b = e.B.takes(key, e.token(), long, "B has released it, and D has given up long ago")
	e.B.releases(key, b.token, "B has just taken it")
	return true
}

// givesUpOn ends a check in which an Acquire has had d and has not come to its request.
func (f *faulty) givesUpOn(d time.Duration) {
	if d > opTimeout/2 {
		f.e.failLate(hungCauses, "", "D.Acquire = true, nil, on a link that works", "it has failed under a ctx of "+d.String())
	}
}

// lateRequests is how many requests a client library may need to be done with a call that was given up: to
// roll back, to unwatch, to have the server cancel it.
const lateRequests = 2

// carriedOut returns when the server has done what was held.
func (f *faulty) carriedOut(x *fault) {
	timeout := time.NewTimer(opTimeout)
	defer timeout.Stop()
	select {
	case <-x.answered:
	case <-timeout.C:
		f.e.failLate(hungCauses, "", "the backend answers D's request", "it has not in "+opTimeout.String())
	}
}

// lateTryLock is lateAcquire by way of locker.TryLock, which cleans up behind an Acquire of unknown outcome.
func (f *faulty) lateTryLock(n int, d time.Duration) (reached bool) {
	e := f.e
	f.warm()
	if f.slow > cleanUpWindow/10 {
		f.calm()
	}
	if f.slow > cleanUpWindow/10 {
		e.inconclusive("an operation takes %v, which is too long for a clean-up of %v", f.slow, cleanUpWindow)
	}
	key := e.key()
	x := f.arm(holdRequest, n)
	defer x.release()
	ctx, cancel := context.WithTimeout(e.ctx, d)
	defer cancel()
	e.note("locker.TryLock is called on D, for ten minutes, under a ctx of %v", d)
	lease, err := locker.TryLock(ctx, f.l, key, long)
	e.note("locker.TryLock returned: %v", err)
	f.p.disarm()
	switch {
	case lease != nil: // whatever was held is of an earlier clean-up
		x.release()
		lease.Unlock(e.ctx)
		return false
	case !x.acted(): // a busy machine: ctx had ended before
		f.givesUpOn(d)
		return f.lateTryLock(n, 2*d)
	}
	e.note("D's Acquire is let go")
	x.release()
	f.carriedOut(x)
	b := e.B.takesWhen(key, e.token(), long, time.Time{}, time.Now().Add(cleanUpWindow),
		"locker.TryLock releases in the background what an Acquire that failed may have taken")
	e.B.releases(key, b.token, "B has just taken it")
	return true
}

// cleanUpWindow is how long locker's clean-up goes on.
const cleanUpWindow = 5 * time.Second
