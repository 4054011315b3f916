package conformance

import (
	"fmt"
	"net"
	"time"

	"github.com/golockers/locker/conformance/internal/faultproxy"
	"github.com/golockers/locker/conformance/internal/harness"
)

// waitFaultChecks are about faults that affect Watch, Wait and Fence.
func waitFaultChecks() []harness.Check {
	return []harness.Check{{
		Name:  "fault/watch-disconnect",
		Rules: []string{w5Reconnects},
		Needs: harness.NeedsWatch,
		Causes: "a goroutine that reads the subscription and ends with its first error; a new subscription that lacks some " +
			"channels, or that does not wake the watchers whose wake-ups may have been lost.",
		Run: watchDisconnect,
	}, {
		Name:   "fault/watch-backoff",
		Rules:  []string{w5Reconnects, "It pauses between its attempts."},
		Needs:  harness.NeedsWatch,
		Causes: "a loop that subscribes again immediately whenever that fails, and keeps a processor busy.",
		Run:    watchBackoff,
	}, {
		Name:  "fault/wait-disconnect",
		Rules: []string{q2Wait, q8Looks, q4Deadline},
		Needs: harness.NeedsWait,
		Causes: "waiting forever for a message on a connection that has ended: return the error, or join again; a grant that " +
			"arrives without a listener, and is kept.",
		Run: waitDisconnect,
	}, {
		Name:   "fault/wait-reply-lost",
		Rules:  []string{q2Wait, c2Outcomes, q7Dead},
		Needs:  harness.NeedsWait,
		Causes: "the same as for fault/wait-disconnect; a token that stays in the queue for longer than its ttl after its Wait returned an error.",
		Run:    waitReplyLost,
	}, {
		Name:  "fault/waiter-crash",
		Rules: []string{q7Dead},
		Needs: harness.NeedsWait,
		Causes: "a queue outside the processes in which the entry of a process that has crashed stays at the head forever, or " +
			"until an expiry that is longer than its ttl.",
		Run: waiterCrash,
	}, {
		Name:   "fault/fence-reply-lost",
		Rules:  []string{c2Outcomes, f1Monotonic},
		Needs:  harness.NeedsFence,
		Causes: "a transport error reported as false.",
		Run:    fenceReplyLost,
	}}
}

// wakesWithin reports whether ch gets a value within d.
func wakesWithin(e *harness.Env, ch <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case _, ok := <-ch:
		if !ok {
			e.Fail("the channel of Watch is never closed", "it is closed")
		}
		return true
	case <-timer.C:
		return false
	}
}

// frees lets B take and release key.
func frees(e *harness.Env, key string) {
	b := e.B.Takes(key, e.Token(), harness.Long, "the key is free")
	e.B.Releases(key, b.Token, "B has just taken it")
}

func watchDisconnect(e *harness.Env) {
	f := newFaulty(e)
	key := e.Key()
	ch := f.Watches(e.Ctx, key)
	wakes := func(why string) {
		drain(ch)
		frees(e, key)
		woken(e, ch, why)
	}
	wakes("B has released the lock")
	for _, breaks := range []struct {
		what string
		do   func()
	}{
		{"D's connections are cut", func() { f.p.Cut(); frees(e, key) }},
		{"D's connections are cut, and new ones are refused for a moment", func() {
			f.p.Refuse()
			frees(e, key)
			e.Sleep(100 * time.Millisecond)
			f.p.Heal(e.TB)
		}},
	} {
		drain(ch)
		e.Note("%s", breaks.what)
		breaks.do()
		broke := time.Now()
		healed := func() time.Time { return broke }
		if _, ok := harness.Receive(e, harness.Healing, ch, healed, "a wake-up: B has released the lock while the subscription was broken, or just "+
			"after that"); !ok {
			e.Fail("the channel of Watch is never closed", "it is closed")
		}
		// D subscribes again, and from then on every release must wake it.
		e.Poll(harness.Healing, broke, 0, func() bool {
			drain(ch)
			frees(e, key)
			return wakesWithin(e, ch, 100*time.Millisecond+f.slow)
		}, func() (want, got string) { return "releases wake D again", "none did" })
		for range 5 {
			wakes("B has released the lock, and D has subscribed again")
		}
	}
	f.warm()
}

