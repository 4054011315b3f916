package conformance

import (
	"fmt"
	"slices"
	"time"

	"github.com/golockers/locker/conformance/internal/faultproxy"
	"github.com/golockers/locker/conformance/internal/harness"
)

// The fault checks put a proxy between the backend and one client, D, and break its link: on the
// way of a request, or of a reply, for a moment or for long. A, B and C connect directly and
// observe the lock.
//
// An adapter may make any number of requests in an operation. So a fault is tried on the first
// request of an operation, on the second, and so on, until the operation ends without reaching that
// request.

func faultChecks() []harness.Check {
	list := slices.Concat(lostReplyChecks(), pausedChecks(), hangChecks(), lateChecks(), brokenLinkChecks(),
		waitFaultChecks(), pushChecks(), retryChecks(), inspectFaultChecks(), lineChecks())
	for i := range list {
		list[i].Needs |= harness.NeedsNetwork
	}
	return list
}

// faulty is the client whose link can be broken.
type faulty struct {
	*harness.Client
	p    *faultproxy.Proxy
	slow time.Duration // how long an operation takes without a fault
	past []string      // the keys and tokens of operations that under has affected
}

// newFaulty makes a proxy and the client D behind it, and warms it up: connections are open,
// scripts loaded.
func newFaulty(e *harness.Env) *faulty {
	p := faultproxy.New(e.TB, e.Addr())
	f := &faulty{Client: e.NewClient("D", e.NewLocker(p.Addr)), p: p}
	e.TB.Cleanup(func() { e.HandOver(f.Client, e.A) })
	f.warm()
	f.calm()
	f.note()
	return f
}

func (f *faulty) note() {
	f.Env.Note("D is on a link that can be broken; A, B and C are not")
}

// calm waits until the other checks, which all begin at the same time, leave D some of the machine:
// faults must happen in time.
func (f *faulty) calm() {
	for end := time.Now().Add(10 * time.Second); f.slow > 50*time.Millisecond && time.Now().Before(end); {
		f.Env.Sleep(max(250*time.Millisecond, f.slow))
		f.warm()
	}
}

// warm makes each call until it is not an error, so that D's connections work afterwards.
func (f *faulty) warm() {
	key, token := f.Env.Key(), f.Env.Token()
	f.slow = 0
	for _, op := range []string{"Acquire", "Extend", "Release"} {
		r := f.untilSure(func() harness.Call { return f.Quietly(op, key, token, asked(op, harness.Long)) })
		f.slow = max(f.slow, r.End.Sub(r.Start))
	}
}

// moment is how long D may take for something whose end cannot be observed.
func (f *faulty) moment() time.Duration { return min(200*time.Millisecond+3*f.slow, 2*time.Second) }

// maxSteps is more requests than an operation makes.
const maxSteps = 20

// asked returns the ttl that op asks for, or 0 if it asks for none.
func asked(op string, ttl time.Duration) time.Duration {
	if op == "Acquire" || op == "Extend" || op == "Wait" {
		return ttl
	}
	return 0
}

// eachStep runs try for the first request of an operation, the second, and so on, until the
// operation ends without reaching that request. The check is inconclusive if the operation makes no
// request, or more than maxSteps.
func (f *faulty) eachStep(try func(n int) (reached bool)) {
	for n := 1; n <= maxSteps; n++ {
		if !try(n) {
			if n == 1 {
				f.Env.Inconclusive("D's operation made no request that a fault could affect")
			}
			return
		}
		f.Env.Forget()
		f.note()
	}
	f.Env.Inconclusive("D's operation makes more than %d requests", maxSteps)
}

// arm arms a fault and notes it in the history.
func (f *faulty) arm(kind faultproxy.Kind, n int) *faultproxy.Fault {
	f.announce(kind, n)
	return f.p.Arm(kind, n)
}

func (f *faulty) announce(kind faultproxy.Kind, n int) {
	f.Env.Note("from here on, D's request number %d %v", n, kind)
}

// under makes a call while a fault is armed for its nth request, and reports whether it reached
// that. The key and the token must be new, since requests that D makes in the background after an
// earlier call, such as those of a cleanup, do not count.
func (f *faulty) under(kind faultproxy.Kind, n int, op, key, token string, ttl time.Duration) (r harness.Call, reached bool) {
	f.announce(kind, n)
	x := f.p.ArmBut(kind, n, []string{key, token}, f.past)
	r = f.Do(op, key, token, ttl)
	f.p.Disarm()
	f.past = append(f.past, key, token)
	if !x.Acted() {
		f.Must(r, true, fmt.Sprintf("it made %s, none of which was affected", harness.Plural(n-1, "request")))
	}
	return r, x.Acted()
}

// insists makes a call until it is not an error: a client may have to find out first which of its
// connections have ended.
func (f *faulty) insists(op, key, token string, ttl time.Duration) harness.Call {
	return f.untilSure(func() harness.Call { return f.Do(op, key, token, ttl) })
}

func (f *faulty) untilSure(do func() harness.Call) harness.Call {
	for errs, begun := 0, time.Now(); ; errs++ {
		r := do()
		if r.Err == nil {
			return r
		}
		f.Env.Overdue(harness.Healing, time.Since(begun), r.Causes(), r.Key, fmt.Sprintf("on a link that works, D.%s succeeds after at most a few errors",
			r.Op), fmt.Sprintf("%s, the last one: %v", harness.Plural(errs+1, "error"), r.Err))
		f.Env.Sleep(min(time.Duration(errs+1)*5*time.Millisecond, 250*time.Millisecond))
	}
}

// prepared makes D acquire a fresh key.
func (f *faulty) prepared(ttl time.Duration) (key, token string, held harness.Call) {
	key, token = f.Env.Key(), f.Env.Token()
	held = f.insists("Acquire", key, token, ttl)
	return key, token, f.Must(held, true, "the key is fresh")
}

// gives ends the check if r is false, nil.
func (f *faulty) gives(r harness.Call, why string) {
	if r.Err == nil && !r.OK {
		f.Env.Fail(fmt.Sprintf("D.%s = an error, or true: %s", r.Op, why), fmt.Sprintf("D.%s = %s", r.Op, r.Result()))
	}
}
