package harness

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
	"testing"
	"time"

	"github.com/golockers/locker"
)

// Env is what a check works with: three clients of one backend, names that nothing else uses, and
// the history of its calls.
type Env struct {
	TB      testing.TB // may be failed from any goroutine of the check
	Ctx     context.Context
	ID      string // the profiler label of the check's goroutines
	A, B, C *Client
	Check   Check

	rec        *Recorder // TB
	suite      *Suite
	history    history
	background sync.WaitGroup // must end before the check does
	stretch    float64        // of the check's times, at least 1
	lag        *Lag           // since the check began

	mu   sync.Mutex
	told bool               // a failure has been printed
	held map[[2]string]Call // by key and token, the acquisitions to be released in the end
}

func newEnv(s *Suite, ck Check, r *Recorder, stretch float64) *Env {
	e := &Env{TB: r, rec: r, Ctx: r.Context(), ID: rand.Text(), suite: s, Check: ck, stretch: stretch,
		held: make(map[[2]string]Call)}
	r.again = stretch > 1
	var end func()
	e.lag, end = s.pace.begin()
	r.Cleanup(end)
	e.A = &Client{"A", s.Lockers[0], e, true}
	e.B = &Client{"B", s.Lockers[1], e, true}
	e.C = &Client{"C", s.Lockers[2], e, true}
	r.Cleanup(e.releaseAll)
	r.Cleanup(e.background.Wait) // by then the check's context has ended
	return e
}

// NewClient returns a client of l, for instance of a Locker behind a proxy.
func (e *Env) NewClient(name string, l locker.Locker) *Client {
	return &Client{Name: name, Locker: l, Env: e}
}

// Clients returns A, B and C.
func (e *Env) Clients() []*Client { return []*Client{e.A, e.B, e.C} }

// Has reports whether the Lockers can do what is needed.
func (e *Env) Has(what Needs) bool { return !e.suite.Lacks(what) }

// Granularity returns Config.Granularity.
func (e *Env) Granularity() time.Duration { return e.suite.Config.Granularity }

// Addr returns Config.Addr.
func (e *Env) Addr() string { return e.suite.Config.Addr }

// NewLocker calls Config.New.
func (e *Env) NewLocker(addr string) locker.Locker { return e.suite.Config.New(e.TB, addr) }

// LoseData calls Config.LoseData.
func (e *Env) LoseData() {
	e.TB.Helper()
	ctx, cancel := context.WithTimeout(e.Ctx, OpTimeout)
	defer cancel()
	if err := e.suite.Config.LoseData(ctx); err != nil {
		e.Inconclusive("Config.LoseData: %v", err)
	}
}

// Quickest returns the time of the quickest of some operations before the checks began.
func (e *Env) Quickest() time.Duration { return e.suite.quickest }

// RandomKey returns a key that nothing else uses and that has no short name.
func RandomKey() string { return "conformance/" + rand.Text() }

// RandomToken returns a token that nothing else uses and that has no short name.
func RandomToken() string { return rand.Text() }

// Key returns a key that nothing else uses.
func (e *Env) Key() string { return e.Label("k", RandomKey()) }

// Token returns a token that nothing else uses.
func (e *Env) Token() string { return e.Label("t", RandomToken()) }

// Label gives s a short name of a kind, such as k1, and returns s.
func (e *Env) Label(kind, s string) string { return e.history.label(kind, s) }

// Short returns s as the history prints it.
func (e *Env) Short(s string) string { return e.history.short(s) }

// At returns t as the history prints it.
func (e *Env) At(t time.Time) string { return e.history.at(t) }

// Note adds a remark to the history.
func (e *Env) Note(format string, args ...any) { e.history.add(fmt.Sprintf(format, args...)) }

// Show adds a quiet call to the history.
func (e *Env) Show(c Call) { e.history.show(c) }

// Forget clears the history, if what follows is independent of what was done before.
func (e *Env) Forget() { e.history.forget() }

// Fail ends the check. Want and got are for a reader who does not know the check. Only the first
// failure of a check is printed: those that other goroutines run into usually follow from it.
func (e *Env) Fail(want, got string) {
	e.TB.Helper()
	e.FailAbout("", want, got)
}

// FailAbout is Fail with the part of the history that concerns key.
func (e *Env) FailAbout(key, want, got string) {
	e.TB.Helper()
	e.failFor(e.Check.Causes, key, want, got)
}

