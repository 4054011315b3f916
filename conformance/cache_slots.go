package conformance

import (
	"context"
	"fmt"
	"time"

	"github.com/golockers/locker/conformance/internal/harness"
	"github.com/golockers/locker/singleflight/slots"
)

// The rules of a cache that keeps loads, from the documentation of package slots.
const (
	cacheVersion = "So a value whose version is still the present one is not older than any change that was " +
		"followed by a deletion."
	cacheShared  = "Loads that begin before that share it."
	cacheAhead   = "There are a value and a version if the value lasts for less than Ahead."
	cacheFailure = "A load that failed less than Since ago counts."
)

// cacheSlotChecks are those of Look and Put.
func cacheSlotChecks[V any]() []cacheCheck[V] {
	keeper := []cacheNeed{needsKeeper, needsDeleter}
	return []cacheCheck[V]{
		{
			name: "slots/stored", rule: cacheVersion, needs: keeper, run: checkSlotStored[V],
			cause: "a version that is good for more than one value",
		},
		{
			name: "slots/deleted", rule: cacheVersion, needs: keeper, run: checkSlotDeleted[V],
			cause: "a Put that does not compare versions, or a Delete of the value alone",
		},
		{
			name: "slots/overtaken", rule: cacheVersion, needs: append(keeper, needsAdder), run: checkSlotOvertaken[V],
			cause: "a Set or Add that leaves the load as it is",
		},
		{
			name: "slots/shared", rule: cacheShared, needs: keeper, run: checkSlotShared[V],
			cause: "a Look that takes the load away from another process",
		},
		{
			name: "slots/one-winner", rule: cacheVersion, needs: keeper, run: checkSlotRace[V],
			cause: "comparing versions and storing in two steps",
		},
		{
			name: "slots/beside-stale", rule: cacheVersion, needs: append(keeper, needsStale), run: checkSlotBesideStale[V],
			cause: "a load that takes the place of the stale value",
		},
		{
			name: "slots/unstored", rule: cacheVersion, needs: keeper, run: checkSlotUnstored[V],
			cause: "a value that lasts for no time, for which the key is deleted without comparing versions",
		},
		{
			name: "slots/ahead", rule: cacheAhead, needs: keeper, run: checkSlotAhead[V],
			cause: "a value that is not returned while its load is under way",
		},
		{
			name: "slots/failure", rule: cacheFailure, needs: keeper, run: checkSlotFailure[V],
			cause: "a failure that is taken for a value, or that never ends",
		},
	}
}

func checkSlotStored[V any](e *cacheEnv[V]) {
	e.open(longTTL, 0)
	for i, v := range e.config.Values {
		key := e.key()
		load := e.a.begin(key)
		e.a.put(load, v).wantOK()
		e.b.get(key).wantValue(v)
		e.b.look(key, 0, longTTL).wantValue(v)
		e.a.put(load, e.value(i+1)).wantRefused()
		e.b.get(key).wantValue(v)
	}
}

func checkSlotDeleted[V any](e *cacheEnv[V]) {
	e.open(longTTL, 0)
	key := e.key()
	old := e.a.begin(key)
	e.b.remove(key).wantOK()
	e.a.put(old, e.value(0)).wantRefused()
	e.b.get(key).wantNone()
	load := e.b.begin(key)
	e.a.put(old, e.value(0)).wantRefused()
	e.b.put(load, e.value(1)).wantOK()
	e.a.get(key).wantValue(e.value(1))
	e.b.remove(key).wantOK()
	e.a.put(old, e.value(0)).wantRefused()
	e.b.put(load, e.value(1)).wantRefused()
	e.a.get(key).wantNone()
}

func checkSlotOvertaken[V any](e *cacheEnv[V]) {
	e.open(longTTL, 0)
	for _, how := range []func(key string) cacheReply[V]{
		func(key string) cacheReply[V] { return e.b.set(key, e.value(1)) },
		func(key string) cacheReply[V] { return e.b.add(key, e.value(1)) },
	} {
		key := e.key()
		load := e.a.begin(key)
		how(key).wantOK()
		e.a.put(load, e.value(0)).wantRefused()
		e.a.get(key).wantValue(e.value(1))
		e.a.remove(key).wantOK()
		e.a.put(load, e.value(0)).wantRefused()
		e.b.get(key).wantNone()
	}
}

func checkSlotShared[V any](e *cacheEnv[V]) {
	e.open(longTTL, 0)
	key := e.key()
	first, second := e.a.begin(key), e.b.begin(key)
	e.a.put(first, e.value(0)).wantOK()
	e.b.put(second, e.value(1)).wantRefused()
	e.b.get(key).wantValue(e.value(0))
}

func checkSlotRace[V any](e *cacheEnv[V]) {
	e.open(longTTL, 0)
	for range addRounds {
		key := e.key()
		loads := make([]*slots.Slot[V], len(e.config.Values))
		for i := range loads {
			loads[i] = e.a.begin(key)
		}
		winner := e.wantOneAdded(e.together(func(i int, c *cacheClient[V]) cacheReply[V] {
			return c.put(loads[i], e.value(i))
		}))
		e.a.get(key).wantValue(e.value(winner))
	}
}

func checkSlotBesideStale[V any](e *cacheEnv[V]) {
	e.open(e.shortTTL(), longTTL)
	key := e.key()
	e.waitFor(e.a.set(key, e.value(0)).wantOK(), e.a.ttl)
	load := e.b.begin(key)
	e.a.staleValue(key).wantValue(e.value(0))
	e.b.put(load, e.value(1)).wantOK()
	e.a.staleValue(key).wantValue(e.value(1))

	e.waitFor(e.a.set(key, e.value(0)).wantOK(), e.a.ttl)
	load = e.b.begin(key)
	e.a.remove(key).wantOK()
	e.b.put(load, e.value(1)).wantRefused()
	e.wantGone(key)
}

