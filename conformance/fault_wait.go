package conformance

import (
	"fmt"
	"net"
	"time"

	"github.com/golockers/locker"
)

func waitingFaultChecks() []check {
	const ruleWatch = "Watch: when the subscription breaks, the Locker subscribes again, and if a release may have been missed " +
		"meanwhile, the channel gets a wake-up."
	const ruleWait = "Wait: it returns when it holds the lock or ctx is done. The deadline is never after the real " +
		"expiry. A waiter that died costs the others at most its own ttl."
	return []check{{
		name:  "fault/watch-cut",
		rule:  ruleWatch,
		needs: needsWatch,
		causes: "a goroutine that reads the subscription and ends with its first error; a subscription that is made " +
			"again without what it was subscribed to, or without waking those whose wake-up may have been lost.",
		run: watchCut,
	}, {
		name:   "fault/watch-reconnects-calmly",
		rule:   ruleWatch + " It rests between its attempts.",
		needs:  needsWatch,
		causes: "a loop that subscribes again at once whenever it fails, with a whole processor for it.",
		run:    watchCalmly,
	}, {
		name:  "fault/wait-cut",
		rule:  ruleWait,
		needs: needsWait,
		causes: "waiting for word on a connection that has ended, forever: return the error, or join again; a grant " +
			"that arrived without a listener, and is kept.",
		run: waitCut,
	}, {
		name:   "fault/wait-reply-lost",
		rule:   ruleWait,
		needs:  needsWait,
		causes: "as fault/wait-cut; a token that is left in the queue after its Wait returned an error, for longer than its ttl.",
		run:    waitReplyLost,
	}, {
		name:  "fault/waiter-dies",
		rule:  ruleWait,
		needs: needsWait,
		causes: "a queue kept outside the processes, in which the entry of one that is gone stays first forever, or for " +
			"an expiry of its own that is longer than its ttl.",
		run: waiterDies,
	}, {
		name: "fault/fence-reply-lost",
		rule: "C2 Three outcomes: false says that the token certainly does not hold the lock. Fence: greater than every " +
			"number minted for that key before.",
		needs:  needsFence,
		causes: "a transport error reported as false.",
		run:    fenceReplyLost,
	}}
}

// wakesAfter says whether ch gets a value within patience.
func wakesAfter(e *env, ch <-chan struct{}, patience time.Duration) bool {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case _, ok := <-ch:
		if !ok {
			e.fail("the channel of Watch is never closed", "it is closed")
		}
		return true
	case <-timer.C:
		return false
	}
}

// freed lets B take and release key, and says whether ch gets a value within patience.
func freed(e *env, key string, ch <-chan struct{}, patience time.Duration) bool {
	drain(ch)
	frees(e, key)
	return wakesAfter(e, ch, patience)
}

// frees lets B take and release key.
func frees(e *env, key string) {
	b := e.B.takes(key, e.token(), long, "nobody holds it")
	e.B.releases(key, b.token, "B has just taken it")
}

func watchCut(e *env) {
	f := newFaulty(e)
	key := e.key()
	ch, err := f.l.(locker.Watcher).Watch(e.ctx, key)
	if err != nil {
		e.fail("D.Watch = a channel, nil", fmt.Sprintf("D.Watch = %q", err))
	}
	e.note("D watches k1")
	if patience := e.patience(); !freed(e, key, ch, patience) {
		e.fail("the channel gets a value: B has released the lock", fmt.Sprintf("it got none in %v", patience))
	}
	for _, breaks := range []struct {
		what string
		do   func()
	}{
		{"D's connections are cut", func() { f.p.cut(); frees(e, key) }},
		{"D's connections are cut, and new ones are refused for a moment", func() {
			f.p.refuse()
			frees(e, key)
			e.sleep(100 * time.Millisecond)
			f.p.heal(e.tb)
		}},
	} {
		drain(ch)
		e.note("%s", breaks.what)
		breaks.do()
		if !wakesAfter(e, ch, healing) {
			e.fail("the channel gets a value: B has released the lock while the subscription was broken, or just after that",
				fmt.Sprintf("it got none in %v", healing))
		}
		// It subscribes again when it can, and from then on each release is seen.
		for end := time.Now().Add(healing); !freed(e, key, ch, 100*time.Millisecond+f.slow); {
			if time.Now().After(end) {
				e.fail("releases are seen again", fmt.Sprintf("none was seen in %v", healing))
			}
		}
		for range 5 {
			if patience := e.slack(); !freed(e, key, ch, patience) {
				e.fail("the channel gets a value: B has released the lock, and D had subscribed again",
					fmt.Sprintf("it got none in %v", patience))
			}
		}
	}
	f.warm()
}

