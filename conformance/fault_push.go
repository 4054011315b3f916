package conformance

import (
	"context"
	"fmt"
	"time"

	"github.com/golockers/locker"
)

// In these checks the channel by which a Locker hears of releases and grants is late, silent, or cannot be had,
// while requests get through.

func pushChecks() []check {
	const rulePush = "Watch, Wait: what is heard of a release shortens the rest between two attempts. That nothing can be " +
		"heard neither fails nor delays a Lock which polling would have got."
	const ruleGrant = "Wait: the deadline is never after the real expiry. A waiter that hears late that it was granted the " +
		"lock does not report a lock which another holds by then."
	const rulePlace = "Wait: first come, first served. A grant that reaches a waiter which has gone is released at once or " +
		"passed on."
	const pushCauses = "one connection for all that is heard, without which the call returns an error, or before which it asks " +
		"nothing; no attempt of its own while it listens: poll, more seldom."
	return []check{{
		name:  "fault/grant-held-back",
		rule:  ruleGrant,
		needs: needsWait,
		causes: "a message that says that the lock is ours, believed when it arrives, with a deadline that counts from then: count " +
			"from before the grant, or extend the lock first, and take false for no grant.",
		run: grantHeldBack,
	}, {
		name:  "fault/gone-beside-others",
		rule:  rulePlace,
		needs: needsWait,
		causes: "a waiter that could not leave the queue while its network was down, and is taken for alive because others of its " +
			"process are; a grant for one who has gone that is dropped where it arrives: release it.",
		run: goneBesideOthers,
	}, {
		name:   "fault/place-kept",
		rule:   rulePlace,
		needs:  needsWait,
		causes: "waiters that join the queue again, in any order, when their connection is back.",
		run:    placeKeptOverCut,
	}, {
		name:   "fault/push-refused",
		rule:   rulePush,
		causes: pushCauses,
		run: func(e *env) {
			withoutPush(e, "new connections of D are refused, and those that are there work", 0, func(f *faulty, _ map[*link]struct{}) {
				f.p.refuseDials()
			}, nil)
		},
	}, {
		name:   "fault/push-hangs",
		rule:   rulePush,
		causes: pushCauses,
		run: func(e *env) {
			withoutPush(e, "new connections of D hang, and those that are there work", 0, func(f *faulty, _ map[*link]struct{}) {
				f.p.hangDials()
			}, nil)
		},
	}, {
		name:   "fault/push-silent",
		rule:   rulePush,
		causes: pushCauses + " No look at the lock for as long as its holder's ttl, which may be hours.",
		run: func(e *env) {
			withoutPush(e, "", seldom, nil, func(f *faulty, before map[*link]struct{}) {
				e.note("%s that D has made since it waits, and nothing else, hang from now on", plural(f.p.hangOthers(before), "connection"))
			})
		},
	}}
}

// seldom is how long a Locker may rest between two looks at a lock whose releases it should hear of.
const seldom = 12 * time.Second

// withoutPush lets D wait for a lock, by locker.Lock, while it cannot hear of releases. Before is done before
// it waits, and after when it has waited for a moment.
func withoutPush(e *env, what string, rest time.Duration, before, after func(f *faulty, connected map[*link]struct{})) {
	if !e.has(needsWatch) && !e.has(needsWait) {
		e.skip("the Locker hears of no releases: it is neither a locker.Watcher nor a locker.Waiter")
	}
	// A request may have come to use a connection that hangs, on a busy machine: hardly each time.
	const tries = 3
	for try := 1; !locksWithoutPush(e, what, rest, before, after, try == tries); try++ {
		e.forget()
	}
}

// requestsAtOnce are more requests than a Wait makes at the same time.
const requestsAtOnce = 6

// connections makes D connect for several requests at the same time, and returns its connections. What is new
// after that is hardly a request's.
func (f *faulty) connections() map[*link]struct{} {
	f.e.each(requestsAtOnce, func(int) { f.insists("Acquire", f.e.key(), f.e.token(), long) })
	return f.p.connected()
}