func checkSlotUnstored[V any](e *cacheEnv[V]) {
	e.open(longTTL, 0)
	end := func(load *slots.Slot[V]) cacheReply[V] {
		return e.a.end(&slots.Slot[V]{Key: load.Key, Version: load.Version, Value: e.value(0), TTL: -1}, "no value")
	}
	key := e.key()
	old := e.a.begin(key)
	e.b.remove(key).wantOK()
	load := e.b.begin(key)
	end(old).wantRefused()
	e.b.put(load, e.value(1)).wantOK()
	end(old).wantRefused()
	e.b.get(key).wantValue(e.value(1))

	e.b.remove(key).wantOK()
	load = e.a.begin(key)
	end(load).wantOK()
	e.b.get(key).wantNone()
	e.a.put(load, e.value(1)).wantRefused()
	e.b.get(key).wantNone()
}

func checkSlotAhead[V any](e *cacheEnv[V]) {
	e.open(longTTL, longTTL)
	key := e.key()
	e.a.set(key, e.value(0)).wantOK()
	look := func(c *cacheClient[V], ahead, hold time.Duration, version bool) *slots.Slot[V] {
		r := c.lookAt(&slots.Slot[V]{Key: key, Ahead: ahead, Hold: hold})
		r.wantValue(e.value(0))
		if (r.slot.Version != 0) != version {
			e.fail(r, fmt.Sprintf("a version: %t", version))
		}
		if left := r.slot.Left; left > longTTL+e.config.Granularity+harness.Slip.Time || left < longTTL/2 {
			e.fail(r, fmt.Sprintf("about %v left, not %v", longTTL, left))
		}
		return r.slot
	}
	look(e.b, longTTL/2, longTTL, false)
	look(e.b, 2*longTTL, 0, false)
	load := look(e.b, 2*longTTL, longTTL, true)
	e.a.get(key).wantValue(e.value(0))
	e.b.put(load, e.value(1)).wantOK()
	e.a.get(key).wantValue(e.value(1))

	e.a.set(key, e.value(0)).wantOK()
	load = look(e.b, 2*longTTL, longTTL, true)
	e.a.remove(key).wantOK()
	e.b.put(load, e.value(1)).wantRefused()
	e.a.get(key).wantNone()
}

func checkSlotFailure[V any](e *cacheEnv[V]) {
	e.open(longTTL, 0)
	const text = "it failed:\n no \"table\" é"
	key := e.key()
	load := e.a.begin(key)
	began := time.Now()
	ttl := e.shortTTL()
	e.a.fail(load, text, ttl).wantOK()
	e.b.get(key).wantNone()
	r := e.b.look(key, longTTL, 0)
	switch {
	case r.text == text:
	case time.Since(began) < ttl-e.config.Granularity:
		e.fail(r, "the failure "+text)
	default:
		e.tooSlow()
	}
	e.a.put(load, e.value(0)).wantRefused()
	next := e.b.begin(key) // one that began after the failure
	e.b.put(next, e.value(1)).wantOK()
	e.a.get(key).wantValue(e.value(1))

	key = e.key()
	e.a.fail(e.a.begin(key), text, ttl).wantOK()
	e.waitFor(cacheReply[V]{e: e, end: time.Now()}, ttl)
	e.b.look(key, ttl, 0).wantNone()
	e.b.put(e.b.begin(key), e.value(0)).wantOK()
}

// look looks at key. The reply has a value or a failure.
func (c *cacheClient[V]) look(key string, since, hold time.Duration) cacheReply[V] {
	return c.lookAt(&slots.Slot[V]{Key: key, Since: since, Hold: hold})
}

func (c *cacheClient[V]) lookAt(s *slots.Slot[V]) cacheReply[V] {
	r := c.do(true, func(ctx context.Context) (V, bool, error) {
		err := c.cache.(slots.Keeper[V]).Look(ctx, s)
		if err == nil {
			err = s.Err
		}
		return s.Value, s.Found, err
	}, "Look(%s, since %v, ahead %v, hold %v)", c.e.describeKey(s.Key), s.Since, s.Ahead, s.Hold)
	r.slot = s
	if s.Failed {
		r.text = s.Failure
	}
	return r
}

// begin begins a load of key, of which there is no value.
func (c *cacheClient[V]) begin(key string) *slots.Slot[V] {
	r := c.look(key, 0, longTTL)
	r.wantNone()
	if r.slot.Version == 0 {
		c.e.fail(r, "a version")
	}
	return r.slot
}

func (c *cacheClient[V]) put(load *slots.Slot[V], v V) cacheReply[V] {
	return c.end(&slots.Slot[V]{Key: load.Key, Version: load.Version, Value: v}, c.e.describe(v))
}

func (c *cacheClient[V]) fail(load *slots.Slot[V], text string, ttl time.Duration) cacheReply[V] {
	s := &slots.Slot[V]{Key: load.Key, Version: load.Version, Failed: true, Failure: text, TTL: ttl}
	return c.end(s, fmt.Sprintf("failure %.16q for %v", text, ttl))
}

func (c *cacheClient[V]) end(s *slots.Slot[V], what string) cacheReply[V] {
	return c.do(false, func(ctx context.Context) (zero V, _ bool, _ error) {
		err := c.cache.(slots.Keeper[V]).Put(ctx, s)
		if err == nil {
			err = s.Err
		}
		return zero, s.Stored, err
	}, "Put(%s, %s)", c.e.describeKey(s.Key), what)
}
