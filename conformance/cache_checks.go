package conformance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/golockers/locker/conformance/internal/faultproxy"
)

// cacheChecks returns all checks of a cache. What the Loader relies on is in the documentation of
// the interfaces of package singleflight.
func cacheChecks[V any]() []cacheCheck[V] {
	const (
		get    = "Get returns the value of key. ok is false if there is none that may be used, which is not an error."
		set    = "Set stores the value of key, replacing any other."
		add    = "Add stores the value of key if Get would find none, as one atomic step, and reports whether it did."
		stale  = "Stale returns the last value of key, after Get has found none."
		remove = "Delete removes the value of key, so that neither Get nor Stale returns it."
		lasts  = "A value lasts for its ttl, which its cache decides."
		ctx    = "A method should return when its context has ended."
		fails  = "A backend that cannot be asked is an error: it is not known that there is no value."
	)
	return []cacheCheck[V]{
		{"get/miss", get, "an error in place of ok = false for a key that is not there", nil, checkMiss[V]},
		{"set/round-trip", set, "a codec or a column that loses something; the zero value taken for none",
			nil, checkRoundTrip[V]},
		{"set/replaces", set, "an INSERT, or an add, in place of a replacement", nil, checkReplaces[V]},
		{"set/concurrent", set, "writing a value in more than one step", nil, checkConcurrent[V]},
		{"names/any", get, "names that are cut, trimmed, folded or escaped ambiguously", nil, checkNames[V]},
		{"expiry/on-time", lasts, "seconds taken for milliseconds, or an expiry that is not looked at", nil, checkExpiry[V]},
		{"expiry/set-renews", set, "an UPDATE that leaves the old expiry", nil, checkSetRenews[V]},

		{"add/absent", add, "Add that only updates", []cacheNeed{needsAdder}, checkAddAbsent[V]},
		{"add/fresh", add, "Add that is Set", []cacheNeed{needsAdder}, checkAddFresh[V]},
		{"add/no-renewal", add, "an expiry that is set although the value is not", []cacheNeed{needsAdder}, checkAddRenewal[V]},
		{"add/one-winner", add, "looking and storing in two steps", []cacheNeed{needsAdder}, checkAddRace[V]},
		{"add/expired", add, "an entry that is still there refuses although it has expired",
			[]cacheNeed{needsAdder}, checkAddExpired[V]},
		{"add/beside-stale", add, "an entry kept for Stale refuses, as memcached's add and SET NX do",
			[]cacheNeed{needsAdder, needsStale}, checkAddBesideStale[V]},
		{"add/one-winner-beside-stale", add, "looking at the stale value and replacing it in two steps",
			[]cacheNeed{needsAdder, needsStale}, checkAddRaceBesideStale[V]},

		{"stale/miss", stale, "an error in place of ok = false", []cacheNeed{needsStale}, checkStaleMiss[V]},
		{"stale/served", stale, "an entry that ends with its ttl", []cacheNeed{needsStale}, checkStaleServed[V]},
		{"stale/ends", stale, "a stale value without an expiry", []cacheNeed{needsStale}, checkStaleEnds[V]},
		{"stale/latest", stale, "a second copy that Set does not replace", []cacheNeed{needsStale}, checkStaleLatest[V]},

		{"delete/fresh", remove, "a Delete of another key, or of a copy", []cacheNeed{needsDeleter}, checkDelete[V]},
		{"delete/stale", remove, "deleting the fresh value alone", []cacheNeed{needsDeleter, needsStale}, checkDeleteStale[V]},
		{"delete/absent", "That there is none is not an error.", "an error for 0 deleted rows",
			[]cacheNeed{needsDeleter}, checkDeleteAbsent[V]},
		{"delete/add", add, "a mark of deletion that counts as a value", []cacheNeed{needsDeleter, needsAdder}, checkDeleteAdd[V]},

		{"context/ended", ctx, "an error of the client's own in place of the context's, or an error dropped",
			nil, checkContext[V]},
		{"damaged/get", "An entry that cannot be decoded is an error, not a value and not a miss.",
			"a decoding error that is dropped", []cacheNeed{needsDamage}, checkDamaged[V]},
		{"damaged/set", "Set replaces an entry that cannot be decoded.",
			"reading before writing", []cacheNeed{needsDamage}, checkDamagedSet[V]},
		{"fault/hangs", ctx + " " + fails, "a client that ignores contexts", []cacheNeed{needsAddr}, checkHangs[V]},
		{"fault/refused", fails, "an error dropped in Get", []cacheNeed{needsAddr}, checkRefused[V]},
	}
}

