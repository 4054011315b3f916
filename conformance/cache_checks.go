package conformance

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// The rules of a cache. Those above the empty line are in the documentation of package singleflight.
const (
	cacheGet        = "ok is false if there is none that may be used, which is not an error."
	cacheSet        = "Set stores the value of key, replacing any other."
	cacheAdd        = "Add stores the value of key if Get would find none, as one atomic step."
	cacheStale      = "Stale returns the last value of key, after Get has found none."
	cacheDelete     = "Delete removes the value of key, so that neither Get nor Stale returns it."
	cacheDeleteNone = "It is not an error if there is none."
	cacheContext    = "A method should return when its context has ended."

	cacheLasts   = "Get and Stale return a value for as long as the cache was made to, and no longer."
	cacheDamaged = "An entry that cannot be decoded is an error, neither a value nor a miss."
	cacheDown    = "A backend that does not answer is an error, not a miss."
)

// cacheChecks returns all checks of a cache.
func cacheChecks[V any]() []cacheCheck[V] {
	return slices.Concat(cacheBasicChecks[V](), cacheAddChecks[V](), cacheStaleChecks[V](), cacheSlotChecks[V](),
		cacheFaultChecks[V]())
}

// cacheBasicChecks are those of every cache.
func cacheBasicChecks[V any]() []cacheCheck[V] {
	return []cacheCheck[V]{
		{
			name: "get/miss", rule: cacheGet, run: checkMiss[V],
			cause: "an error in place of ok = false for a key that is not there",
		},
		{
			name: "set/round-trip", rule: cacheSet, run: checkRoundTrip[V],
			cause: "a codec or a column that loses something; the zero value taken for none",
		},
		{
			name: "set/replaces", rule: cacheSet, run: checkReplaces[V],
			cause: "an INSERT, or an add, in place of a replacement",
		},
		{
			name: "set/concurrent", rule: cacheSet, run: checkConcurrent[V],
			cause: "writing a value in more than one step",
		},
		{
			name: "names/any", rule: cacheGet, run: checkNames[V],
			cause: "names that are cut, trimmed, folded or escaped ambiguously",
		},
		{
			name: "expiry/on-time", rule: cacheLasts, run: checkExpiry[V],
			cause: "seconds taken for milliseconds, or an expiry that is never compared with the time",
		},
		{
			name: "expiry/set-renews", rule: cacheSet, run: checkSetRenews[V],
			cause: "an UPDATE that leaves the old expiry",
		},
	}
}

func checkMiss[V any](e *cacheEnv[V]) {
	e.open(longTTL, longTTL)
	key := e.key()
	e.a.get(key).wantNone()
	e.a.set(e.key(), e.value(0)).wantOK()
	e.a.get(key).wantNone()
}

func checkRoundTrip[V any](e *cacheEnv[V]) {
	e.open(longTTL, longTTL)
	for _, v := range e.config.Values {
		key := e.key()
		e.a.set(key, v).wantOK()
		e.a.get(key).wantValue(v)
		e.b.get(key).wantValue(v)
	}
}

func checkReplaces[V any](e *cacheEnv[V]) {
	e.open(longTTL, longTTL)
	key := e.key()
	for i := range 2 * len(e.config.Values) {
		by, other := e.a, e.b
		if i%2 == 1 {
			by, other = other, by
		}
		by.set(key, e.value(i)).wantOK()
		by.get(key).wantValue(e.value(i))
		other.get(key).wantValue(e.value(i))
	}
}

// Readers see a value that was stored, whole, while others store values.
func checkConcurrent[V any](e *cacheEnv[V]) {
	e.open(longTTL, longTTL)
	key := e.key()
	e.a.set(key, e.value(0)).wantOK()
	const rounds = 25
	var workers sync.WaitGroup
	replies := make([][rounds]cacheReply[V], 2*len(e.config.Values))
	for i := range replies {
		client := []*cacheClient[V]{e.a, e.b}[i%2]
		workers.Go(func() {
			for n := range rounds {
				if i%2 == 0 {
					replies[i][n] = client.set(key, e.value(i/2))
				} else {
					replies[i][n] = client.get(key)
				}
			}
		})
	}
	workers.Wait()
	for i := range replies {
		for _, r := range replies[i] {
			if r.wantOK(); r.reads && strings.HasPrefix(e.describe(r.v), "another") {
				e.fail(r, "one of Values")
			}
		}
	}
}

func checkNames[V any](e *cacheEnv[V]) {
	e.open(longTTL, longTTL)
	base := e.key()
	long := strings.Repeat("k", 1024-len(base)-1)
	var keys []string
	for _, end := range []string{
		"", " ", "\n", "\r\n", "\t", "\x00", "\x7f", "/", ":", "*", "?", "%", "%20", "+", "{}", "{a}", "}{",
		"\\", "'", `"`, "é", "e\u0301", "\u00a0", "\u2028", "\xff", "\xfe", "K", "k", "K\u200b",
		long + "1", long + "2", long[:300], long[:301],
	} {
		keys = append(keys, e.named(base+end))
	}
	for i, key := range keys {
		if r := e.b.get(key); r.err != nil || r.ok {
			e.note("%s is %.100q, of which nothing is stored", e.describeKey(key), key)
			r.wantNone()
		}
		e.a.set(key, e.value(i)).wantOK()
	}
	for i, key := range keys {
		if r := e.b.get(key); r.err != nil || !r.ok || !e.config.Equal(r.v, e.value(i)) {
			e.note("%s is %.100q", e.describeKey(key), key)
			r.wantValue(e.value(i))
		}
	}
}

func checkExpiry[V any](e *cacheEnv[V]) {
	e.open(e.shortTTL(), 0)
	key := e.key()
	r := e.a.set(key, e.value(0)).wantOK()
	e.follow(r, e.a.ttl, r.end, e.value(0), func() cacheReply[V] { return e.b.get(key) })
}

func checkSetRenews[V any](e *cacheEnv[V]) {
	e.open(e.shortTTL(), 0)
	key := e.key()
	first := e.a.set(key, e.value(0)).wantOK()
	time.Sleep(e.a.ttl / 2)
	second := e.b.set(key, e.value(1)).wantOK()
	e.follow(second, e.a.ttl, first.endsBefore(e.a.ttl), e.value(1),
		func() cacheReply[V] { return e.a.get(key) })
}
