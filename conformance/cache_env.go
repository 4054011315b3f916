package conformance

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"time"

	"github.com/golockers/locker/conformance/internal/harness"
	"github.com/golockers/locker/singleflight"
	"github.com/golockers/locker/singleflight/slots"
)

// longTTL is that of a value that is not to expire during a check.
const longTTL = 10 * time.Minute

// cacheEnv is one run of a check: two caches, A and B, that stand for two processes.
type cacheEnv[V any] struct {
	*attempt
	config CacheConfig[V]

	a, b *cacheClient[V]
	keys []string
}

// task returns the check, of c.
func (ck cacheCheck[V]) task(c CacheConfig[V]) harness.Task {
	return task(ck.name, ck.rule, ck.cause, c.Skip, func(a *attempt) {
		e := &cacheEnv[V]{attempt: a, config: c}
		for _, n := range ck.needs {
			if !e.has(n) {
				e.tb.SkipFor(string(n))
			}
		}
		ck.run(e)
	})
}

func (e *cacheEnv[V]) has(n cacheNeed) (ok bool) {
	switch n {
	case needsAddr:
		return e.config.Addr != ""
	case needsDamage:
		return e.config.Damage != nil
	}
	if e.a == nil {
		e.open(longTTL, longTTL)
	}
	c := e.a.cache
	switch n {
	case needsAdder:
		_, ok = c.(singleflight.Adder[V])
	case needsStale:
		_, ok = c.(singleflight.StaleCache[V])
	case needsDeleter:
		_, ok = c.(singleflight.Deleter[V])
	case needsKeeper:
		_, ok = c.(slots.Keeper[V])
	}
	return ok
}

// open makes A and B with these times.
func (e *cacheEnv[V]) open(ttl, stale time.Duration) {
	e.a = e.client("A", e.config.Addr, ttl, stale)
	e.b = e.client("B", e.config.Addr, ttl, stale)
}

// shortTTL is a ttl whose end the check waits for.
func (e *cacheEnv[V]) shortTTL() time.Duration {
	return e.stretched(400*time.Millisecond + 6*e.config.Granularity)
}

func (e *cacheEnv[V]) client(name, addr string, ttl, stale time.Duration) *cacheClient[V] {
	c := e.config.New(e.tb, addr, ttl, stale)
	if c == nil {
		e.failed("  CacheConfig.New returned nil")
	}
	return &cacheClient[V]{e: e, name: name, cache: c, ttl: ttl, stale: stale}
}

// key returns a new key, of which nothing is stored.
func (e *cacheEnv[V]) key() string { return e.named("conformance/" + rand.Text()) }

func (e *cacheEnv[V]) named(key string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.keys = append(e.keys, key)
	return key
}

// value returns the nth value, from the first again after the last.
func (e *cacheEnv[V]) value(n int) V { return e.config.Values[n%len(e.config.Values)] }

func (e *cacheEnv[V]) describe(v V) string {
	if i := slices.IndexFunc(e.config.Values, func(w V) bool { return e.config.Equal(v, w) }); i >= 0 {
		return fmt.Sprintf("Values[%d]", i)
	}
	return fmt.Sprintf("another value, %.64q", fmt.Sprint(v))
}

func (e *cacheEnv[V]) describeKey(key string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return fmt.Sprintf("k%d", slices.Index(e.keys, key)+1)
}

// fail ends the check: the reply is not what it must be.
func (e *cacheEnv[V]) fail(r cacheReply[V], want string) {
	e.failed(fmt.Sprintf("%s\n  want          %s: %s\n  got           %s",
		e.historyText(), r.call, want, r))
}

// tooSlow ends the attempt: something expired before it could be looked at.
func (e *cacheEnv[V]) tooSlow() {
	e.void("the machine or the backend was too slow")
}

// cacheClient is a cache that records what it is asked.
type cacheClient[V any] struct {
	e          *cacheEnv[V]
	name       string
	cache      singleflight.Cache[V]
	ttl, stale time.Duration
	ctx        context.Context // of its calls; nil: one that lasts long enough
}

// with returns a client whose calls have ctx.
func (c *cacheClient[V]) with(ctx context.Context) *cacheClient[V] {
	with := *c
	with.ctx = ctx
	return &with
}

// cacheReply is what a call returned, and when.
type cacheReply[V any] struct {
	e          *cacheEnv[V]
	call       string
	v          V
	reads      bool // it is Get's or Stale's
	ok         bool
	err        error
	start, end time.Time

	slot *slots.Slot[V] // of Look
	text string         // of a failure
}

func (r cacheReply[V]) String() string {
	switch {
	case r.err != nil && r.ok:
		return fmt.Sprintf("%s, with error %v", r.e.describe(r.v), r.err)
	case r.err != nil:
		return "error " + r.err.Error()
	case r.text != "":
		return fmt.Sprintf("the failure %.64q", r.text)
	case r.reads && r.ok:
		return r.e.describe(r.v)
	case r.reads:
		return "no value"
	}
	return fmt.Sprint(r.ok)
}