// Common causes of failures that are not what a check is about.
const (
	errorCauses = "see the error. On a backend that works no operation returns an error: check the client's timeouts and " +
		"connection limit, and what the backend refuses."
	endedCauses = "a context's error, although the call's own context had not ended: that of another call, whose end closed " +
		"a connection that both used (give each Locker connections of its own, and each request a context that does not end " +
		"with the caller's: see leaving in examples/adapter/calls.go), or that of a shorter timeout of the client's."
	HungCauses = "a call that waits without a time limit for another call, for a connection of an exhausted pool, or for " +
		"the backend; or a machine that is far too slow."
	panicCauses = "see the panic."
)

func (e *Env) failFor(causes, key, want, got string) {
	e.TB.Helper()
	e.mu.Lock()
	first := !e.told
	e.told = true
	e.mu.Unlock()
	if !first {
		e.TB.FailNow()
	}
	e.TB.Fatalf("%s", e.history.shorten(e.explain(key)+part("want", want)+part("got", got)+part("common cause", causes)))
}

// explain returns the rules that the check enforces and its history, of key if that is not empty.
func (e *Env) explain(key string) string {
	return e.Check.Name + "\n" + part("rule", strings.Join(e.Check.Rules, "\n")) + part("history", e.history.about(key))
}

// part returns one part of a failure.
func part(name, text string) string {
	text = strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n                ")
	return fmt.Sprintf("  %-12s  %s\n", name, text)
}

// Skip ends the check, which does not apply to this Locker.
func (e *Env) Skip(reason string) { e.rec.SkipFor(reason) }

// GoOn ends the check's goroutine if another one has ended the check.
func (e *Env) GoOn() {
	if e.TB.Failed() || e.rec.Inconclusive() {
		runtime.Goexit()
	}
}

// Guard runs fn. A panic in it fails the check.
func (e *Env) Guard(fn func()) {
	defer func() {
		if v := recover(); v != nil {
			e.failFor(panicCauses, "", "a Locker that does not panic", fmt.Sprintf("panic: %v\n%s", v, debug.Stack()))
		}
	}()
	fn()
}

// Go runs fn in the background. The check does not end before fn has returned.
func (e *Env) Go(fn func()) { e.background.Go(func() { e.Guard(fn) }) }

// Meanwhile makes a call in the background. If it panics, the channel is closed without a result.
func (e *Env) Meanwhile(do func() Call) <-chan Call {
	result := make(chan Call, 1)
	go func() {
		defer close(result)
		e.Guard(func() { result <- do() })
	}()
	return result
}

// Sleep sleeps for d. It does not return if the check ends first.
func (e *Env) Sleep(d time.Duration) { e.SleepUntil(time.Now().Add(d)) }

// SleepUntil sleeps until t. It does not return if the check ends first.
func (e *Env) SleepUntil(t time.Time) {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-e.Ctx.Done():
		runtime.Goexit()
	}
}

// Ended checks that r returned ctx's error, and returns r. Why explains when ctx ended.
func (e *Env) Ended(ctx context.Context, r Call, why string) Call {
	if r.OK || !errors.Is(r.Err, ctx.Err()) {
		e.Fail(fmt.Sprintf("%s.%s returns an error that wraps %q: %s", r.Client.Name, r.Op, ctx.Err().Error(), why),
			fmt.Sprintf("%s.%s = %s", r.Client.Name, r.Op, r.Result()))
	}
	return r
}

// HandOver makes another client release at the end of the check what from still holds.
func (e *Env) HandOver(from, to *Client) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, c := range e.held {
		if c.Client == from {
			c.Client = to
			e.held[id] = c
		}
	}
}

func (e *Env) remember(c Call) {
	e.mu.Lock()
	defer e.mu.Unlock()
	id := [2]string{c.Key, c.Token}
	switch c.Op {
	case "Release":
		if c.OK {
			delete(e.held, id)
		}
	case "Acquire", "Extend", "Wait":
		if c.OK {
			e.held[id] = c
		}
	}
}

// releaseAll releases what the check still holds, for the sake of other users of the backend.
func (e *Env) releaseAll() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	e.mu.Lock()
	held := slices.Collect(maps.Values(e.held))
	e.mu.Unlock()
	var all sync.WaitGroup
	room := make(chan struct{}, 8)
	for _, c := range held {
		if time.Since(c.End) > c.TTL {
			continue
		}
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			e.Guard(func() { c.Client.Locker.Release(ctx, c.Key, c.Token) })
		})
	}
	all.Wait()
}
