package conformance

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/harness"
)

// These checks are about the permits of a semaphore without waiters.

func semaphoreBasicChecks() ([]harness.Check, []func(p *permits)) {
	return []harness.Check{{
			Name: "permits/count", Rules: []string{s1Limit}, Direct: true,
			Causes: "an off-by-one error; a caller that tries only one of the permits.",
		}, {
			Name: "permits/race", Rules: []string{s1Limit},
			Causes: "counting the holders and adding one in two steps.",
		}, {
			Name: "permits/owner", Rules: []string{s2Owner},
			Causes: "a release that decreases a counter, whoever calls it; a permit that is known only to the process that took it.",
		}, {
			Name: "permits/same-token", Rules: []string{s2Owner},
			Causes: "an attempt that is repeated after a lost reply and takes a second permit.",
		}, {
			Name: "permits/expiry", Rules: []string{s3Apart, s1Limit},
			Causes: "a counter without an expiry: a holder that dies takes its permit with it; scores by the clocks of clients.",
		}, {
			Name: "permits/extend", Rules: []string{s3Apart},
			Causes: "one expiry for all holders, which each of them renews.",
		}, {
			Name: "permits/resize", Rules: []string{s7Resize},
			Causes: "names or counts of their own for each N.",
		}, {
			Name: "permits/fence", Rules: []string{s8Fence}, Needs: harness.NeedsFence,
			Causes: "a counter that begins again with each holder.",
		}, {
			Name: "permits/context", Rules: []string{c9Before},
			Causes: "a context that is not passed on.",
		}}, []func(p *permits){checkPermitsCount, checkPermitsRace, checkPermitsOwner, checkPermitsSameToken,
			checkPermitsExpiry, checkPermitsExtend, checkPermitsResize, checkPermitsFence, checkPermitsContext}
}

func checkPermitsCount(p *permits) {
	held := []harness.Call{
		p.a.Takes(p.key, p.Token(), harness.Long, "the name is fresh"),
		p.b.Takes(p.key, p.Token(), harness.Long, "one of three permits is taken"),
		p.c.Takes(p.key, p.Token(), harness.Long, "two of three permits are taken"),
	}
	p.full("three tokens hold a permit each")
	// An Acquire that tries only one permit, chosen at random, finds the free one in a third of the
	// turns, so there are many.
	for turn := range 4 * semaphoreN {
		i := turn % semaphoreN
		p.release(held[i])
		held[i] = p.clients()[(turn+1)%3].Takes(p.key, p.Token(), harness.Long, "two of three permits are taken")
		p.full("three tokens hold a permit each")
	}
	p.release(held...)
	p.release(p.fill(p.b, semaphoreN, harness.Long, "all permits were released")...)
}

// holders counts the holders of permits. A holder counts from after its acquisition until before
// its release, so the count is never too high.
type semaphoreHolders struct{ now, most atomic.Int64 }

func (h *semaphoreHolders) enter() {
	n := h.now.Add(1)
	for most := h.most.Load(); n > most && !h.most.CompareAndSwap(most, n); most = h.most.Load() {
	}
}

func (h *semaphoreHolders) leave() { h.now.Add(-1) }

// judge fails the check if there were too many.
func (h *semaphoreHolders) judge(p *permits) { h.judgeOf(p, semaphoreN) }

func (h *semaphoreHolders) judgeOf(p *permits, n int64) {
	if most := h.most.Load(); most > n {
		p.Fail(fmt.Sprintf("no more than %d tokens hold a permit at a time", n),
			fmt.Sprintf("%d did: each had its permit from before the last of them got its own until after that", most))
	}
}

func checkPermitsRace(p *permits) {
	var holders semaphoreHolders
	p.Each(18, func(i int) {
		c := p.clients()[i%3]
		p.Until(40, 3*time.Second, func() {
			token := p.Token()
			if !c.Answers(c.Quietly("Acquire", p.key, token, harness.Long)).OK {
				p.Sleep(time.Millisecond)
				return
			}
			holders.enter()
			p.Sleep(time.Millisecond)
			holders.leave()
			c.Must(c.Quietly("Release", p.key, token, 0), true, "its token holds a permit")
		})
	})
	holders.judge(p)
	p.free(time.Now(), "all permits were released")
}

func checkPermitsOwner(p *permits) {
	held := p.fill(p.a, semaphoreN, harness.Long, "the name is fresh")
	const why = "its token holds no permit"
	for _, c := range p.clients() {
		other := p.Token()
		c.CannotExtend(p.key, other, harness.Long, why)
		c.CannotRelease(p.key, other, why)
	}
	p.full("three tokens hold a permit each")
	for _, h := range held {
		p.b.Extends(p.key, h.Token, harness.Long, "the token holds a permit, whichever Locker it is used with")
		p.c.Releases(p.key, h.Token, "the token holds a permit, whichever Locker it is used with")
		p.a.CannotExtend(p.key, h.Token, harness.Long, "C has released its permit")
		p.a.CannotRelease(p.key, h.Token, "C has released its permit")
	}
	p.free(time.Now(), "all permits were released")
}

