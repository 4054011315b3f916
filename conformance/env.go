package conformance

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker"
)

// env is what one check works with: three clients of one backend, names that nobody else uses, and a journal
// of what was done, which a failure prints.
type env struct {
	tb      testing.TB // may be failed from any goroutine of the check
	rec     *recorder  // the same
	ctx     context.Context
	id      string // the value of the profiler label of the check's goroutines
	A, B, C *client

	suite   *suite
	check   check
	journal journal

	background sync.WaitGroup // what has to have returned before the check is over

	mu   sync.Mutex
	told bool               // why the check failed
	held map[[2]string]call // by key and token of what was acquired, to be released in the end
}

// client is a Locker with a name. Its methods do one operation each and write it into the journal; those
// that say what must come of it end the check when it does not.
type client struct {
	name   string
	l      locker.Locker
	e      *env
	shared bool // A, B or C: how long it takes says how slow the machine and the backend are
}

// opTimeout bounds every operation whose context is not what is being checked.
const opTimeout = 30 * time.Second

func newEnv(s *suite, ck check, r *recorder) *env {
	e := &env{tb: r, rec: r, ctx: r.Context(), id: rand.Text(), suite: s, check: ck, held: make(map[[2]string]call)}
	e.A = &client{"A", s.lockers[0], e, true}
	e.B = &client{"B", s.lockers[1], e, true}
	e.C = &client{"C", s.lockers[2], e, true}
	r.Cleanup(e.releaseAll)
	r.Cleanup(e.background.Wait) // the check's context has ended by then
	return e
}

// client makes a further client, for instance of a Locker behind a proxy.
func (e *env) client(name string, l locker.Locker) *client { return &client{name: name, l: l, e: e} }

// clients returns A, B and C.
func (e *env) clients() []*client { return []*client{e.A, e.B, e.C} }

func randomKey() string   { return "conformance/" + rand.Text() }
func randomToken() string { return rand.Text() }

// key returns a key that nobody else uses.
func (e *env) key() string { return e.journal.label("k", randomKey()) }

// token returns a token that nobody else uses.
func (e *env) token() string { return e.journal.label("t", randomToken()) }

// patience is how late a thing may come that has to come at all: an allowance for a machine that is busy or
// slow, which grows with what this run of the suite has seen of it.
func (e *env) patience() time.Duration { return e.suite.lag.allowance() }

// slack is patience with an expiry, which comes late by the backend's granularity as well. It makes a check
// more patient about late, never about early.
func (e *env) slack() time.Duration { return e.suite.config.Granularity + e.patience() }

// fail ends the check. Expected and happened are for a reader who does not know the check, who is told about
// the first failure only: others that its goroutines may have run into follow from it, mostly.
func (e *env) fail(expected, happened string) {
	e.tb.Helper()
	e.failAbout("", expected, happened)
}

// failAbout is fail where all that matters was done to one key.
func (e *env) failAbout(key, expected, happened string) {
	e.tb.Helper()
	e.failFor(e.check.causes, key, expected, happened)
}

// What commonly causes failures that are not what a check is about.
const (
	errorCauses = "what the error says. An operation on a backend that works is no error: look at the client's limits of " +
		"time and of connections, and at what the backend refuses."
	hungCauses = "a call that waits for another one, for a connection of an exhausted pool, or for the backend without a " +
		"limit of time; or a machine that is far too slow."
	panicCauses = "what the panic says."
)

// failLate is fail for what should have come and has not. It shows less directly what is wrong than a wrong
// answer does.
func (e *env) failLate(causes, key, expected, happened string) {
	e.tb.Helper()
	e.rec.setIndirect()
	e.failFor(causes, key, expected, happened)
}

// failFor is fail, about key if it is not empty, with causes of its own.
func (e *env) failFor(causes, key, expected, happened string) {
	e.tb.Helper()
	e.mu.Lock()
	first := !e.told
	e.told = true
	e.mu.Unlock()
	if !first {
		e.tb.FailNow()
	}
	e.tb.Fatalf("%s", e.journal.shorten(e.explain(key)+
		"  expected  "+indent(expected)+"\n"+
		"  happened  "+indent(happened)+"\n"+
		"  often     "+indent(causes)+"\n"))
}

// inconclusive ends the check: it could not check what it is for. The suite runs it again, by itself, a few
// times.
func (e *env) inconclusive(format string, args ...any) {
	e.rec.inconclusive(e.journal.shorten(fmt.Sprintf(format, args...)))
}

// inTime tries something that has to be done before a lock expires, with longer and longer times, until a
// try was in time.
func (e *env) inTime(what string, try func(scale time.Duration) (inTime bool)) {
	const longest = 16
	for scale := time.Duration(1); scale <= longest; scale *= 2 {
		if try(scale) {
			return
		}
		e.note("the machine or the backend was too slow for this; once more with twice the time")
	}
	e.inconclusive("%s: each time the lock's time was up before", what)
}

