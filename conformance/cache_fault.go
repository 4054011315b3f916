package conformance

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/golockers/locker/conformance/internal/faultproxy"
	"github.com/golockers/locker/conformance/internal/harness"
)

// cacheFaultChecks are those of what goes wrong.
func cacheFaultChecks[V any]() []cacheCheck[V] {
	damage, addr := []cacheNeed{needsDamage}, []cacheNeed{needsAddr}
	return []cacheCheck[V]{
		{
			name: "context/ended", rule: cacheContext, run: checkContext[V],
			cause: "an error of the client's own in place of the context's, or an error dropped",
		},
		{
			name: "damaged/get", rule: cacheDamaged, needs: damage, run: checkDamaged[V],
			cause: "a decoding error that is dropped",
		},
		{
			name: "damaged/set", rule: cacheSet, needs: damage, run: checkDamagedSet[V],
			cause: "reading before writing",
		},
		{
			name: "fault/hangs", rule: cacheContext, needs: addr, run: checkHangs[V],
			cause: "a client that ignores contexts",
		},
		{
			name: "fault/refused", rule: cacheDown, needs: addr, run: checkRefused[V],
			cause: "an error dropped in Get",
		},
	}
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
	e.a.set(key, e.value(0)).wantOK()
	if r := e.a.with(ctx).get(key); !ended(r) {
		r.wantValue(e.value(0))
	}
	if r := e.a.with(ctx).set(key, e.value(1)); !ended(r) {
		e.b.get(key).wantValue(e.value(1))
	}
	if e.has(needsAdder) {
		if r := e.a.with(ctx).add(key, e.value(2)); !ended(r) {
			r.wantRefused()
		}
	}
	if e.has(needsDeleter) {
		if r := e.a.with(ctx).remove(key); !ended(r) {
			e.wantGone(key)
		}
	}
}

func checkDamaged[V any](e *cacheEnv[V]) {
	e.open(longTTL, longTTL)
	key := e.key()
	e.a.set(key, e.value(0)).wantOK()
	e.config.Damage(e.tb, key)
	e.note("the value of %s is damaged", e.describeKey(key))
	e.a.get(key).wantError("an error that is about the value, not the network",
		func(err error) bool { return !isNoAnswer(err) })
}

// isNoAnswer reports whether a Loader treats err as that of a backend that does not answer, and
// so leaves the backend alone for a while.
func isNoAnswer(err error) bool {
	return errors.As(err, new(net.Error)) || errors.Is(err, context.DeadlineExceeded)
}

func checkDamagedSet[V any](e *cacheEnv[V]) {
	e.open(longTTL, longTTL)
	key := e.key()
	e.a.set(key, e.value(0)).wantOK()
	e.config.Damage(e.tb, key)
	e.note("the value of %s is damaged", e.describeKey(key))
	e.a.set(key, e.value(1)).wantOK()
	e.b.get(key).wantValue(e.value(1))
	if !e.has(needsDeleter) {
		return
	}
	e.config.Damage(e.tb, key)
	e.note("the value of %s is damaged", e.describeKey(key))
	e.a.remove(key).wantOK()
	e.wantGone(key)
}

func checkHangs[V any](e *cacheEnv[V]) {
	e.fault("hangs", (*faultproxy.Proxy).Hang, func(client *cacheClient[V], key string) {
		for _, operation := range e.operations(key) {
			ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
			r := operation(client.with(ctx))
			cancel()
			r.wantError("context.DeadlineExceeded or a net.Error", isNoAnswer)
		}
	})
}

func checkRefused[V any](e *cacheEnv[V]) {
	e.fault("refuses connections", (*faultproxy.Proxy).Refuse, func(client *cacheClient[V], key string) {
		for _, operation := range e.operations(key) {
			operation(client).wantError("an error", func(error) bool { return true })
		}
	})
}

// fault lets test call a cache, C, whose backend stops working, and requires that it works again
// once the backend does.
func (e *cacheEnv[V]) fault(what string, begin func(*faultproxy.Proxy),
	test func(client *cacheClient[V], key string)) {
	if conn, err := net.DialTimeout("tcp", e.config.Addr, harness.OpTimeout); err != nil {
		e.failed("  CacheConfig.Addr: no server answers: " + err.Error())
	} else {
		conn.Close()
	}
	proxy := faultproxy.New(e.tb, e.config.Addr)
	client := e.client("C", proxy.Addr, longTTL, longTTL)
	key := e.key()
	client.set(key, e.value(0)).wantOK()
	client.get(key).wantValue(e.value(0))
	if _, connections := proxy.Count(); connections == 0 {
		e.failed("  CacheConfig.New does not use its addr")
	}
	begin(proxy)
	e.note("from here on C's backend %s", what)
	test(client, key)
	proxy.Heal(e.tb)
	e.note("C's backend works again")
	for end := time.Now().Add(harness.Healing.Time); ; time.Sleep(20 * time.Millisecond) {
		another := e.key() // what was left behind may still reach the first
		if r := client.set(another, e.value(0)); r.err == nil {
			client.get(another).wantValue(e.value(0))
			return
		} else if time.Now().After(end) {
			e.fail(r, "true, now that the backend works")
		}
	}
}

// operations are those that the cache has.
func (e *cacheEnv[V]) operations(key string) []func(c *cacheClient[V]) cacheReply[V] {
	all := []func(c *cacheClient[V]) cacheReply[V]{
		func(c *cacheClient[V]) cacheReply[V] { return c.get(key) },
		func(c *cacheClient[V]) cacheReply[V] { return c.set(key, e.value(1)) },
	}
	if e.has(needsStale) {
		all = append(all, func(c *cacheClient[V]) cacheReply[V] { return c.staleValue(key) })
	}
	if e.has(needsAdder) {
		all = append(all, func(c *cacheClient[V]) cacheReply[V] { return c.add(key, e.value(1)) })
	}
	if e.has(needsDeleter) {
		all = append(all, func(c *cacheClient[V]) cacheReply[V] { return c.remove(key) })
	}
	return all
}
