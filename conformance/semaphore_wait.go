package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/harness"
)

// These checks are about waiters. They need a locker.Waiter.

func semaphoreWaitChecks() ([]harness.Check, []func(p *permits)) {
	list := []harness.Check{{
		Name: "permits-wait/fifo", Rules: []string{s4Order},
		Causes: "a release that wakes all waiters and lets them race.",
	}, {
		Name: "permits-wait/any-permit", Rules: []string{s5Any},
		Causes: "waiters that queue for one of the permits, while another one becomes free; a waiter that does not know " +
			"which permit it has got.",
	}, {
		Name: "permits-wait/all-used", Rules: []string{s1Limit, s5Any},
		Causes: "a waiter that lets the next one go on only when it has released its own permit; wake-ups that coalesce.",
	}, {
		Name: "permits-wait/cancel", Rules: []string{s6Leaves},
		Causes: "a waiter that stays in the queue after its ctx has ended, and gets a permit that is never released.",
	}, {
		Name: "permits-wait/cancel-stress", Rules: []string{s6Leaves, s1Limit},
		Causes: "a permit that arrives while its waiter leaves.",
	}, {
		Name: "permits-wait/expiry", Rules: []string{s3Apart, s5Any},
		Causes: "waiters that only a release wakes.",
	}, {
		Name: "permits-wait/resize", Rules: []string{s7Resize},
		Causes: "names or counts of their own for each N; a waiter that does not notice the permits of a larger N.",
	}}
	run := []func(p *permits){checkPermitsFIFO, checkPermitsAny, checkPermitsAllUsed, checkPermitsCancel,
		checkPermitsCancelStress, checkPermitsWaitExpiry, checkPermitsWaitResize}
	for i := range run {
		check := run[i]
		run[i] = func(p *permits) {
			if !locker.CanWait(p.a.Locker) {
				p.Skip(fmt.Sprintf("%T keeps no queue", p.a.Locker))
			}
			check(p)
		}
	}
	return list, run
}

// queueing returns the clients that share a queue.
func (p *permits) queueing() []*harness.Client {
	if p.Has(harness.NeedsWait) {
		return []*harness.Client{p.b, p.c}
	}
	return []*harness.Client{p.b}
}

// waiters lets n waiters join one after the other. They leave when ctx ends.
func (p *permits) waiters(ctx context.Context, n int, rest time.Duration) []<-chan harness.Call {
	clients := p.queueing()
	results := make([]<-chan harness.Call, n)
	for i := range results {
		results[i] = clients[i%len(clients)].Waits(ctx, p.key, p.Token(), harness.Long)
		p.Sleep(rest)
	}
	return results
}

// served requires that a waiter gets a permit soon after the given time.
func (p *permits) served(waiter <-chan harness.Call, since time.Time, why string) harness.Call {
	r := p.Outcome(waiter, since, why)
	return r.Client.Must(r, true, why)
}

// checkPermitsFIFO passes one permit on from waiter to waiter.
func checkPermitsFIFO(p *permits) {
	p.Patiently(func(rest time.Duration) harness.Verdict {
		p.key = p.Key()
		held := p.fill(p.a, semaphoreN, harness.Long, "the name is fresh")
		ctx, cancel := context.WithCancel(p.Ctx)
		defer cancel()
		results := p.waiters(ctx, fifoWaiters, rest)
		p.Sleep(p.Standing())
		p.release(held[0])
		var mu sync.Mutex
		var order []string
		var all sync.WaitGroup
		for i, result := range results {
			p.Goes(&all, func() {
				r := <-result
				mu.Lock()
				order = append(order, fmt.Sprint(i+1))
				mu.Unlock()
				r.Client.Must(r, true, "the waiters before it have released their permits")
				p.release(r)
			})
		}
		p.Finish(&all, cancel, "all waiters are served")
		p.release(held[1:]...)
		if want, got := oneTo(fifoWaiters), strings.Join(order, " "); got != want {
			return harness.Wrong("waiters are served in the order in which they joined: "+want,
				fmt.Sprintf("they were served in the order %s; each called Wait %v after the one before", got, rest))
		}
		return harness.Right()
	})
}

func checkPermitsAny(p *permits) {
	held := p.fill(p.a, semaphoreN, harness.Long, "the name is fresh")
	for i := range held {
		waiter := p.waiters(p.Ctx, 1, p.Standing()/2)[0]
		released := p.release(held[i])
		held[i] = p.served(waiter, released.End, "one of the permits was released, and one waits")
		if locker.CanFence(p.a.Locker) && p.Has(harness.NeedsFence) {
			mint(held[i].Client, p.key, held[i].Token, 0)
		}
		p.full("three tokens hold a permit each")
	}
	p.release(held...)
}