// explain says what is checked and what has been done so far, to key if it is not empty.
func (e *env) explain(key string) string {
	return e.check.name + "\n" +
		"  rule      " + indent(e.check.rule) + "\n" +
		"  done      " + indent(e.journal.about(key)) + "\n"
}

func indent(s string) string {
	return strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "\n            ")
}

// note writes into the journal what is no operation of a client.
func (e *env) note(format string, args ...any) { e.journal.add(fmt.Sprintf(format, args...)) }

// each runs fn n times at the same time and returns when all are done; when one of them failed the check,
// it ends here too.
func (e *env) each(n int, fn func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { e.guard(func() { fn(i) }) })
	}
	all.Wait()
	e.goOn()
}

// goOn ends the check if one of its goroutines has ended it.
func (e *env) goOn() {
	if e.tb.Failed() || e.rec.Inconclusive() {
		runtime.Goexit()
	}
}

// guard runs fn and takes its panic for a failure of the check.
func (e *env) guard(fn func()) {
	defer func() {
		if v := recover(); v != nil {
			e.failFor(panicCauses, "", "a Locker that does not panic", fmt.Sprintf("panic: %v\n%s", v, debug.Stack()))
		}
	}()
	fn()
}

// meanwhile does an operation beside the check. When it panics, the channel is closed without a result.
func (e *env) meanwhile(do func() call) <-chan call {
	result := make(chan call, 1)
	go func() {
		defer close(result)
		e.guard(func() { result <- do() })
	}()
	return result
}

// spread runs fn n times, some at the same time, and returns as each does.
func (e *env) spread(n int, fn func(i int)) {
	var next atomic.Int64
	e.each(min(n, 12), func(int) {
		for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
			fn(int(i))
		}
	})
}

// sleep returns after d, or when the check is over.
func (e *env) sleep(d time.Duration) { e.sleepUntil(time.Now().Add(d)) }

func (e *env) sleepUntil(t time.Time) {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-e.ctx.Done():
		runtime.Goexit() // the check is over, or was given up on
	}
}

func (e *env) remember(c call) {
	e.mu.Lock()
	defer e.mu.Unlock()
	id := [2]string{c.key, c.token}
	switch {
	case c.op == "Release" && c.ok:
		delete(e.held, id)
	case c.ok && c.op != "Fence":
		e.held[id] = c
	}
}

// releaseAll leaves nothing behind on a backend that others use, too.
func (e *env) releaseAll() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	e.mu.Lock()
	held := slices.Collect(maps.Values(e.held))
	e.mu.Unlock()
	var all sync.WaitGroup
	room := make(chan struct{}, 8)
	for _, c := range held {
		if time.Since(c.end) > c.ttl {
			continue
		}
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			e.guard(func() { c.client.l.Release(ctx, c.key, c.token) })
		})
	}
	all.Wait()
}

// ended checks that r failed with ctx's error. Why says when ctx ended.
func (e *env) ended(ctx context.Context, r call, why string) {
	if r.ok || !errors.Is(r.err, ctx.Err()) {
		e.fail(fmt.Sprintf("%s.%s = an error for which errors.Is(err, %q) holds, and no success: %s", r.client.name, r.op,
			ctx.Err().Error(), why), fmt.Sprintf("%s.%s = %s", r.client.name, r.op, r.result()))
	}
}

// has says whether the Lockers have optional behaviour.
func (e *env) has(what needs) bool {
	_, lacks := e.suite.lacks[what]
	return !lacks
}

// handOver makes another client release at the end of the check what from has not released.
func (e *env) handOver(from, to *client) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, c := range e.held {
		if c.client == from {
			c.client = to
			e.held[id] = c
		}
	}
}

// granularity is Config.Granularity.
func (e *env) granularity() time.Duration { return e.suite.config.Granularity }

// quickest is how long the quickest of some operations took before the checks began.
func (e *env) quickest() time.Duration { return e.suite.quickest }

// addr is Config.Addr.
func (e *env) addr() string { return e.suite.config.Addr }

// newLocker calls Config.New.
func (e *env) newLocker(addr string) locker.Locker { return e.suite.config.New(e.tb, addr) }

// skip ends the check, which does not apply to this Locker.
func (e *env) skip(reason string) { e.rec.skipFor(reason) }

// label gives s a short name of a kind, such as k1, and returns s.
func (e *env) label(kind, s string) string { return e.journal.label(kind, s) }

// short is how the history prints s.
func (e *env) short(s string) string { return e.journal.short(s) }

// at is how the history prints t.
func (e *env) at(t time.Time) string { return e.journal.at(t) }

// show adds a call that was made quietly to the history.
func (e *env) show(c call) { e.journal.show(c) }

// forget clears the history: what was done before has nothing to do with what follows.
func (e *env) forget() { e.journal.forget() }