func watchCalmly(e *env) {
	f := newFaulty(e)
	if _, err := f.l.(locker.Watcher).Watch(e.ctx, e.key()); err != nil {
		e.fail("D.Watch = a channel, nil", fmt.Sprintf("D.Watch = %q", err))
	}
	e.note("D watches k1; then its connections are cut, and each new one at once")
	f.p.slam()
	// How often one tries who rests for 10ms each time says what is often. A window in which that one hardly
	// gets to try says nothing.
	other := newProxy(e.tb, e.addr())
	other.slam()
	const window, rest = 500 * time.Millisecond, 10 * time.Millisecond
	for range 60 {
		_, before := f.p.count()
		calm := 0
		for end := time.Now().Add(window); time.Now().Before(end); calm++ {
			if conn, err := net.Dial("tcp", other.addr); err == nil {
				conn.Read(make([]byte, 1))
				conn.Close()
			}
			e.sleep(rest)
		}
		if _, after := f.p.count(); after-before > 2*calm+20 {
			e.fail(fmt.Sprintf("D rests between its attempts: in %v not many more than the %d of one who rests for %v",
				window, calm, rest), fmt.Sprintf("D tried %d times meanwhile", after-before))
		}
		if calm > 15 {
			f.p.heal(e.tb)
			f.warm()
			return
		}
	}
	e.inconclusive("one who rests for %v hardly came to try, on this machine: what is often cannot be told", rest)
}

const (
	waitTTL      = 2 * time.Second // what D waits for
	waitPatience = 15 * time.Second
)

// waits starts a Wait of D.
func (f *faulty) waits(key, token string) <-chan call {
	return f.e.meanwhile(func() call { return f.within(time.Minute, "Wait", key, token, waitTTL) })
}

// waited sees that a Wait comes to an end: the lock is free, or soon will be.
func (f *faulty) waited(result <-chan call) call {
	patience := time.NewTimer(waitPatience)
	defer patience.Stop()
	select {
	case w := <-result:
		return w
	case <-patience.C:
		f.e.fail("D.Wait returns: with the lock, since it is free, or with an error, since the link broke",
			fmt.Sprintf("it has not in %v", waitPatience))
		panic("not reached")
	}
}

// waitedWell sees that D has the lock after w, or might have, and that it is free for others when D has
// released it, or by its ttl.
func (f *faulty) waitedWell(w call) {
	e := f.e
	if w.err == nil {
		if c := e.C.acquire(w.key, e.token(), waitTTL); c.ok && c.end.Before(w.deadline) {
			e.fail(fmt.Sprintf("C.Acquire = false, nil: D has the lock until %s", e.at(w.deadline)),
				fmt.Sprintf("C.Acquire = %s at %s", c.result(), e.at(c.end)))
		} else if c.ok {
			e.C.release(w.key, c.token)
		}
	}
	f.insists("Release", w.key, w.token, 0)
	c := e.C.takesWhen(w.key, e.token(), long, time.Time{}, time.Now().Add(waitTTL),
		"D has released its token, and everybody else theirs")
	e.C.releases(w.key, c.token, "C has just taken it")
}

