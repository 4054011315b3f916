package conformance

import (
	"context"
	"fmt"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/faultproxy"
	"github.com/golockers/locker/conformance/internal/harness"
)

// In these checks the connection by which a Locker hears of releases and grants is slow, silent, or
// cannot be established, while requests get through.

func pushChecks() []harness.Check {
	const pushCauses = "a call that returns an error if it cannot subscribe, or that waits for the subscription before it " +
		"asks the backend; no attempts while it listens: keep polling, at longer intervals."
	return []harness.Check{{
		Name:  "fault/delayed-grant",
		Rules: []string{q4Deadline},
		Needs: harness.NeedsWait,
		Causes: "a grant that is believed when its message arrives, with a deadline that counts from then: count from before " +
			"the grant, or extend the lock and treat false as no grant.",
		Run: delayedGrant,
	}, {
		Name:  "fault/abandoned-waiter",
		Rules: []string{q7Dead, q9Leave},
		Needs: harness.NeedsWait,
		Causes: "a waiter that could not leave the queue while its network was down, and is taken for alive because other " +
			"waiters of its process are; a grant that is dropped when it reaches a waiter that has gone: release it.",
		Run: abandonedWaiter,
	}, {
		Name:   "fault/reconnect-keeps-place",
		Rules:  []string{q5Place},
		Needs:  harness.NeedsWait,
		Causes: "waiters that join the queue again, in any order, after a reconnect.",
		Run:    reconnectKeepsPlace,
	}, {
		Name:   "fault/push-refused",
		Rules:  []string{w7Hint, q8Looks},
		Causes: pushCauses,
		Run: func(e *harness.Env) {
			withoutPush(e, "new connections of D are refused, and its open ones work", harness.Polls, func(f *faulty, _ map[*faultproxy.Link]struct{}) {
				f.p.RefuseDials()
			}, nil)
		},
	}, {
		Name:   "fault/push-hangs",
		Rules:  []string{w7Hint, q8Looks},
		Causes: pushCauses,
		Run: func(e *harness.Env) {
			withoutPush(e, "new connections of D hang, and its open ones work", harness.Polls, func(f *faulty, _ map[*faultproxy.Link]struct{}) {
				f.p.HangDials()
			}, nil)
		},
	}, {
		Name:   "fault/push-silent",
		Rules:  []string{w7Hint, q8Looks},
		Causes: pushCauses + " Do not sleep for as long as the holder's ttl, which may be hours.",
		Run: func(e *harness.Env) {
			withoutPush(e, "", harness.Seldom, nil, func(f *faulty, before map[*faultproxy.Link]struct{}) {
				e.Note("%s that D has opened since it waits hang from now on", harness.Plural(f.p.HangOthers(before), "connection"))
				if n := f.p.Silence(); n > 0 {
					e.Note("on %s that D has opened, it hears nothing from now on", harness.Plural(n, "stream"))
				}
			})
		},
	}}
}

// withoutPush lets D wait for a lock, through locker.Lock, while it cannot hear of releases. It
// calls before first, and after when D has waited for a moment.
func withoutPush(e *harness.Env, what string, looks harness.Allowance, before, after func(f *faulty, connected map[*faultproxy.Link]struct{})) {
	if !e.Has(harness.NeedsWatch) && !e.Has(harness.NeedsWait) {
		e.Skip("the Locker is neither a locker.Watcher nor a locker.Waiter")
	}
	// On a busy machine a request may use a connection that hangs, but hardly every time.
	const tries = 3
	for try := 1; !locksWithoutPush(e, what, looks, before, after, try == tries); try++ {
		e.Forget()
	}
}

// requestsAtOnce is more requests than a Wait makes at the same time.
const requestsAtOnce = 6

// connections makes D connect for several requests at the same time, and returns its connections.
// A connection that D opens after that is unlikely to be for a request.
func (f *faulty) connections() map[*faultproxy.Link]struct{} {
	f.Env.Each(requestsAtOnce, func(int) { f.insists("Acquire", f.Env.Key(), f.Env.Token(), harness.Long) })
	return f.p.Connected()
}

