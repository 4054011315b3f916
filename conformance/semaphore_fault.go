package conformance

import (
	"time"

	"github.com/golockers/locker/conformance/internal/faultproxy"
	"github.com/golockers/locker/conformance/internal/harness"
)

// These checks break the link of client D. Clients A, B and C observe the permits.

func semaphoreFaultChecks() ([]harness.Check, []func(p *permits)) {
	list := []harness.Check{{
		Name: "permits-fault/acquire", Rules: []string{c2Outcomes, s1Limit},
		Causes: "a permit that is forgotten because the reply to its acquisition was lost: a later Release does not find it.",
	}, {
		Name: "permits-fault/wait", Rules: []string{c2Outcomes, s6Leaves},
		Causes: "the same in Wait; a place in the queue that is kept after an error.",
	}, {
		Name: "permits-fault/release", Rules: []string{c2Outcomes, s2Owner},
		Causes: "a permit that is forgotten because the reply to its release was lost, although that did not happen.",
	}, {
		Name: "permits-fault/waiter-dies", Rules: []string{s6Leaves},
		Causes: "the place of a waiter that has died, which lasts for longer than its ttl.",
	}, {
		Name: "permits-fault/storm", Rules: []string{s1Limit, s6Leaves},
		Causes: "a permit that is granted to a waiter that has gone; a cleanup that frees the permit of another.",
	}}
	for i := range list {
		list[i].Needs |= harness.NeedsNetwork
	}
	return list, []func(p *permits){checkPermitsFaultAcquire, checkPermitsFaultWait, checkPermitsFaultRelease,
		checkPermitsWaiterDies, checkPermitsFaultStorm}
}

// faulty returns a client with permits whose link can be broken.
func (p *permits) faulty() *faulty { return p.faultyWith(semaphoreN) }

// faultyWith is faulty with n permits for each lock.
func (p *permits) faultyWith(n int) *faulty {
	f := newFaulty(p.Env)
	f.Client.Locker = p.over(f.Client.Locker, n)
	f.warm()
	return f
}

// broken are kinds of faults after which a request was executed, or was not.
var broken = []faultproxy.Kind{faultproxy.DropReply, faultproxy.GarbageReply, faultproxy.CloseRequest}

func checkPermitsFaultAcquire(p *permits) { p.brokenAcquisition("Acquire") }

func checkPermitsFaultWait(p *permits) {
	if !p.Has(harness.NeedsWait) {
		p.Skip("the backend keeps no queue")
	}
	p.brokenAcquisition("Wait")
}

// brokenAcquisition breaks D's link while it acquires a permit. Whatever the answer, a Release by
// the token leaves all permits free.
func (p *permits) brokenAcquisition(op string) {
	f := p.faulty()
	for _, kind := range broken {
		f.eachStep(func(n int) bool {
			p.key = p.Key()
			token := p.Token()
			r, reached := f.under(kind, n, op, p.key, token, harness.Long)
			if op == "Acquire" {
				f.gives(r, "all permits are free")
			}
			released := f.Do("Release", p.key, token, 0)
			switch {
			case released.Err != nil:
				released = f.insists("Release", p.key, token, 0)
			case r.OK:
				f.Must(released, true, "its token holds a permit")
			}
			const why = "D has released its permit, if it had one"
			p.free(released.End.Add(semaphoreDeath), why)
			if op == "Wait" {
				next := p.b.Waits(p.Ctx, p.key, p.Token(), harness.Long)
				p.release(p.served(next, released.End.Add(semaphoreDeath), why))
			}
			return reached
		})
	}
}

// semaphoreDeath is how long a waiter that has died may delay others, unless its ttl is longer.
const semaphoreDeath = 5 * time.Second

func checkPermitsFaultRelease(p *permits) {
	f := p.faulty()
	for _, kind := range broken {
		f.eachStep(func(n int) bool {
			p.key = p.Key()
			token := p.Token()
			f.Must(f.insists("Acquire", p.key, token, harness.Long), true, "the name is fresh")
			r, reached := f.under(kind, n, "Release", p.key, token, 0)
			f.gives(r, "its token holds a permit")
			released := f.insists("Release", p.key, token, 0)
			p.free(released.End, "D has released its permit")
			return reached
		})
	}
}

// checkPermitsWaiterDies lets D wait for a permit before B and then vanish: as a process that is
// killed, whose connections end, and as a machine that fails, whose connections remain.
func checkPermitsWaiterDies(p *permits) {
	if !p.Has(harness.NeedsWait) {
		p.Skip("the backend keeps no queue, so the waiters of different processes do not depend on each other")
	}
	p.Each(2, func(i int) {
		p := &permits{Env: p.Env, over: p.over, key: p.Key(), a: p.a, b: p.b, c: p.c}
		f := p.faulty()
		held := p.fill(p.a, semaphoreN, harness.Long, "the name is fresh")
		f.Waits(p.Ctx, p.key, p.Token(), waitTTL)
		p.Sleep(p.Standing())
		waiter := p.b.Waits(p.Ctx, p.key, p.Token(), harness.Long)
		p.Sleep(p.Standing())
		if i == 0 {
			p.Note("D's process is killed: its connections end, and it opens no more")
			f.p.Refuse()
		} else {
			p.Note("D's machine fails: its connections stay open and silent")
			f.p.Hang()
		}
		released := p.release(held[0])
		held[0] = p.served(waiter, released.End.Add(max(waitTTL, semaphoreDeath)+p.Granularity()),
			"a permit was released, and the waiter before it has died")
		p.release(held...)
	})
}
