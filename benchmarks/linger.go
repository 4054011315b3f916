package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/golockers/locker/cohort"
)

// lingerFor is how long locks linger, as recommended.
const lingerFor = 100 * time.Millisecond

// lingering lists the contenders that keep locks for their next callers.
var lingering = []contender{
	ours("redisv9+linger", newRedisv9, cohort.WithLinger(lingerFor)),
	ours("rueidis+linger", newRueidis, cohort.WithLinger(lingerFor)),
}

// lingerPeers lists the contenders that they are compared with.
var lingerPeers = []string{
	"redisv9", "redisv9+cohort", "redislock-1ms", "rueidislock", "by-hand-1ms",
}

// lingerScenarios are locks that are taken again and again. In the last one, two processes that
// want the same lock all the time take turns.
var lingerScenarios = []scenario{
	{name: "same-key", processes: 1, goroutines: 1, ownKeys: true, length: 400 * time.Millisecond},
	{name: "random-1000-keys", processes: 1, goroutines: 32, randomKeys: 1000, length: 400 * time.Millisecond},
	{name: "one-key-2x1", processes: 2, goroutines: 1, length: 600 * time.Millisecond},
}

func runLinger(ctx context.Context, b *bench) error {
	contenders := slices.Clone(lingering)
	for _, c := range redisLocks {
		if slices.Contains(lingerPeers, c.name) {
			contenders = append(contenders, c)
		}
	}
	if err := b.takeTurns(ctx, "linger", lingerScenarios, contenders, b.redis.usage); err != nil {
		return err
	}
	for round := range b.rounds {
		for i := range contenders {
			c := contenders[(i+round)%len(contenders)]
			s := sample{section: "linger", scenario: "first-access", who: c.name}
			err := b.try(ctx, s, c.ours, func() ([]metric, error) {
				r, err := b.visit(ctx, c)
				if err == nil && r.overlaps > 0 {
					err = fmt.Errorf("%d overlaps", r.overlaps)
				}
				return r.metrics(), err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// visit measures the first access of a process to locks that another process has just released and
// may keep.
func (b *bench) visit(ctx context.Context, c contender) (cycles, error) {
	r := cycles{waits: newHist(), handOff: newHist()}
	b.shared.clear()
	f, err := startFleet(ctx, 2, b.job("visits", c.name, newKey("first-access")))
	if err != nil {
		return r, err
	}
	defer f.kill()
	turns := []*workforce{{f.processes[:1]}, {f.processes[1:]}}
	round := 0
	// batch makes both processes use some locks, one after the other.
	batch := func() (second reply, err error) {
		for _, w := range turns {
			if second, err = w.one(ctx, order{Round: round}, time.Second); err != nil {
				return second, err
			}
			r.all += second.Cycles
			r.cpu += second.CPU
		}
		round++
		return second, nil
	}
	for range 3 { // the connections are opened, and the first demand has been answered
		if _, err := batch(); err != nil {
			return r, err
		}
	}
	r.all, r.cpu = 0, 0
	b.shared.clear()
	before, err := b.redis.usage(ctx)
	if err != nil {
		return r, err
	}
	start := time.Now()
	for length := b.scaled(500 * time.Millisecond); r.all == 0 || time.Since(start) < length; {
		second, err := batch()
		if err != nil {
			return r, err
		}
		r.waits.merge(second.Waits)
	}
	after, err := b.redis.usage(ctx)
	if err != nil {
		return r, err
	}
	r.length = time.Since(start)
	r.served = []int64{r.all}
	r.requests, r.serverCPU = max(after.requests-before.requests-1, 0), after.cpu-before.cpu
	entries, overlaps := b.shared.sums()
	if r.overlaps = overlaps; entries != r.all {
		return r, errors.New("the shared memory has seen another number of cycles")
	}
	return r, nil
}

// visits is how many locks a process uses in a batch. It is small enough that the other process
// uses all of them while they linger.
const visits = 40

// visitor is a process that uses some locks, each of them once.
type visitor struct{ *cycler }

func newVisitor(j job) (worker, error) {
	w, err := newCycler(j)
	if err != nil {
		return nil, err
	}
	return visitor{w.(*cycler)}, nil
}

func (v visitor) run(ctx context.Context, o order) reply {
	r := reply{Waits: newHist(), HandOff: newHist()}
	time.Sleep(time.Until(o.Start))
	before := cpuTime()
	for i := range visits {
		asked := time.Now()
		unlock, err := v.lock(ctx, v.Key+"/"+strconv.Itoa(o.Round*visits+i))
		got := time.Now()
		if err == nil {
			s := v.shared.slot(i)
			s.enter(asked, got)
			r.Cycles++
			r.Waits.add(got.Sub(asked))
			s.leave(time.Now())
			err = unlock()
		}
		if err != nil {
			r.Fails++
			r.Error = err.Error()
		}
	}
	r.CPU = cpuTime() - before
	return r
}
