package conformance

import (
	"fmt"
	"sync"
	"time"
)

// cacheAddChecks are those of Add.
func cacheAddChecks[V any]() []cacheCheck[V] {
	adder, both := []cacheNeed{needsAdder}, []cacheNeed{needsAdder, needsStale}
	return []cacheCheck[V]{
		{
			name: "add/absent", rule: cacheAdd, needs: adder, run: checkAddAbsent[V],
			cause: "Add that only updates",
		},
		{
			name: "add/fresh", rule: cacheAdd, needs: adder, run: checkAddFresh[V],
			cause: "Add that is Set",
		},
		{
			name: "add/no-renewal", rule: cacheAdd, needs: adder, run: checkAddRenewal[V],
			cause: "an expiry that is set although the value is not",
		},
		{
			name: "add/one-winner", rule: cacheAdd, needs: adder, run: checkAddRace[V],
			cause: "looking and storing in two steps",
		},
		{
			name: "add/expired", rule: cacheAdd, needs: adder, run: checkAddExpired[V],
			cause: "an entry that has expired, is still there and refuses",
		},
		{
			name: "add/beside-stale", rule: cacheAdd, needs: both, run: checkAddBesideStale[V],
			cause: "an entry kept for Stale that refuses, as with SET NX or memcached's add",
		},
		{
			name: "add/one-winner-beside-stale", rule: cacheAdd, needs: both, run: checkAddRaceBesideStale[V],
			cause: "looking at the stale value and replacing it in two steps",
		},
	}
}

func checkAddAbsent[V any](e *cacheEnv[V]) {
	e.open(longTTL, longTTL)
	for i, v := range e.config.Values {
		key := e.key()
		e.a.add(key, v).wantOK()
		e.b.get(key).wantValue(v)
		e.b.add(key, e.value(i+1)).wantRefused()
	}
}

func checkAddFresh[V any](e *cacheEnv[V]) {
	e.open(longTTL, longTTL)
	key := e.key()
	e.a.set(key, e.value(0)).wantOK()
	e.b.add(key, e.value(1)).wantRefused()
	e.a.add(key, e.value(0)).wantRefused()
	e.b.get(key).wantValue(e.value(0))
}

func checkAddRenewal[V any](e *cacheEnv[V]) {
	e.open(e.shortTTL(), 0)
	key := e.key()
	stored := e.a.set(key, e.value(0)).wantOK()
	time.Sleep(e.a.ttl / 2)
	r := e.b.add(key, e.value(1))
	if r.end.After(stored.endsAfter(e.a.ttl)) {
		e.tooSlow()
	}
	r.wantRefused()
	e.follow(stored, e.a.ttl, stored.end, e.value(0), func() cacheReply[V] { return e.a.get(key) })
}

func checkAddExpired[V any](e *cacheEnv[V]) {
	e.open(e.shortTTL(), 0)
	key := e.key()
	e.waitFor(e.a.set(key, e.value(0)).wantOK(), e.a.ttl)
	r := e.b.add(key, e.value(1)).wantOK()
	e.follow(r, e.a.ttl, r.end, e.value(1), func() cacheReply[V] { return e.a.get(key) })
}

func checkAddBesideStale[V any](e *cacheEnv[V]) {
	e.open(e.shortTTL(), longTTL)
	key := e.key()
	e.waitFor(e.a.set(key, e.value(0)).wantOK(), e.a.ttl)
	e.a.get(key).wantNone()
	r := e.b.add(key, e.value(1)).wantOK()
	e.follow(r, e.a.ttl, r.end, e.value(1), func() cacheReply[V] { return e.a.get(key) })
	e.a.staleValue(key).wantValue(e.value(1))
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
		last = e.a.set(keys[i], e.value(0)).wantOK()
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
	e.a.get(key).wantValue(e.value(winner))
	e.b.get(key).wantValue(e.value(winner))
}

func (e *cacheEnv[V]) addTogether(key string) []cacheReply[V] {
	return e.together(func(i int, c *cacheClient[V]) cacheReply[V] { return c.add(key, e.value(i)) })
}

// together makes a call for each value, by the two clients in turn, all at the same time.
func (e *cacheEnv[V]) together(call func(i int, c *cacheClient[V]) cacheReply[V]) []cacheReply[V] {
	replies := make([]cacheReply[V], len(e.config.Values))
	start := make(chan struct{})
	var contenders sync.WaitGroup
	for i := range replies {
		client := []*cacheClient[V]{e.a, e.b}[i%2]
		contenders.Go(func() {
			<-start
			replies[i] = call(i, client)
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
