package conformance

// cacheStaleChecks are those of Stale and Delete.
func cacheStaleChecks[V any]() []cacheCheck[V] {
	stale, deleter := []cacheNeed{needsStale}, []cacheNeed{needsDeleter}
	both := []cacheNeed{needsDeleter, needsStale}
	return []cacheCheck[V]{
		{
			name: "stale/miss", rule: cacheStale, needs: stale, run: checkStaleMiss[V],
			cause: "an error in place of ok = false",
		},
		{
			name: "stale/served", rule: cacheStale, needs: stale, run: checkStaleServed[V],
			cause: "an entry that ends with its ttl",
		},
		{
			name: "stale/ends", rule: cacheLasts, needs: stale, run: checkStaleEnds[V],
			cause: "a stale value without an expiry",
		},
		{
			name: "stale/latest", rule: cacheStale, needs: stale, run: checkStaleLatest[V],
			cause: "a second copy that Set does not replace",
		},
		{
			name: "delete/fresh", rule: cacheDelete, needs: deleter, run: checkDelete[V],
			cause: "a Delete of another key, or of a copy",
		},
		{
			name: "delete/stale", rule: cacheDelete, needs: both, run: checkDeleteStale[V],
			cause: "deleting the fresh value alone",
		},
		{
			name: "delete/absent", rule: cacheDeleteNone, needs: deleter, run: checkDeleteAbsent[V],
			cause: "an error for 0 deleted rows",
		},
		{
			name: "delete/add", rule: cacheAdd, needs: []cacheNeed{needsDeleter, needsAdder}, run: checkDeleteAdd[V],
			cause: "a mark of deletion that counts as a value",
		},
	}
}

func checkStaleMiss[V any](e *cacheEnv[V]) {
	e.open(longTTL, longTTL)
	key := e.key()
	e.a.staleValue(key).wantNone()
}

func checkStaleServed[V any](e *cacheEnv[V]) {
	e.open(e.shortTTL(), longTTL)
	key := e.key()
	r := e.a.set(key, e.value(0)).wantOK()
	e.follow(r, e.a.ttl, r.end, e.value(0), func() cacheReply[V] { return e.b.get(key) })
	e.b.staleValue(key).wantValue(e.value(0))
	e.a.staleValue(key).wantValue(e.value(0))
	e.a.get(key).wantNone()
}

func checkStaleEnds[V any](e *cacheEnv[V]) {
	e.open(e.shortTTL(), e.shortTTL())
	key := e.key()
	r := e.a.set(key, e.value(0)).wantOK()
	e.waitFor(r, e.a.ttl)
	e.follow(r, e.a.ttl+e.a.stale, r.endsBefore(e.a.ttl), e.value(0),
		func() cacheReply[V] { return e.b.staleValue(key) })
}

func checkStaleLatest[V any](e *cacheEnv[V]) {
	e.open(e.shortTTL(), longTTL)
	key := e.key()
	e.a.set(key, e.value(0)).wantOK()
	e.waitFor(e.b.set(key, e.value(1)).wantOK(), e.a.ttl)
	e.a.staleValue(key).wantValue(e.value(1))
	e.waitFor(e.a.set(key, e.value(2)).wantOK(), e.a.ttl)
	e.b.staleValue(key).wantValue(e.value(2))
}

func checkDelete[V any](e *cacheEnv[V]) {
	e.open(longTTL, longTTL)
	key, other := e.key(), e.key()
	e.a.set(key, e.value(0)).wantOK()
	e.a.set(other, e.value(1)).wantOK()
	e.b.remove(key).wantOK()
	e.wantGone(key)
	e.a.get(other).wantValue(e.value(1))
}

// wantGone fails unless there is neither a fresh nor a stale value.
func (e *cacheEnv[V]) wantGone(key string) {
	for _, client := range []*cacheClient[V]{e.a, e.b} {
		client.get(key).wantNone()
		if e.has(needsStale) {
			client.staleValue(key).wantNone()
		}
	}
}

func checkDeleteStale[V any](e *cacheEnv[V]) {
	e.open(e.shortTTL(), longTTL)
	key := e.key()
	e.waitFor(e.a.set(key, e.value(0)).wantOK(), e.a.ttl)
	e.b.remove(key).wantOK()
	e.wantGone(key)
}

func checkDeleteAbsent[V any](e *cacheEnv[V]) {
	e.open(longTTL, longTTL)
	key := e.key()
	e.a.remove(key).wantOK()
	e.a.set(key, e.value(0)).wantOK()
	e.a.remove(key).wantOK()
	e.b.remove(key).wantOK()
}

func checkDeleteAdd[V any](e *cacheEnv[V]) {
	e.open(longTTL, longTTL)
	key := e.key()
	e.a.set(key, e.value(0)).wantOK()
	e.b.remove(key).wantOK()
	e.a.add(key, e.value(1)).wantOK()
	e.b.get(key).wantValue(e.value(1))
}
