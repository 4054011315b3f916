package conformance

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"time"

	"github.com/golockers/locker/conformance/internal/harness"
	"github.com/golockers/locker/window"
)

// counterEnv is one run of a check, with two Counters, A and B, that represent two processes.
type counterEnv struct {
	*attempt
	config CounterConfig

	a, b *counterClient
	keys map[string]int // the number of each key
}

// task returns the check, of c.
func (ck counterCheck) task(c CounterConfig) harness.Task {
	return task(ck.name, ck.rule, ck.cause, c.Skip, func(a *attempt) {
		e := &counterEnv{attempt: a, config: c}
		for _, n := range ck.needs {
			if n == needsEternal && c.Eternal == nil || n == needsCounterAddr && c.Addr == "" {
				e.tb.SkipFor(string(n))
			}
		}
		e.a, e.b = e.client("A", c.Addr), e.client("B", c.Addr)
		if _, ok := e.a.counter.(window.Enforcer); !ok && slices.Contains(ck.needs, needsEnforcer) {
			e.tb.SkipFor(string(needsEnforcer))
		}
		ck.run(e)
	})
}

func (e *counterEnv) client(name, addr string) *counterClient {
	c := e.config.New(e.tb, addr)
	if c == nil {
		e.failed("  CounterConfig.New returned nil")
	}
	return &counterClient{e: e, name: name, counter: c}
}

// key returns a new key without counts.
func (e *counterEnv) key() string { return e.named("conformance/" + rand.Text()) }

func (e *counterEnv) named(key string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.keys == nil {
		e.keys = make(map[string]int)
	}
	e.keys[key] = len(e.keys) + 1
	return key
}

func (e *counterEnv) describeKey(key string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return fmt.Sprintf("k%d", e.keys[key])
}

// fail ends the check, because the reply is wrong.
func (e *counterEnv) fail(r countReply, want string) {
	e.failed(fmt.Sprintf("%s\n  want          %s: %s\n  got           %s", e.historyText(), r.call, want, r))
}

// tooSlow ends the attempt, because a window ended before its counts could be read.
func (e *counterEnv) tooSlow() {
	e.void("a window ended in the middle of the check")
}

// counterClient is a Counter that records its calls.
type counterClient struct {
	e       *counterEnv
	name    string
	counter window.Counter
	ctx     context.Context // of its calls; if nil, a context that lasts long enough
}

// with returns a client whose calls use ctx.
func (c *counterClient) with(ctx context.Context) *counterClient {
	with := *c
	with.ctx = ctx
	return &with
}

// countReply is the result of a call, and the time when it returned.
type countReply struct {
	e          *counterEnv
	call       string
	key        string
	n          int64
	rule       window.Rule // Limit 0: of a Count
	counts     window.Counts
	counted    bool
	err        error
	start, end time.Time
}

func (r countReply) String() string {
	switch {
	case r.err != nil:
		return "error " + r.err.Error()
	case r.rule.Limit > 0:
		return fmt.Sprintf("%d, %d, %v left; %v", r.counts.Current, r.counts.Previous, r.counts.Left, r.counted)
	}
	return fmt.Sprintf("%d, %d, %v left", r.counts.Current, r.counts.Previous, r.counts.Left)
}

// do makes a call, and records it.
func (c *counterClient) do(r countReply, call func(ctx context.Context) (window.Counts, bool, error)) countReply {
	r.e, r.call, r.start = c.e, c.name+"."+r.call, time.Now()
	var got countReply
	got, r.end, r.err = called(c.ctx, func(ctx context.Context) (got countReply, err error) {
		got.counts, got.counted, err = call(ctx)
		return got, err
	})
	r.counts, r.counted = got.counts, got.counted
	c.e.note("%s = %s after %v", r.call, r, r.end.Sub(r.start).Round(10*time.Microsecond))
	return r
}

// tries calls Count, which may fail.
func (c *counterClient) tries(key string, n int64, per time.Duration) countReply {
	return c.do(countReply{
		call: fmt.Sprintf("Count(%s, %d, %v)", c.e.describeKey(key), n, per), key: key, n: n, rule: window.Rule{Per: per},
	}, func(ctx context.Context) (window.Counts, bool, error) {
		counts, err := c.counter.Count(ctx, key, n, per)
		return counts, err == nil, err
	})
}

// counts calls Count, which must not fail.
func (c *counterClient) counts(key string, n int64, per time.Duration) countReply {
	return c.tries(key, n, per).plausible()
}

// under calls CountUnder, which must not fail.
func (c *counterClient) under(key string, n int64, rule window.Rule) countReply {
	return c.triesUnder(key, n, rule).plausible()
}

// triesUnder calls CountUnder, which may fail.
func (c *counterClient) triesUnder(key string, n int64, rule window.Rule) countReply {
	return c.do(countReply{
		call: fmt.Sprintf("CountUnder(%s, %d, %d in %v)", c.e.describeKey(key), n, rule.Limit, rule.Per),
		key:  key, n: n, rule: rule,
	}, func(ctx context.Context) (window.Counts, bool, error) {
		return c.counter.(window.Enforcer).CountUnder(ctx, key, n, rule)
	})
}

// plausible fails unless r is without an error and within its ranges.
func (r countReply) plausible() countReply {
	least := int64(0)
	if r.counted {
		least = r.n
	}
	switch {
	case r.err != nil:
		r.e.fail(r, "no error")
	case r.counts.Left <= 0 || r.counts.Left > r.rule.Per:
		r.e.fail(r, fmt.Sprintf("more than 0 and at most %v left", r.rule.Per))
	case r.counts.Current < least || r.counts.Previous < 0:
		r.e.fail(r, fmt.Sprintf("a count of at least %d, and a previous one of at least 0", least))
	}
	return r
}

// wants fails unless the counts are these.
func (r countReply) wants(current, previous int64) countReply {
	if r.counts.Current != current || r.counts.Previous != previous {
		r.e.fail(r, fmt.Sprintf("%d, %d", current, previous))
	}
	return r
}

// ends returns the earliest and the latest time at which the window of r may end.
func (r countReply) ends() (earliest, latest time.Time) {
	return r.start.Add(r.counts.Left - 2*harness.Rounding.Time), r.end.Add(r.counts.Left + 2*harness.Rounding.Time)
}

// after returns the number of windows between first's and r's. It ends the attempt if that cannot
// be determined.
func (r countReply) after(first countReply) int {
	per := first.rule.Per
	if r.end.Sub(r.start) > per/4 || first.end.Sub(first.start) > per/4 {
		r.e.tooSlow()
	}
	between := r.end.Add(r.counts.Left).Sub(first.end.Add(first.counts.Left))
	return int((between + per/2) / per)
}

// unbroken ends the attempt unless r was in the same window as first.
func (r countReply) unbroken(first countReply) countReply {
	return r.isAfter(first, 0)
}

// isAfter ends the attempt unless r was that many windows after first.
func (r countReply) isAfter(first countReply, windows int) countReply {
	if r.after(first) != windows {
		r.e.tooSlow()
	}
	return r
}

// over sleeps until the window of r has ended.
func (r countReply) over() {
	_, latest := r.ends()
	time.Sleep(time.Until(latest))
}

// fresh waits until a window of length per has just begun, so that most of it is left.
func (e *counterEnv) fresh(per time.Duration) {
	for range 20 {
		r := e.a.counts(e.key(), 0, per)
		if left := r.counts.Left - r.end.Sub(r.start); left > per/4*3 {
			return
		}
		r.over()
	}
	e.tooSlow()
}