func watchBackoff(e *harness.Env) {
	f := newFaulty(e)
	f.Watches(e.Ctx, e.Key())
	e.Note("D's connections are cut, and so is each new one")
	f.p.Slam()
	// D is compared with a client that dials every 10ms. A period in which that client hardly
	// dials, since the machine is slow, shows nothing.
	other := faultproxy.New(e.TB, e.Addr())
	other.Slam()
	const window, rest = 500 * time.Millisecond, 10 * time.Millisecond
	for range 60 {
		_, before := f.p.Count()
		calm := 0
		for end := time.Now().Add(window); time.Now().Before(end); calm++ {
			if conn, err := net.Dial("tcp", other.Addr); err == nil {
				conn.Read(make([]byte, 1))
				conn.Close()
			}
			e.Sleep(rest)
		}
		if _, after := f.p.Count(); after-before > 2*calm+20 {
			e.Fail(fmt.Sprintf("D pauses between its attempts: in %v it makes not many more than the %d of a client that pauses for %v",
				window, calm, rest), fmt.Sprintf("it made %d attempts", after-before))
		}
		if calm > 15 {
			f.p.Heal(e.TB)
			f.warm()
			return
		}
	}
	e.Inconclusive("on this machine, a client that pauses for %v between its attempts hardly made any", rest)
}

const waitTTL = 2 * time.Second // what D's Wait asks for

// waits starts a Wait of D.
func (f *faulty) waits(key, token string) <-chan harness.Call {
	return f.Env.Meanwhile(func() harness.Call { return f.within(time.Minute, "Wait", key, token, waitTTL) })
}

// waited waits for a Wait that must return: the lock is free, or soon will be.
func (f *faulty) waited(result <-chan harness.Call) harness.Call {
	since := time.Now()
	w, _ := harness.Receive(f.Env, harness.Served, result, func() time.Time { return since },
		"D.Wait returns: a deadline, since the lock is free, or an error, since the link broke")
	return w
}

// waitedWell checks that D holds the lock if w returned a deadline, and that the lock is free once
// D has released it, or its ttl has passed.
func (f *faulty) waitedWell(w harness.Call) {
	e := f.Env
	if w.Err == nil {
		if c := e.C.Acquire(w.Key, e.Token(), waitTTL); c.OK && c.End.Before(w.Deadline) {
			e.Fail(fmt.Sprintf("C.Acquire = false, nil: D holds the lock until %s", e.At(w.Deadline)),
				fmt.Sprintf("C.Acquire = %s at %s", c.Result(), e.At(c.End)))
		} else if c.OK {
			e.C.Release(w.Key, c.Token)
		}
	}
	f.insists("Release", w.Key, w.Token, 0)
	c := e.C.TakesWhen(w.Key, e.Token(), harness.Long, time.Time{}, time.Now().Add(waitTTL),
		"D has released its token, and the other holders theirs")
	e.C.Releases(w.Key, c.Token, "C has just taken it")
}

// joinsQueue returns when D has been quiet for a moment after a request: then its Wait, whose
// outcome result will get, is in the queue. A Wait that polls is never quiet, and gets some time.
// If it has sent nothing, or has returned, the check is inconclusive.
func (f *faulty) joinsQueue(result <-chan harness.Call) {
	first, _ := f.p.Count()
	before, quiet := first, time.Now()
	for end := quiet.Add(harness.OpTimeout); len(result) == 0 && time.Now().Before(end); {
		now, _ := f.p.Count()
		if now != before {
			before, quiet = now, time.Now()
		}
		if now > first && (time.Since(quiet) > f.moment() || time.Until(end) < harness.OpTimeout-time.Second-4*f.moment()) {
			return
		}
		f.Env.Sleep(time.Millisecond)
	}
	f.Env.Inconclusive("D.Wait for a held lock has not joined the queue within %v", harness.OpTimeout)
}

