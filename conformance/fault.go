package conformance

import (
	"fmt"
	"slices"
	"time"
)

// The fault checks put a proxy between the backend and one client, D, and break its link: on the way of a
// request, on the way of a reply, for a moment or for long. A, B and C go past the proxy and see what became
// of the lock.
//
// How many requests an operation makes is the adapter's affair. So a fault is tried on the first request of
// an operation, on the second, and so on, until the operation is done without reaching that request.

func faultChecks() []check {
	list := slices.Concat(lostReplyChecks(), pausedChecks(), hangChecks(), lateChecks(), brokenLinkChecks(),
		waitingFaultChecks(), pushChecks(), repeatedChecks())
	for i := range list {
		list[i].needs |= needsNetwork
	}
	return list
}

// faulty is the client whose link can be broken.
type faulty struct {
	*client
	p    *proxy
	slow time.Duration // how long an operation took when nothing was in its way
}

// faulty makes a proxy and the client D behind it, and warms it up: connections are there, scripts loaded.
func newFaulty(e *env) *faulty {
	p := newProxy(e.tb, e.addr())
	f := &faulty{client: e.client("D", e.newLocker(p.addr)), p: p}
	e.tb.Cleanup(func() { e.handOver(f.client, e.A) })
	f.warm()
	f.calm()
	f.note()
	return f
}

func (f *faulty) note() {
	f.e.note("D is on a link of its own, which can be broken; A, B and C are on others")
}

// calm waits until the other checks, which all begin at the same time, leave D some of the machine. What
// hurries here is a fault that has to come at its moment.
func (f *faulty) calm() {
	for end := time.Now().Add(10 * time.Second); f.slow > 50*time.Millisecond && time.Now().Before(end); {
		f.e.sleep(max(250*time.Millisecond, f.slow))
		f.warm()
	}
}

// warm does each operation once, and again until it is no error: afterwards the connections that it uses
// are in order.
func (f *faulty) warm() {
	key, token := f.e.key(), f.e.token()
	f.slow = 0
	for _, op := range []string{"Acquire", "Extend", "Release"} {
		r := f.untilSure(func() call { return f.quietly(op, key, token, asked(op, long)) })
		f.slow = max(f.slow, r.end.Sub(r.start))
	}
}

// moment is how long something takes that D does at once, and that nobody sees the end of.
func (f *faulty) moment() time.Duration { return min(200*time.Millisecond+3*f.slow, 2*time.Second) }

// maxSteps is more requests than an operation makes.
const maxSteps = 20

// asked is the ttl that op asks for: a Release and a Fence ask for none.
func asked(op string, ttl time.Duration) time.Duration {
	if op == "Release" || op == "Fence" {
		return 0
	}
	return ttl
}

// eachStep runs try for the first request of an operation, the second, and so on, until one says that the
// operation was done without that request. An operation that does not come to its first request was not
// checked, nor was all of one that makes more than maxSteps.
func (f *faulty) eachStep(try func(n int) (reached bool)) {
	for n := 1; n <= maxSteps; n++ {
		if !try(n) {
			if n == 1 {
				f.e.inconclusive("D's operation was done without a request that a fault could befall")
			}
			return
		}
		f.e.forget()
		f.note()
	}
	f.e.inconclusive("D's operation makes more than %d requests", maxSteps)
}

// arm arms a fault and says so in the journal.
func (f *faulty) arm(kind faultKind, n int) *fault {
	f.e.note("from here on, D's request number %d %v", n, kind)
	return f.p.arm(kind, n)
}

// under does one operation while a fault is armed for its nth request, and says whether that came.
func (f *faulty) under(kind faultKind, n int, op, key, token string, ttl time.Duration) (r call, reached bool) {
	x := f.arm(kind, n)
	r = f.do(op, key, token, ttl)
	f.p.disarm()
	if !x.acted() {
		f.must(r, true, fmt.Sprintf("its %s came before the fault, on a link that works", plural(n-1, "request")))
	}
	return r, x.acted()
}

func plural(n int, what string) string {
	if n == 1 {
		return "one " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// insists does an operation until it is no error: a client may have to find out first which of its
// connections have ended. The errors are bounded, and each operation may take its time.
func (f *faulty) insists(op, key, token string, ttl time.Duration) call {
	return f.untilSure(func() call { return f.do(op, key, token, ttl) })
}

func (f *faulty) untilSure(do func() call) call {
	for errs, end := 0, time.Now().Add(healing); ; errs++ {
		r := do()
		if r.err == nil {
			return r
		}
		if time.Now().After(end) {
			f.e.failLate(r.causes(), r.key, fmt.Sprintf("on a link that works, D.%s comes through after a few errors at most", r.op),
				fmt.Sprintf("%s in %v, the last one: %v", plural(errs+1, "error"), healing, r.err))
		}
		f.e.sleep(min(time.Duration(errs+1)*5*time.Millisecond, 250*time.Millisecond))
	}
}

// healing is how long a client may take to find out that its link works again. Some ask once a second.
const healing = 20 * time.Second

// prepared returns a key that token holds, taken by D itself.
func (f *faulty) prepared(ttl time.Duration) (key, token string, held call) {
	key, token = f.e.key(), f.e.token()
	held = f.insists("Acquire", key, token, ttl)
	return key, token, f.must(held, true, "the key is fresh")
}

// gives says that D may have r: an error, or true. False is a lie.
func (f *faulty) gives(r call, why string) {
	if r.err == nil && !r.ok {
		f.e.fail(fmt.Sprintf("D.%s = an error, or true: %s", r.op, why), fmt.Sprintf("D.%s = %s", r.op, r.result()))
	}
}