// locksWithoutPush is one try. It returns false if Lock returned an error and this was not the last
// try.
func locksWithoutPush(e *harness.Env, what string, looks harness.Allowance, before, after func(f *faulty, connected map[*faultproxy.Link]struct{}),
	last bool) bool {
	f := newFaulty(e)
	connected := f.connections()
	key := e.Key()
	a := e.A.Takes(key, e.Token(), harness.Long, "the key is fresh")
	if before != nil {
		e.Note("%s", what)
		before(f, connected)
	}
	type locked struct {
		lease *locker.Lease
		err   error
	}
	done := make(chan locked, 1)
	ctx, cancel := context.WithTimeout(e.Ctx, 2*time.Minute)
	defer cancel()
	e.Note("locker.Lock is called on D")
	e.Go(func() {
		lease, err := locker.Lock(ctx, f.Locker, key, harness.Long)
		done <- locked{lease, err}
	})
	e.Sleep(f.moment() + 300*time.Millisecond)
	if after != nil {
		after(f, connected)
	}
	released := e.A.Releases(key, a.Token, "A holds the lock")
	got, _ := harness.Receive(e, looks, done, func() time.Time { return released.End }, "locker.Lock on D returns the lock: A has released it, and D's requests get through")
	if got.err != nil && !last {
		return false
	}
	if got.err != nil {
		e.FailAbout("", "locker.Lock on D = a lease, nil: A has released the lock, and D's requests get through",
			fmt.Sprintf("locker.Lock = %q", got.err.Error()))
	}
	e.C.Blocked(key, "D holds the lock")
	f.p.Heal(e.TB)
	e.Note("D's link works again")
	f.warm()
	f.insists("Release", key, got.lease.Token(), 0)
	c := e.C.TakesFree(key, e.Token(), harness.Long, time.Time{}, time.Now(), "D has released it")
	e.C.Releases(key, c.Token, "C has just taken it")
	got.lease.Detach()
	return true
}

// delayedGrant grants D the lock while D hears nothing, until another client has the lock.
func delayedGrant(e *harness.Env) {
	ways := []struct {
		what string
		do   func(f *faulty)
		heal func(f *faulty)
	}{
		{"replies and messages to D are held back", func(f *faulty) { f.p.Deafen() }, func(f *faulty) { f.p.Heal(e.TB) }},
		{"D's link hangs in both directions", func(f *faulty) { f.p.Hang() }, func(f *faulty) { f.p.Heal(e.TB) }},
		{"replies and messages to D are held back, and then lost with its connections", func(f *faulty) { f.p.Deafen() },
			func(f *faulty) { f.p.Cut(); f.p.Heal(e.TB) }},
	}
	e.Each(len(ways), func(i int) {
		f := newFaulty(e)
		key, token := e.Key(), e.Token()
		a := e.A.Takes(key, e.Token(), harness.Long, "the key is fresh")
		result := f.waits(key, token)
		f.joinsQueue(result)
		e.Sleep(f.moment()) // it may subscribe
		e.Note("%s", ways[i].what)
		ways[i].do(f)
		released := e.A.Releases(key, a.Token, "A holds the lock")
		// A call that is under way may acquire or extend the lock once more.
		c := e.C.TakesWhen(key, e.Token(), harness.Long, time.Time{}, released.End.Add(waitTTL+e.Allow(harness.Healing)), "D may have been granted the lock, for its ttl")
		e.Note("D's link works again")
		ways[i].heal(f)
		reported := func(w harness.Call) {
			if w.OK && w.Deadline.After(c.End) {
				e.FailAbout(key, fmt.Sprintf("D.Wait keeps waiting, or returns an error, or a deadline not after %s: since then C holds the lock, for ten minutes",
					e.At(c.End)), fmt.Sprintf("D.Wait = %s, that is until %s", w.Result(), e.At(w.Deadline)))
			}
		}
		timer := time.NewTimer(time.Second + f.moment())
		defer timer.Stop()
		var w harness.Call
		select {
		case w = <-result:
			reported(w)
		case <-timer.C:
		}
		e.A.Blocked(key, "C holds the lock")
		e.C.Extends(key, c.Token, harness.Long, "C holds the lock; D's late requests concern another token")
		e.C.Releases(key, c.Token, "C holds the lock")
		if w.Client == nil {
			w = f.waited(result)
		}
		f.insists("Release", key, token, 0)
		b := e.B.TakesWhen(key, e.Token(), harness.Long, time.Time{}, time.Now().Add(waitTTL), "D has released its token, or its ttl has passed")
		e.B.Releases(key, b.Token, "B has just taken it")
	})
}