// standsInLine returns when the client has been quiet for a moment after a request: then its Wait, which
// result is of, stands in the queue. One that asks again and again never is, and is given some time. A Wait that has
// asked nothing, or has returned, is not in the queue, and the check is inconclusive.
func (f *faulty) standsInLine(result <-chan call) {
	first, _ := f.p.count()
	before, quiet := first, time.Now()
	for end := quiet.Add(opTimeout); len(result) == 0 && time.Now().Before(end); {
		now, _ := f.p.count()
		if now != before {
			before, quiet = now, time.Now()
		}
		if now > first && (time.Since(quiet) > f.moment() || time.Until(end) < opTimeout-time.Second-4*f.moment()) {
			return
		}
		f.e.sleep(time.Millisecond)
	}
	f.e.inconclusive("D.Wait for a held lock has not come to stand in the queue in %v", opTimeout)
}

func waitCut(e *env) {
	f := newFaulty(e)
	for range 3 {
		key := e.key()
		b := e.B.takes(key, e.token(), long, "the key is fresh")
		result := f.waits(key, e.token())
		f.standsInLine(result)
		e.note("D's connections are cut")
		f.p.cut()
		e.sleep(10 * time.Millisecond)
		e.B.releases(key, b.token, "B holds it")
		f.waitedWell(f.waited(result))
		f.warm()
	}
}

func waitReplyLost(e *env) {
	f := newFaulty(e)
	for _, inLine := range []bool{false, true} {
		f.eachStep(func(n int) bool {
			if inLine && n > 5 { // it asks again and again
				return false
			}
			f.warm()
			key, token := e.key(), e.token()
			if inLine {
				e.B.takes(key, e.token(), pausedTTL, "the key is fresh")
			}
			x := f.arm(dropReply, n)
			w := f.waited(f.waits(key, token))
			f.p.disarm()
			if !x.acted() && w.err != nil {
				e.fail("D.Wait = a deadline, nil: nothing was in its way", fmt.Sprintf("D.Wait = %s", w.result()))
			}
			f.waitedWell(w)
			return x.acted()
		})
	}
}

// waiterDies lets D stand in the queue before B, and then be gone: as a process that is killed, whose connections
// end, and as a machine that is, whose connections stay.
func waiterDies(e *env) {
	e.each(2, func(i int) {
		f := newFaulty(e)
		key := e.key()
		a := e.A.takes(key, e.token(), long, "the key is fresh")
		f.standsInLine(f.waits(key, e.token()))
		b := e.B.waits(e.ctx, key, e.token(), waitTTL)
		e.sleep(f.moment())
		if i == 0 {
			e.note("D's process is killed: its connections end, and it makes no more")
			f.p.refuse()
		} else {
			e.note("D's machine is gone: nothing comes from it, or gets to it, any more")
			f.p.hang()
		}
		released := e.A.releases(key, a.token, "A holds the lock")
		after := "A has released the lock, and D, which is gone, keeps it from B for its ttl at most"
		r := e.B.must(e.outcome(b, released.end.Add(waitTTL+e.granularity()), after), true, after)
		e.C.takesWhen(key, e.token(), long, r.deadline, r.end.Add(waitTTL), "B's Wait said until when it holds the lock")
	})
}

func fenceReplyLost(e *env) {
	f := newFaulty(e)
	key, token, _ := f.prepared(long)
	var last uint64
	minted := func(r call) {
		if !r.ok {
			e.fail("D.Fence = an error, or a number: its token holds the lock for ten minutes",
				fmt.Sprintf("D.Fence = %s", r.result()))
		}
		if r.fence <= last {
			e.fail(fmt.Sprintf("D.Fence is greater than %d, which was minted before", last),
				fmt.Sprintf("D.Fence = %s", r.result()))
		}
		last = r.fence
	}
	for _, kind := range []faultKind{dropReply, halfReply, garbageReply, resetRequest} {
		f.eachStep(func(n int) bool {
			x := f.arm(kind, n)
			r := f.do("Fence", key, token, 0)
			f.p.disarm()
			if r.err == nil {
				minted(r)
			} else if !x.acted() {
				f.must(r, true, "nothing was in its way")
			}
			again := f.insists("Fence", key, token, 0)
			minted(again)
			return x.acted()
		})
	}
}