func checkPermitsSameToken(p *permits) {
	for range 4 { // tokens begin with different permits
		token := p.Token()
		first := p.a.Takes(p.key, token, harness.Long, "all permits are free")
		other := p.b.Takes(p.key, p.Token(), harness.Long, "one of three permits is taken")
		for range 3 {
			p.a.Takes(p.key, token, harness.Long, "its token holds a permit already")
		}
		third := p.c.Takes(p.key, p.Token(), harness.Long, "two tokens hold a permit each")
		p.full("three tokens hold a permit each")
		p.release(first, other, third)
		p.a.CannotRelease(p.key, token, "it has released its permit")
	}
}

func checkPermitsExpiry(p *permits) {
	var held []harness.Call
	p.InTime("three permits are taken before one of them expires", func(scale time.Duration) bool {
		p.key = p.Key()
		held = nil
		for i, c := range p.clients() {
			held = append(held, c.Takes(p.key, p.Token(), scale*time.Duration(1+i)*700*time.Millisecond, "fewer than three are taken"))
		}
		return time.Now().Before(held[0].Until())
	})
	ends := func(a, b harness.Call) int { return a.Until().Compare(b.Until()) }
	slices.SortFunc(held, ends)
	var next []harness.Call
	for _, h := range held {
		next = append(next, p.b.TakesWhen(p.key, p.Token(), harness.Long, h.Until(), h.End.Add(h.TTL),
			"one more of the permits has expired then"))
	}
	p.full("B holds all permits")
	p.release(next...)
}

func checkPermitsExtend(p *permits) {
	var extended harness.Call
	var held []harness.Call
	p.InTime("one of three permits is extended before it expires", func(scale time.Duration) bool {
		p.key = p.Key()
		held = p.fill(p.a, semaphoreN, scale*time.Second, "the name is fresh")
		extended = p.a.Extend(p.key, held[0].Token, harness.Long)
		return p.a.Answers(extended).OK
	})
	first, last := held[1], held[2]
	next := []harness.Call{
		p.b.TakesWhen(p.key, p.Token(), harness.Long, first.Until(), last.End.Add(last.TTL), "two permits were not extended"),
		p.c.TakesWhen(p.key, p.Token(), harness.Long, first.Until(), last.End.Add(last.TTL), "two permits were not extended"),
	}
	p.full("one permit was extended, and two have new holders")
	p.release(append(next, extended)...)
}

func checkPermitsResize(p *permits) {
	const large = 5
	wide := p.with(p.Env.A, large)
	held := p.fill(wide, large, harness.Long, "the name is fresh, and A counts five permits")
	p.full("the name has five holders, and the Locker counts three permits")
	wide.Blocked(p.key, "five tokens hold a permit each")
	p.release(held...)
	narrow := p.fill(p.b, semaphoreN, harness.Long, "all permits were released")
	p.full("three tokens hold a permit each")
	rest := p.fill(wide, large-semaphoreN, harness.Long, "A counts five permits, of which three are taken")
	wide.Blocked(p.key, "five tokens hold a permit each")
	p.full("five tokens hold a permit each")
	p.release(append(narrow, rest...)...)
	p.free(time.Now(), "all permits were released")
}

func checkPermitsFence(p *permits) {
	if !locker.CanFence(p.a.Locker) {
		p.Skip(fmt.Sprintf("%T is not a locker.Fencer", p.a.Locker))
	}
	others := p.fill(p.b, semaphoreN-1, harness.Long, "the name is fresh")
	var last uint64
	for i := range 6 {
		c := p.clients()[i%3]
		held := c.Takes(p.key, p.Token(), harness.Long, "two of three permits are taken")
		last = mint(c, p.key, held.Token, last)
		last = mint(c, p.key, held.Token, last)
		p.release(held)
	}
	p.release(others...)
}

func checkPermitsContext(p *permits) {
	for how, ctx := range doneContexts(p.Ctx) {
		why := "its context was " + how + " before the call"
		p.Ended(ctx, p.a.DoContext(ctx, "Acquire", p.key, p.Token(), harness.Long), why)
		held := p.fill(p.b, semaphoreN, harness.Long, "A's Acquire did nothing, since "+why)
		p.Ended(ctx, p.b.DoContext(ctx, "Release", p.key, held[0].Token, 0), why)
		p.release(held...)
	}
}