func checkPermitsAllUsed(p *permits) {
	const more = 2
	held := p.fill(p.a, semaphoreN, harness.Long, "the name is fresh")
	results := p.waiters(p.Ctx, semaphoreN+more, p.Standing()/2)
	served := make(chan harness.Call, len(results))
	for _, result := range results {
		p.Go(func() {
			select {
			case r := <-result:
				served <- r
			case <-p.Ctx.Done():
			}
		})
	}
	released := p.release(held...)
	next := func(n int, since time.Time) (calls []harness.Call) {
		for range n {
			const why = "three permits were released, and more than three waited"
			calls = append(calls, p.served(served, since, why))
		}
		return calls
	}
	first := next(semaphoreN, released.End)
	p.full("three waiters have got a permit each")
	select {
	case r := <-served:
		p.Fail("no more than three waiters have a permit", fmt.Sprintf("%s.Wait = %s", r.Client.Name, r.Result()))
	default:
	}
	released = p.release(first...)
	p.release(next(more, released.End)...)
	p.free(time.Now(), "all permits were released")
}

func checkPermitsCancel(p *permits) {
	held := p.fill(p.a, semaphoreN, harness.Long, "the name is fresh")
	ctx, cancel := context.WithCancel(p.Ctx)
	defer cancel()
	results := p.waiters(ctx, 4, p.Standing()/8)
	began := time.Now()
	p.Sleep(p.Standing() / 2)
	cancel()
	for _, result := range results {
		r := p.Outcome(result, time.Now(), "its ctx has ended")
		if p.Ended(ctx, r, "A holds all permits, and its ctx was canceled"); !errors.Is(r.Err, locker.ErrHeld) {
			p.lateToJoin(began, "Wait's error wraps ErrHeld: all permits were found to be held", r.Result())
		}
	}
	waiter := p.waiters(p.Ctx, 1, p.Standing()/4)[0]
	released := p.release(held[0])
	held[0] = p.served(waiter, released.End, "a permit was released, and the waiters before it have left")
	released = p.release(held...)
	p.free(released.End, "all permits were released, and all waiters have left")
}

// lateToJoin ends the check, since a waiter had not found out by now what one finds that joined at
// began: as failed, unless the machine is so slow that it may not have joined.
func (p *permits) lateToJoin(began time.Time, want, got string) {
	took := time.Since(began) + p.Standing()
	p.Overdue(harness.Joining, took, "", "", want, got)
	p.Happened(harness.Joining, took, got)
}

func checkPermitsCancelStress(p *permits) {
	var holders semaphoreHolders
	clients := slices.Concat(p.clients(), p.clients())
	p.Each(2*len(clients), func(i int) {
		c := clients[i%len(clients)]
		p.Until(30, 4*time.Second, func() {
			ctx, cancel := context.WithTimeout(p.Ctx, time.Duration(1+rand.IntN(12))*time.Millisecond)
			defer cancel()
			token := p.Token()
			r := c.QuietlyContext(ctx, "Wait", p.key, token, harness.Long)
			switch {
			case r.OK:
				holders.enter()
				p.Sleep(time.Millisecond)
				holders.leave()
				c.Must(c.Quietly("Release", p.key, token, 0), true, "its token holds a permit")
			case errors.Is(r.Err, locker.ErrHeld): // the waiter has left
			case r.Over(ctx): // the waiter may have taken a permit
				if r := c.Quietly("Release", p.key, token, 0); r.Err != nil {
					c.Answers(r)
				}
			default:
				c.Must(r, true, "its context has not ended")
			}
		})
	})
	holders.judge(p)
	p.free(time.Now(), "all permits were released, and all waiters have left")
}

// checkPermitsWaitExpiry lets three holders vanish while three waiters wait.
func checkPermitsWaitExpiry(p *permits) {
	var held []harness.Call
	p.InTime("three permits are taken before one of them expires", func(scale time.Duration) bool {
		p.key = p.Key()
		held = p.fill(p.a, semaphoreN, scale*time.Second, "the name is fresh")
		return time.Now().Before(held[0].Until())
	})
	results := p.waiters(p.Ctx, semaphoreN, 0)
	due := held[2].End.Add(held[2].TTL + p.Granularity())
	var next []harness.Call
	for _, result := range results {
		r := p.served(result, due, "all permits have expired")
		if r.End.Before(held[0].Until()) {
			p.Fail(fmt.Sprintf("not before %s, when the first permit expires", p.At(held[0].Until())),
				fmt.Sprintf("%s.Wait returned at %s", r.Client.Name, p.At(r.End)))
		}
		next = append(next, r)
	}
	p.full("three waiters have got a permit each")
	p.release(next...)
}

// checkPermitsWaitResize lets two waiters wait, one with three permits and one with five. Where
// permits have numbers, the last become free first.
func checkPermitsWaitResize(p *permits) {
	const large = 5
	wide := p.with(p.Env.A, large)
	held := p.fill(wide, large, harness.Long, "the name is fresh, and A counts five permits")
	slices.Reverse(held)
	narrow := p.waiters(p.Ctx, 1, p.Standing()/2)[0]
	other := wide.Waits(p.Ctx, p.key, p.Token(), harness.Long)
	p.Sleep(p.Standing() / 2)
	select {
	case r := <-narrow:
		p.Fail("B.Wait does not return: the name has five holders", "B.Wait = "+r.Result())
	default:
	}
	released := p.release(held...)
	const why = "all permits were released"
	p.release(p.served(narrow, released.End, why), p.served(other, released.End, why))
	held = nil
	for range large {
		held = append(held, wide.TakesFree(p.key, p.Token(), harness.Long, p.began(), time.Now(), why))
	}
	p.release(held...)
	p.free(time.Now(), why)
}