// abandonedWaiter cancels a waiter of D while D's requests do not get through, so that it cannot
// leave the queue, while another waiter of D stays: once with all of D's link broken, and once with
// D's subscription intact.
func abandonedWaiter(e *harness.Env) {
	e.Each(2, func(i int) {
		f := newFaulty(e)
		connected := f.connections()
		key := e.Key()
		a := e.A.Takes(key, e.Token(), harness.Long, "the key is fresh")
		ctx, cancel := context.WithCancel(e.Ctx)
		defer cancel()
		gone := f.Client.Waits(ctx, key, e.Token(), harness.Long)
		f.joinsQueue(gone)
		stays := f.Client.Waits(e.Ctx, key, e.Token(), harness.Long)
		e.Sleep(e.Standing())
		b := e.B.Waits(e.Ctx, key, e.Token(), harness.Long)
		e.Sleep(e.Standing())
		if i == 0 {
			e.Note("D's link hangs, and the ctx of its first waiter is canceled")
			f.p.Hang()
		} else {
			e.Note("the connections that D had before it waited hang, and so do new ones, and the ctx of its first waiter is canceled")
			f.p.HangThese(connected)
			f.p.HangDials()
		}
		cancel()
		e.Sleep(cleanupWindow + time.Second) // attempts to leave the queue give up
		e.Note("the connections that hang are cut, and then D's link works again")
		if i == 0 {
			f.p.Cut()
		} else {
			faultproxy.CutAll(connected)
		}
		f.p.Heal(e.TB)
		f.warm()
		released := e.A.Releases(key, a.Token, "A holds the lock")
		served := make(chan harness.Call, 2)
		for _, waiter := range []<-chan harness.Call{stays, b} {
			e.Go(func() { served <- <-waiter })
		}
		for range cap(served) {
			r, _ := harness.Receive(e, harness.Seldom, served, func() time.Time { return released.End },
				"both remaining waiters are served: A has released the lock, and so has each waiter that was served")
			if r.OK {
				released = r.Client.Releases(key, r.Token, "its Wait has returned")
			} else {
				f.insists("Release", key, r.Token, 0)
			}
		}
		e.C.TakesFree(key, e.Token(), harness.Long, time.Time{}, released.End, "all holders have released it")
	})
}

// reconnectKeepsPlace cuts D's connections while D has several waiters.
func reconnectKeepsPlace(e *harness.Env) {
	f := newFaulty(e)
	e.Patiently(func(rest time.Duration) harness.Verdict {
		key := e.Key()
		a := e.A.Takes(key, e.Token(), harness.Long, "the key is fresh")
		var results []<-chan harness.Call
		const waiters = 4
		for range waiters {
			results = append(results, f.Client.Waits(e.Ctx, key, e.Token(), harness.Long))
			e.Sleep(rest)
		}
		e.Sleep(e.Standing())
		e.Note("D's connections are cut")
		f.p.Cut()
		e.Sleep(e.Standing())
		e.A.Releases(key, a.Token, "A holds the lock")
		order := make(chan int, waiters)
		e.Each(waiters, func(i int) {
			w := f.waited(results[i])
			if w.OK {
				order <- i + 1
			}
			f.insists("Release", key, w.Token, 0)
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
		if in {
			return harness.Right()
		}
		return harness.Wrong("those waiters of D that return no error are served in the order in which they joined",
			fmt.Sprintf("they were served in the order %v; each called Wait %v after the one before", got, rest))
	})
}