// do makes a call, and records it.
func (c *cacheClient[V]) do(reads bool, call func(ctx context.Context) (V, bool, error),
	format string, args ...any) cacheReply[V] {
	r := cacheReply[V]{e: c.e, reads: reads, start: time.Now()}
	r.call = c.name + "." + fmt.Sprintf(format, args...)
	type reply struct {
		v  V
		ok bool
	}
	var got reply
	got, r.end, r.err = called(c.ctx, func(ctx context.Context) (reply, error) {
		v, ok, err := call(ctx)
		return reply{v, ok}, err
	})
	r.v, r.ok = got.v, got.ok
	c.e.note("%s = %s after %v", r.call, r, r.end.Sub(r.start).Round(10*time.Microsecond))
	return r
}

func (c *cacheClient[V]) get(key string) cacheReply[V] {
	return c.do(true, func(ctx context.Context) (V, bool, error) {
		return c.cache.Get(ctx, key)
	}, "Get(%s)", c.e.describeKey(key))
}

func (c *cacheClient[V]) staleValue(key string) cacheReply[V] {
	return c.do(true, func(ctx context.Context) (V, bool, error) {
		return c.cache.(singleflight.StaleCache[V]).Stale(ctx, key)
	}, "Stale(%s)", c.e.describeKey(key))
}

func (c *cacheClient[V]) set(key string, v V) cacheReply[V] {
	return c.do(false, func(ctx context.Context) (zero V, _ bool, _ error) {
		err := c.cache.Set(ctx, key, v)
		return zero, err == nil, err
	}, "Set(%s, %s)", c.e.describeKey(key), c.e.describe(v))
}

func (c *cacheClient[V]) add(key string, v V) cacheReply[V] {
	return c.do(false, func(ctx context.Context) (zero V, _ bool, _ error) {
		added, err := c.cache.(singleflight.Adder[V]).Add(ctx, key, v)
		return zero, added, err
	}, "Add(%s, %s)", c.e.describeKey(key), c.e.describe(v))
}

func (c *cacheClient[V]) remove(key string) cacheReply[V] {
	return c.do(false, func(ctx context.Context) (zero V, _ bool, _ error) {
		err := c.cache.(singleflight.Deleter[V]).Delete(ctx, key)
		return zero, err == nil, err
	}, "Delete(%s)", c.e.describeKey(key))
}

// wantValue fails unless r is the value v.
func (r cacheReply[V]) wantValue(v V) {
	if r.err != nil || !r.ok || !r.e.config.Equal(r.v, v) {
		r.e.fail(r, r.e.describe(v))
	}
}

// wantNone fails unless r reports that there is no value.
func (r cacheReply[V]) wantNone() {
	if r.err != nil || r.ok || r.text != "" {
		r.e.fail(r, "no value")
	}
}

// wantOK fails unless r is a success, or an Add that added.
func (r cacheReply[V]) wantOK() cacheReply[V] {
	if r.err != nil || !r.ok {
		r.e.fail(r, "true")
	}
	return r
}

// wantRefused fails unless r is an Add that found a fresh value.
func (r cacheReply[V]) wantRefused() cacheReply[V] {
	if r.err != nil || r.ok {
		r.e.fail(r, "false")
	}
	return r
}

// wantError fails unless r is an error and nothing else.
func (r cacheReply[V]) wantError(want string, is func(error) bool) {
	if r.err == nil || r.ok || !is(r.err) {
		r.e.fail(r, want)
	}
}

// endsAfter is the moment before which what r stored for d must not end, as far as it matters.
func (r cacheReply[V]) endsAfter(d time.Duration) time.Time {
	return r.start.Add(d - r.e.config.Granularity)
}

// endsBefore is the moment at which what r stored for d has ended.
func (r cacheReply[V]) endsBefore(d time.Duration) time.Time {
	return r.end.Add(d + r.e.config.Granularity + harness.Rounding.Time)
}

// follow repeats read until the value that stored has stored for d has ended. It requires want
// while the value lasts, and nothing afterwards. Replies before from do not count.
func (e *cacheEnv[V]) follow(stored cacheReply[V], d time.Duration, from time.Time, want V,
	read func() cacheReply[V]) {
	seen := false
	for {
		r := read()
		switch {
		case r.err != nil:
			e.fail(r, "a reply")
		case r.ok && !e.config.Equal(r.v, want):
			e.fail(r, e.describe(want)+" or no value")
		case r.start.After(stored.endsBefore(d)):
			r.wantNone()
			if !seen {
				e.tooSlow()
			}
			return
		case r.start.After(from) && r.end.Before(stored.endsAfter(d)):
			r.wantValue(want)
			seen = true
		}
		time.Sleep(min(d/20, time.Until(stored.endsBefore(d))+time.Millisecond))
	}
}

// waitFor sleeps until what r stored for d has ended.
func (e *cacheEnv[V]) waitFor(r cacheReply[V], d time.Duration) {
	time.Sleep(time.Until(r.endsBefore(d)))
}
