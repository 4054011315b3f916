package conformance

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/harness"
)

const (
	stormTime = time.Second
	aftermath = 2 * time.Second // a request whose connection has ended takes effect within this time, or never
)

// checkPermitsFaultStorm lets callers of several processes take and release permits while their
// links break at random moments, and one of the processes dies.
func checkPermitsFaultStorm(p *permits) {
	sizes := []int{1, semaphoreN, 10}
	p.Each(len(sizes), func(i int) {
		n := sizes[i]
		s := &permits{Env: p.Env, over: p.over, key: p.Key(), a: p.with(p.Env.A, n), b: p.with(p.Env.B, n), c: p.with(p.Env.C, n)}
		s.storm(n)
	})
}

// storm is the check for a semaphore with n permits.
func (p *permits) storm(n int) {
	flaky, victim := p.faultyWith(n), p.faultyWith(n)
	var holders semaphoreHolders
	var callers sync.WaitGroup
	end := time.Now().Add(stormTime)
	die, cancel := context.WithDeadline(p.Ctx, end.Add(-stormTime/3))
	defer cancel()
	for range n + 2 {
		p.Goes(&callers, func() { p.weather(p.b, p.Ctx, end, harness.Long, &holders, &callers) })
		p.Goes(&callers, func() { p.weather(flaky.Client, p.Ctx, end, harness.Long, &holders, &callers) })
		// What it holds when it dies ends with its ttl.
		p.Goes(&callers, func() { p.weather(victim.Client, die, end, waitTTL, nil, &callers) })
	}
	p.Goes(&callers, func() {
		for time.Now().Before(end) {
			p.Sleep(time.Duration(rand.IntN(15)) * time.Millisecond)
			if rand.IntN(4) == 0 {
				flaky.p.Cut()
			} else {
				flaky.p.Arm(broken[rand.IntN(len(broken))], 1+rand.IntN(6))
			}
		}
		flaky.p.Disarm()
	})
	p.Goes(&callers, func() {
		<-die.Done()
		victim.p.Refuse()
	})
	p.Finish(&callers, cancel, "all callers end when their links work again")
	holders.judgeOf(p, int64(n))

	var held []harness.Call
	free := time.Now().Add(max(waitTTL, semaphoreDeath))
	for range n {
		held = append(held, p.c.TakesFree(p.key, p.Token(), harness.Long, p.began(), free.Add(p.Granularity()),
			"all callers have released their permits, but for those of a process that has died"))
	}
	p.full("C holds all permits")
	if p.Has(harness.NeedsWait) {
		waiter := p.a.Waits(p.Ctx, p.key, p.Token(), harness.Long)
		p.Sleep(p.Standing() / 2)
		released := p.release(held[0])
		held[0] = p.served(waiter, released.End.Add(semaphoreDeath), "a permit was released")
	}
	p.release(held...)
}

// weather takes and releases permits until end, or until alive has ended. It counts the holders
// unless holders is nil. The cleanups that it starts belong to callers.
func (p *permits) weather(c *harness.Client, alive context.Context, end time.Time, ttl time.Duration,
	holders *semaphoreHolders, callers *sync.WaitGroup) {
	queues := locker.CanWait(c.Locker)
	for time.Now().Before(end) && alive.Err() == nil {
		ctx, cancel := context.WithTimeout(alive, time.Duration(1+rand.IntN(100))*time.Millisecond)
		op := "Acquire"
		if queues && rand.IntN(4) > 0 {
			op = "Wait"
		}
		token := p.Token()
		r := c.QuietlyContext(ctx, op, p.key, token, ttl)
		cancel()
		if r.OK && holders != nil {
			holders.enter()
		}
		p.Sleep(time.Millisecond)
		if r.OK && holders != nil {
			holders.leave()
		}
		switch {
		case r.OK:
			p.releasesSurely(c, alive, token, time.Time{})
		case r.Err != nil && !errors.Is(r.Err, locker.ErrHeld):
			p.Goes(callers, func() { p.releasesSurely(c, alive, token, time.Now().Add(aftermath)) })
		}
	}
}

// releasesSurely makes Releases until one has released the permit, or one has an answer after the
// time late. Until then, an attempt without an answer may yet take a permit.
func (p *permits) releasesSurely(c *harness.Client, alive context.Context, token string, late time.Time) {
	end := max(time.Until(late), 0) + p.Allow(harness.Healing)
	for begun, rest := time.Now(), 5*time.Millisecond; alive.Err() == nil; rest = min(2*rest, 250*time.Millisecond) {
		r := c.Quietly("Release", p.key, token, 0)
		switch {
		case r.Err == nil && (r.OK || time.Now().After(late)):
			return
		case r.Err != nil && time.Since(begun) > end:
			c.Answers(r)
		}
		p.Sleep(rest)
	}
}