// locksWithoutPush is one try. It is false when D's Lock was an error and this was not the last.
func locksWithoutPush(e *env, what string, rest time.Duration, before, after func(f *faulty, connected map[*link]struct{}),
	last bool) bool {
	f := newFaulty(e)
	connected := f.connections()
	key := e.key()
	a := e.A.takes(key, e.token(), long, "the key is fresh")
	if before != nil {
		e.note("%s", what)
		before(f, connected)
	}
	type locked struct {
		lease *locker.Lease
		err   error
	}
	done := make(chan locked, 1)
	ctx, cancel := context.WithTimeout(e.ctx, 2*time.Minute)
	defer cancel()
	e.note("locker.Lock is called on D")
	e.background.Go(func() {
		e.guard(func() {
			lease, err := locker.Lock(ctx, f.l, key, long)
			done <- locked{lease, err}
		})
	})
	e.sleep(f.moment() + 300*time.Millisecond)
	if after != nil {
		after(f, connected)
	}
	released := e.A.releases(key, a.token, "A holds the lock")
	due := released.end.Add(2*time.Second + rest)
	got, _ := hears(e, done, func() time.Time { return due }, "locker.Lock on D has the lock: A has released it, and D's requests get through")
	if got.err != nil && !last {
		return false
	}
	if got.err != nil {
		e.failAbout("", "locker.Lock on D = a lease, nil: A has released the lock, and D's requests get through",
			fmt.Sprintf("locker.Lock = %q", got.err.Error()))
	}
	e.C.blocked(key, "D holds the lock")
	f.p.heal(e.tb)
	e.note("D's link works again")
	f.warm()
	f.insists("Release", key, got.lease.Token(), 0)
	c := e.C.takesFree(key, e.token(), long, time.Time{}, time.Now(), "D has released it")
	e.C.releases(key, c.token, "C has just taken it")
	got.lease.Detach()
	return true
}

// grantHeldBack lets D's turn come while it hears nothing, until another has the lock.
func grantHeldBack(e *env) {
	ways := []struct {
		what string
		do   func(f *faulty)
		heal func(f *faulty)
	}{
		{"what the server sends to D is held back", func(f *faulty) { f.p.deafen() }, func(f *faulty) { f.p.heal(e.tb) }},
		{"D's link hangs, both ways", func(f *faulty) { f.p.hang() }, func(f *faulty) { f.p.heal(e.tb) }},
		{"what the server sends to D is held back, and then lost with its connections", func(f *faulty) { f.p.deafen() },
			func(f *faulty) { f.p.cut(); f.p.heal(e.tb) }},
	}
	e.each(len(ways), func(i int) {
		f := newFaulty(e)
		key, token := e.key(), e.token()
		a := e.A.takes(key, e.token(), long, "the key is fresh")
		result := f.waits(key, token)
		f.standsInLine(result)
		e.sleep(f.moment()) // by now it listens
		e.note("%s", ways[i].what)
		ways[i].do(f)
		released := e.A.releases(key, a.token, "A holds the lock")
		// A call under way may take or extend it once more before the client gives it up.
		c := e.C.takesWhen(key, e.token(), long, time.Time{}, released.end.Add(waitTTL+healing), "D, should it be its turn, has the lock for its ttl")
		e.note("D's link works again")
		ways[i].heal(f)
		reported := func(w call) {
			if w.ok && w.deadline.After(c.end) {
				e.failAbout(key, fmt.Sprintf("D.Wait goes on, or is an error, or a deadline not after %s: C has had the lock since then, for ten minutes",
					e.at(c.end)), fmt.Sprintf("D.Wait = %s, which is %s", w.result(), e.at(w.deadline)))
			}
		}
		timer := time.NewTimer(time.Second + f.moment())
		defer timer.Stop()
		var w call
		select {
		case w = <-result:
			reported(w)
		case <-timer.C:
		}
		e.A.blocked(key, "C holds the lock")
		e.C.extends(key, c.token, long, "C holds the lock, and D's late requests do not matter")
		e.C.releases(key, c.token, "C holds the lock")
		if w.client == nil {
			w = f.waited(result)
		}
		f.insists("Release", key, token, 0)
		b := e.B.takesWhen(key, e.token(), long, time.Time{}, time.Now().Add(waitTTL), "D has released its token, or its ttl has passed")
		e.B.releases(key, b.token, "B has just taken it")
	})
}