func checkMiss[V any](e *cacheEnv[V]) {
	e.open(longTTL, longTTL)
	key := e.key()
	e.a.get(nil, key).wantNone()
	e.a.set(nil, e.key(), e.value(0)).wantOK()
	e.a.get(nil, key).wantNone()
}

func checkRoundTrip[V any](e *cacheEnv[V]) {
	e.open(longTTL, longTTL)
	for _, v := range e.config.Values {
		key := e.key()
		e.a.set(nil, key, v).wantOK()
		e.a.get(nil, key).wantValue(v)
		e.b.get(nil, key).wantValue(v)
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
		by.set(nil, key, e.value(i)).wantOK()
		by.get(nil, key).wantValue(e.value(i))
		other.get(nil, key).wantValue(e.value(i))
	}
}

// Readers see a value that was stored, whole, while others store values.
func checkConcurrent[V any](e *cacheEnv[V]) {
	e.open(longTTL, longTTL)
	key := e.key()
	e.a.set(nil, key, e.value(0)).wantOK()
	const rounds = 25
	var workers sync.WaitGroup
	replies := make([][rounds]cacheReply[V], 2*len(e.config.Values))
	for i := range replies {
		client := []*cacheClient[V]{e.a, e.b}[i%2]
		workers.Go(func() {
			for n := range rounds {
				if i%2 == 0 {
					replies[i][n] = client.set(nil, key, e.value(i/2))
				} else {
					replies[i][n] = client.get(nil, key)
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
		"", " ", "\n", "\r\n", "\t", "\x00", "\x7f", "/", ":", "*", "?", "%", "%20", "+", "{}", "{a}", "}{", "\\", "'", `"`,
		"é", "e\u0301", "\u00a0", "\u2028", "\xff", "\xfe", "K", "k", "K\u200b", long + "1", long + "2", long[:300], long[:301],
	} {
		keys = append(keys, e.named(base+end))
	}
	for i, key := range keys {
		if r := e.b.get(nil, key); r.err != nil || r.ok {
			e.note("%s is %.100q, of which nothing is stored", e.describeKey(key), key)
			r.wantNone()
		}
		e.a.set(nil, key, e.value(i)).wantOK()
	}
	for i, key := range keys {
		if r := e.b.get(nil, key); r.err != nil || !r.ok || !e.config.Equal(r.v, e.value(i)) {
			e.note("%s is %.100q", e.describeKey(key), key)
			r.wantValue(e.value(i))
		}
	}
}

func checkExpiry[V any](e *cacheEnv[V]) {
	e.open(e.shortTTL(), 0)
	key := e.key()
	r := e.a.set(nil, key, e.value(0)).wantOK()
	e.follow(r, e.a.ttl, r.end, e.value(0), func() cacheReply[V] { return e.b.get(nil, key) })
}

func checkSetRenews[V any](e *cacheEnv[V]) {
	e.open(e.shortTTL(), 0)
	key := e.key()
	first := e.a.set(nil, key, e.value(0)).wantOK()
	time.Sleep(e.a.ttl / 2)
	second := e.b.set(nil, key, e.value(1)).wantOK()
	e.follow(second, e.a.ttl, first.endsBefore(e.a.ttl), e.value(1), func() cacheReply[V] { return e.a.get(nil, key) })
}

func checkAddAbsent[V any](e *cacheEnv[V]) {
	e.open(longTTL, longTTL)
	for i, v := range e.config.Values {
		key := e.key()
		e.a.add(nil, key, v).wantOK()
		e.b.get(nil, key).wantValue(v)
		e.b.add(nil, key, e.value(i+1)).wantRefused()
	}
}

func checkAddFresh[V any](e *cacheEnv[V]) {
	e.open(longTTL, longTTL)
	key := e.key()
	e.a.set(nil, key, e.value(0)).wantOK()
	e.b.add(nil, key, e.value(1)).wantRefused()
	e.a.add(nil, key, e.value(0)).wantRefused()
	e.b.get(nil, key).wantValue(e.value(0))
}

func checkAddRenewal[V any](e *cacheEnv[V]) {
	e.open(e.shortTTL(), 0)
	key := e.key()
	stored := e.a.set(nil, key, e.value(0)).wantOK()
	time.Sleep(e.a.ttl / 2)
	r := e.b.add(nil, key, e.value(1))
	if r.end.After(stored.endsAfter(e.a.ttl)) {
		e.tooSlow()
	}
	r.wantRefused()
	e.follow(stored, e.a.ttl, stored.end, e.value(0), func() cacheReply[V] { return e.a.get(nil, key) })
}

func checkAddExpired[V any](e *cacheEnv[V]) {
	e.open(e.shortTTL(), 0)
	key := e.key()
	e.waitFor(e.a.set(nil, key, e.value(0)).wantOK(), e.a.ttl)
	r := e.b.add(nil, key, e.value(1)).wantOK()
	e.follow(r, e.a.ttl, r.end, e.value(1), func() cacheReply[V] { return e.a.get(nil, key) })
}

func checkAddBesideStale[V any](e *cacheEnv[V]) {
	e.open(e.shortTTL(), longTTL)
	key := e.key()
	e.waitFor(e.a.set(nil, key, e.value(0)).wantOK(), e.a.ttl)
	e.a.get(nil, key).wantNone()
	r := e.b.add(nil, key, e.value(1)).wantOK()
	e.follow(r, e.a.ttl, r.end, e.value(1), func() cacheReply[V] { return e.a.get(nil, key) })
	e.a.staleValue(nil, key).wantValue(e.value(1))
}

const addRounds = 20

func checkAddRace[V any](e *cacheEnv[V]) {
	e.open(longTTL, longTTL)
	for range addRounds {
		e.raceAdd(e.key())
	}
}

func checkAddRaceBesideStale[V any](e *cacheEnv[V]) {
	e.open(e.shortTTL(), longTTL)
	var keys [addRounds]string
	var last cacheReply[V]
	for i := range keys {
		keys[i] = e.key()
		last = e.a.set(nil, keys[i], e.value(0)).wantOK()
	}
	e.waitFor(last, e.a.ttl)
	decided := 0
	for _, key := range keys {
		began := time.Now()
		replies := e.addTogether(key)
		if time.Since(began) < e.a.ttl-e.config.Granularity { // or what was added may have expired as well
			e.wantOneAdded(replies)
			decided++
		}
	}
	if decided == 0 {
		e.tooSlow()
	}
}

// raceAdd adds all values to key at the same time: one is added, and that one is there.
func (e *cacheEnv[V]) raceAdd(key string) {
	winner := e.wantOneAdded(e.addTogether(key))
	e.a.get(nil, key).wantValue(e.value(winner))
	e.b.get(nil, key).wantValue(e.value(winner))
}

func (e *cacheEnv[V]) addTogether(key string) []cacheReply[V] {
	replies := make([]cacheReply[V], len(e.config.Values))
	start := make(chan struct{})
	var contenders sync.WaitGroup
	for i := range replies {
		client := []*cacheClient[V]{e.a, e.b}[i%2]
		contenders.Go(func() {
			<-start
			replies[i] = client.add(nil, key, e.value(i))
		})
	}
	close(start)
	contenders.Wait()
	return replies
}

func (e *cacheEnv[V]) wantOneAdded(replies []cacheReply[V]) (winner int) {
	winner = -1
	for i, r := range replies {
		switch {
		case r.err != nil:
			e.fail(r, "true or false")
		case r.ok && winner >= 0:
			e.fail(r, fmt.Sprintf("false: %s is true", replies[winner].call))
		case r.ok:
			winner = i
		}
	}
	if winner < 0 {
		e.fail(replies[0], "true, of this or one of the others")
	}
	return winner
}

func checkStaleMiss[V any](e *cacheEnv[V]) {
	e.open(longTTL, longTTL)
	key := e.key()
	e.a.staleValue(nil, key).wantNone()
}

func checkStaleServed[V any](e *cacheEnv[V]) {
	e.open(e.shortTTL(), longTTL)
	key := e.key()
	r := e.a.set(nil, key, e.value(0)).wantOK()
	e.follow(r, e.a.ttl, r.end, e.value(0), func() cacheReply[V] { return e.b.get(nil, key) })
	e.b.staleValue(nil, key).wantValue(e.value(0))
	e.a.staleValue(nil, key).wantValue(e.value(0))
	e.a.get(nil, key).wantNone()
}

func checkStaleEnds[V any](e *cacheEnv[V]) {
	e.open(e.shortTTL(), e.shortTTL())
	key := e.key()
	r := e.a.set(nil, key, e.value(0)).wantOK()
	e.waitFor(r, e.a.ttl)
	e.follow(r, e.a.ttl+e.a.stale, r.endsBefore(e.a.ttl), e.value(0),
		func() cacheReply[V] { return e.b.staleValue(nil, key) })
}

func checkStaleLatest[V any](e *cacheEnv[V]) {
	e.open(e.shortTTL(), longTTL)
	key := e.key()
	e.a.set(nil, key, e.value(0)).wantOK()
	e.waitFor(e.b.set(nil, key, e.value(1)).wantOK(), e.a.ttl)
	e.a.staleValue(nil, key).wantValue(e.value(1))
	e.waitFor(e.a.set(nil, key, e.value(2)).wantOK(), e.a.ttl)
	e.b.staleValue(nil, key).wantValue(e.value(2))
}

func checkDelete[V any](e *cacheEnv[V]) {
	e.open(longTTL, longTTL)
	key, other := e.key(), e.key()
	e.a.set(nil, key, e.value(0)).wantOK()
	e.a.set(nil, other, e.value(1)).wantOK()
	e.b.remove(nil, key).wantOK()
	e.wantGone(key)
	e.a.get(nil, other).wantValue(e.value(1))
}

// wantGone fails unless there is neither a fresh nor a stale value.
func (e *cacheEnv[V]) wantGone(key string) {
	for _, client := range []*cacheClient[V]{e.a, e.b} {
		client.get(nil, key).wantNone()
		if e.has(needsStale) {
			client.staleValue(nil, key).wantNone()
		}
	}
}

func checkDeleteStale[V any](e *cacheEnv[V]) {
	e.open(e.shortTTL(), longTTL)
	key := e.key()
	e.waitFor(e.a.set(nil, key, e.value(0)).wantOK(), e.a.ttl)
	e.b.remove(nil, key).wantOK()
	e.wantGone(key)
}

func checkDeleteAbsent[V any](e *cacheEnv[V]) {
	e.open(longTTL, longTTL)
	key := e.key()
	e.a.remove(nil, key).wantOK()
	e.a.set(nil, key, e.value(0)).wantOK()
	e.a.remove(nil, key).wantOK()
	e.b.remove(nil, key).wantOK()
}

func checkDeleteAdd[V any](e *cacheEnv[V]) {
	e.open(longTTL, longTTL)
	key := e.key()
	e.a.set(nil, key, e.value(0)).wantOK()
	e.b.remove(nil, key).wantOK()
	e.a.add(nil, key, e.value(1)).wantOK()
	e.b.get(nil, key).wantValue(e.value(1))
}

// A cache in memory may ignore a context that has ended. Otherwise its error is the reply.
func checkContext[V any](e *cacheEnv[V]) {
	e.open(longTTL, longTTL)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	ended := func(r cacheReply[V]) bool {
		if r.err != nil {
			r.wantError("ctx's error", func(err error) bool { return errors.Is(err, context.Canceled) })
		}
		return r.err != nil
	}
	key := e.key()
	e.a.set(nil, key, e.value(0)).wantOK()
	if r := e.a.get(ctx, key); !ended(r) {
		r.wantValue(e.value(0))
	}
	if r := e.a.set(ctx, key, e.value(1)); !ended(r) {
		e.b.get(nil, key).wantValue(e.value(1))
	}
	if e.has(needsAdder) {
		if r := e.a.add(ctx, key, e.value(2)); !ended(r) {
			r.wantRefused()
		}
	}
	if e.has(needsDeleter) {
		if r := e.a.remove(ctx, key); !ended(r) {
			e.wantGone(key)
		}
	}
}

func checkDamaged[V any](e *cacheEnv[V]) {
	e.open(longTTL, longTTL)
	key := e.key()
	e.a.set(nil, key, e.value(0)).wantOK()
	e.config.Damage(e.tb, key)
	e.note("the value of %s is damaged", e.describeKey(key))
	e.a.get(nil, key).wantError("an error that is about the value, not the network",
		func(err error) bool { return !isNoAnswer(err) })
}

// isNoAnswer reports whether a Loader takes err for that of a backend that does not answer, and so
// leaves the backend alone for a while.
func isNoAnswer(err error) bool {
	return errors.As(err, new(net.Error)) || errors.Is(err, context.DeadlineExceeded)
}

func checkDamagedSet[V any](e *cacheEnv[V]) {
	e.open(longTTL, longTTL)
	key := e.key()
	e.a.set(nil, key, e.value(0)).wantOK()
	e.config.Damage(e.tb, key)
	e.note("the value of %s is damaged", e.describeKey(key))
	e.a.set(nil, key, e.value(1)).wantOK()
	e.b.get(nil, key).wantValue(e.value(1))
	if !e.has(needsDeleter) {
		return
	}
	e.config.Damage(e.tb, key)
	e.note("the value of %s is damaged", e.describeKey(key))
	e.a.remove(nil, key).wantOK()
	e.wantGone(key)
}

func checkHangs[V any](e *cacheEnv[V]) {
	e.fault("hangs", (*faultproxy.Proxy).Hang, func(client *cacheClient[V], key string) {
		for _, call := range client.calls(key) {
			ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
			r := call(ctx)
			cancel()
			r.wantError("context.DeadlineExceeded or a net.Error", isNoAnswer)
		}
	})
}

func checkRefused[V any](e *cacheEnv[V]) {
	e.fault("refuses connections", (*faultproxy.Proxy).Refuse, func(client *cacheClient[V], key string) {
		for _, call := range client.calls(key) {
			call(nil).wantError("an error", func(error) bool { return true })
		}
	})
}

// fault lets test call a cache, C, whose backend stops working, and requires that it works again
// once the backend does.
func (e *cacheEnv[V]) fault(what string, begin func(*faultproxy.Proxy), test func(client *cacheClient[V], key string)) {
	if conn, err := net.DialTimeout("tcp", e.config.Addr, cachePatience); err != nil {
		e.end(cacheFailed, "  CacheConfig.Addr: no server answers: "+err.Error())
	} else {
		conn.Close()
	}
	proxy := faultproxy.New(e.tb, e.config.Addr)
	client := e.client("C", proxy.Addr, longTTL, longTTL)
	key := e.key()
	client.set(nil, key, e.value(0)).wantOK()
	client.get(nil, key).wantValue(e.value(0))
	if _, connections := proxy.Count(); connections == 0 {
		e.end(cacheFailed, "  CacheConfig.New does not use its addr")
	}
	begin(proxy)
	e.note("from here on C's backend %s", what)
	test(client, key)
	proxy.Heal(e.tb)
	e.note("C's backend works again")
	for end := time.Now().Add(cachePatience); ; time.Sleep(20 * time.Millisecond) {
		another := e.key() // what was left behind may still reach the first
		if r := client.set(nil, another, e.value(0)); r.err == nil {
			client.get(nil, another).wantValue(e.value(0))
			return
		} else if time.Now().After(end) {
			e.fail(r, "true, now that the backend works")
		}
	}
}

// calls are all operations of c on key.
func (c *cacheClient[V]) calls(key string) []func(context.Context) cacheReply[V] {
	calls := []func(context.Context) cacheReply[V]{
		func(ctx context.Context) cacheReply[V] { return c.get(ctx, key) },
		func(ctx context.Context) cacheReply[V] { return c.set(ctx, key, c.e.value(1)) },
	}
	if c.e.has(needsStale) {
		calls = append(calls, func(ctx context.Context) cacheReply[V] { return c.staleValue(ctx, key) })
	}
	if c.e.has(needsAdder) {
		calls = append(calls, func(ctx context.Context) cacheReply[V] { return c.add(ctx, key, c.e.value(1)) })
	}
	if c.e.has(needsDeleter) {
		calls = append(calls, func(ctx context.Context) cacheReply[V] { return c.remove(ctx, key) })
	}
	return calls
}