func waitDisconnect(e *harness.Env) {
	f := newFaulty(e)
	for range 3 {
		key := e.Key()
		b := e.B.Takes(key, e.Token(), harness.Long, "the key is fresh")
		result := f.waits(key, e.Token())
		f.joinsQueue(result)
		e.Note("D's connections are cut")
		f.p.Cut()
		e.Sleep(10 * time.Millisecond)
		e.B.Releases(key, b.Token, "B holds it")
		f.waitedWell(f.waited(result))
		f.warm()
	}
}

func waitReplyLost(e *harness.Env) {
	f := newFaulty(e)
	for _, queued := range []bool{false, true} {
		f.eachStep(func(n int) bool {
			if queued && n > 5 { // a Wait that polls makes any number of requests
				return false
			}
			f.warm()
			key, token := e.Key(), e.Token()
			if queued {
				e.B.Takes(key, e.Token(), pausedTTL, "the key is fresh")
			}
			x := f.arm(faultproxy.DropReply, n)
			w := f.waited(f.waits(key, token))
			f.p.Disarm()
			if !x.Acted() && w.Err != nil {
				e.Fail("D.Wait = a deadline, nil: no fault affected it", fmt.Sprintf("D.Wait = %s", w.Result()))
			}
			f.waitedWell(w)
			return x.Acted()
		})
	}
}

// waiterCrash lets D join the queue before B and then disappear: as a process that is killed, whose
// connections end, and as a machine that fails, whose connections stay.
func waiterCrash(e *harness.Env) {
	e.Each(2, func(i int) {
		f := newFaulty(e)
		key := e.Key()
		a := e.A.Takes(key, e.Token(), harness.Long, "the key is fresh")
		f.joinsQueue(f.waits(key, e.Token()))
		b := e.B.Waits(e.Ctx, key, e.Token(), waitTTL)
		e.Sleep(f.moment())
		if i == 0 {
			e.Note("D's process is killed: its connections end, and it opens no more")
			f.p.Refuse()
		} else {
			e.Note("D's machine fails: its connections stay open and silent")
			f.p.Hang()
		}
		released := e.A.Releases(key, a.Token, "A holds the lock")
		after := "A has released the lock, and D, which has crashed, delays B by at most its ttl"
		r := e.B.Must(e.Outcome(b, released.End.Add(waitTTL+e.Granularity()), after), true, after)
		e.C.TakesWhen(key, e.Token(), harness.Long, r.Deadline, r.End.Add(waitTTL), "B's Wait returned that deadline")
	})
}

func fenceReplyLost(e *harness.Env) {
	f := newFaulty(e)
	key, token, _ := f.prepared(harness.Long)
	var last uint64
	minted := func(r harness.Call) {
		if !r.OK {
			e.Fail("D.Fence = an error, or a number: its token holds the lock for ten minutes",
				fmt.Sprintf("D.Fence = %s", r.Result()))
		}
		if r.Fence <= last {
			e.Fail(fmt.Sprintf("D.Fence returns a number greater than %d, which was minted before", last),
				fmt.Sprintf("D.Fence = %s", r.Result()))
		}
		last = r.Fence
	}
	for _, kind := range []faultproxy.Kind{faultproxy.DropReply, faultproxy.HalfReply, faultproxy.GarbageReply, faultproxy.ResetRequest} {
		f.eachStep(func(n int) bool {
			x := f.arm(kind, n)
			r := f.Do("Fence", key, token, 0)
			f.p.Disarm()
			if r.Err == nil {
				minted(r)
			} else if !x.Acted() {
				f.Must(r, true, "no fault affected it")
			}
			again := f.insists("Fence", key, token, 0)
			minted(again)
			return x.Acted()
		})
	}
}