// goneBesideOthers lets a waiter of D end while none of D's requests gets through, so that it cannot leave the
// queue, beside another of D's that goes on: in one way with what D hears by, in the other without.
func goneBesideOthers(e *env) {
	e.each(2, func(i int) {
		f := newFaulty(e)
		connected := f.connections()
		key := e.key()
		a := e.A.takes(key, e.token(), long, "the key is fresh")
		ctx, cancel := context.WithCancel(e.ctx)
		defer cancel()
		gone := f.client.waits(ctx, key, e.token(), long)
		f.standsInLine(gone)
		stays := f.client.waits(e.ctx, key, e.token(), long)
		e.sleep(e.standing())
		b := e.B.waits(e.ctx, key, e.token(), long)
		e.sleep(e.standing())
		if i == 0 {
			e.note("D's link hangs, and the ctx of its first waiter is cancelled")
			f.p.hang()
		} else {
			e.note("the connections that D had before it waited hang, and new ones, and the ctx of its first waiter is cancelled")
			f.p.hangThese(connected)
			f.p.hangDials()
		}
		cancel()
		e.sleep(cleanUpWindow + time.Second) // what tries to leave gives up
		e.note("the connections that hang are cut, and then D's link works again")
		if i == 0 {
			f.p.cut()
		} else {
			cutAll(connected)
		}
		f.p.heal(e.tb)
		f.warm()
		released := e.A.releases(key, a.token, "A holds the lock")
		for served := 0; served < 2; served++ {
			var r call
			select {
			case r = <-stays:
				stays = nil
			case r = <-b:
				b = nil
			case <-time.After(time.Until(released.end.Add(seldom)) + e.patience()):
				e.failLate(e.check.causes, key, "those who wait, and have not gone, have the lock in turn: A has released it, and so has "+
					"each who had it", fmt.Sprintf("only %d of 2 have had it, with all patience", served))
			case <-e.ctx.Done():
				return
			}
			if r.ok {
				released = r.client.releases(key, r.token, "its Wait has returned")
			} else {
				f.insists("Release", key, r.token, 0)
			}
		}
		e.C.takesFree(key, e.token(), long, time.Time{}, released.end, "all have released it")
	})
}

// placeKeptOverCut cuts the connections of D while some wait on it.
func placeKeptOverCut(e *env) {
	f := newFaulty(e)
	e.patiently(func(rest time.Duration) (ok bool, expected, happened string) {
		key := e.key()
		a := e.A.takes(key, e.token(), long, "the key is fresh")
		var results []<-chan call
		const waiters = 4
		for range waiters {
			results = append(results, f.client.waits(e.ctx, key, e.token(), long))
			e.sleep(rest)
		}
		e.sleep(e.standing())
		e.note("D's connections are cut")
		f.p.cut()
		e.sleep(e.standing())
		e.A.releases(key, a.token, "A holds the lock")
		order := make(chan int, waiters)
		e.each(waiters, func(i int) {
			w := f.waited(results[i])
			if w.ok {
				order <- i + 1
			}
			f.insists("Release", key, w.token, 0)
		})
		close(order)
		f.warm()
		last, in := 0, true
		var got []int
		for i := range order {
			in = in && i > last
			last = i
			got = append(got, i)
		}
		return in, "those of D's waiters that have no error have the lock in the order in which they joined",
			fmt.Sprintf("it was %v", got)
	})
}
