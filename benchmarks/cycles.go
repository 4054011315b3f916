package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// scenario is how locks are used: in cycles of locking, holding, unlocking and resting.
type scenario struct {
	name       string
	processes  int
	goroutines int // in each
	ownKeys    bool
	randomKeys int // the number of keys to choose from; 0 means one key
	hold, rest time.Duration
	length     time.Duration // nominal
	least      time.Duration // so that a contender has its turn, however short the other runs are
}

var lockScenarios = []scenario{
	{name: "uncontended-1", processes: 1, goroutines: 1, ownKeys: true, length: 600 * time.Millisecond},
	{name: "uncontended-32", processes: 1, goroutines: 32, ownKeys: true, length: 800 * time.Millisecond},
	{name: "one-key-1x32", processes: 1, goroutines: 32, length: 600 * time.Millisecond},
	{name: "one-key-4x8", processes: 4, goroutines: 8, length: 6 * time.Second}, // turns take 50 ms
	{name: "hand-off", processes: 4, goroutines: 1, hold: 5 * time.Millisecond, rest: 5 * time.Millisecond,
		length: 2400 * time.Millisecond, least: 100 * time.Millisecond},
}

// crowdScenarios are more of the first two: every goroutine has a lock of its own. With more
// goroutines the runs are longer, so that the time in which they start matters less.
var crowdScenarios = []scenario{
	{name: "uncontended-8", processes: 1, goroutines: 8, ownKeys: true, length: 400 * time.Millisecond},
	{name: "uncontended-256", processes: 1, goroutines: 256, ownKeys: true, length: 1600 * time.Millisecond},
	{name: "uncontended-1000", processes: 1, goroutines: 1000, ownKeys: true, length: 3200 * time.Millisecond},
}

func shorter(scenarios []scenario, length time.Duration) []scenario {
	scenarios = slices.Clone(scenarios)
	for i := range scenarios {
		scenarios[i].length = length
	}
	return scenarios
}

func runLocks(ctx context.Context, b *bench) error {
	return b.takeTurns(ctx, "locks", slices.Concat(lockScenarios, crowdScenarios), redisLocks, b.redis.usage)
}

func runMemcached(ctx context.Context, b *bench) error {
	return b.takeTurns(ctx, "memcached", shorter(lockScenarios[:4], 400*time.Millisecond), memcachedLocks,
		b.memcached.usage)
}

func runMemory(ctx context.Context, b *bench) error {
	return b.takeTurns(ctx, "memory", shorter(lockScenarios[:3], 200*time.Millisecond), memoryLocks, nil)
}

// usage is what a server has done so far.
type usage struct {
	requests int64 // the one that asks for it included
	cpu      time.Duration
}

type counter func(context.Context) (usage, error)

// takeTurns runs every contender through every scenario, one after the other, round after round.
func (b *bench) takeTurns(ctx context.Context, section string, scenarios []scenario, contenders []contender,
	count counter) error {
	for round := range b.rounds {
		for _, sc := range scenarios {
			for i := range contenders {
				c := contenders[(i+round)%len(contenders)] // none of them is always the first
				s := sample{section: section, scenario: sc.name, who: c.name}
				if b.hung[s.name()] >= maxHangs || !b.match.MatchString(s.name()) {
					continue
				}
				r, err := b.cycle(ctx, sc, c, count)
				if ctx.Err() != nil {
					return ctx.Err()
				}
				if err != nil {
					s.err = err.Error()
					if errors.Is(err, errHangs) {
						b.hung[s.name()]++
					}
				}
				if c.ours && (err != nil || r.overlaps > 0) {
					b.ourFault("%s: %d overlaps, %v", s.name(), r.overlaps, err)
				}
				s.metrics = r.metrics()
				if err := b.record(s); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// cycles is the outcome of one run.
type cycles struct {
	length    time.Duration
	served    []int64 // by goroutine, within the time
	processes []int64 // by process
	all       int64   // also those that ended later
	requests  int64   // -1: there is no server
	cpu       time.Duration
	serverCPU time.Duration
	waits     hist
	handOff   hist
	overlaps  int64
}

func (b *bench) job(kind, who, key string) job {
	return job{
		Kind: kind, Who: who, Key: key,
		Redis: b.redis.addr, Memcached: b.memcached.addr, Postgres: b.postgres, MariaDB: b.mariadb, SQLite: b.sqlite, Etcd: b.etcd,
		Shared:  b.shared.path,
		Profile: b.profile,
	}
}

// cycle runs one contender through one scenario, in fresh processes.
func (b *bench) cycle(ctx context.Context, sc scenario, c contender, count counter) (cycles, error) {
	var r cycles
	b.shared.clear()
	j := b.job("cycles", c.name, newKey(sc.name))
	j.OwnKeys, j.Count, j.Hold, j.Rest = sc.ownKeys, sc.goroutines, sc.hold, sc.rest
	j.RandomKeys = sc.randomKeys
	f, err := startFleet(ctx, sc.processes, j)
	if err != nil {
		return r, err
	}
	defer f.kill()

	// The connections are opened before anything is counted.
	warmUp := b.scaled(50 * time.Millisecond)
	replies, err := f.do(ctx, order{For: warmUp}, warmUp)
	if err == nil {
		err = firstError(replies)
	}
	if err != nil {
		return r, fmt.Errorf("warming up: %w", err)
	}
	b.shared.clear()

	if count == nil {
		r.requests, count = -1, func(context.Context) (usage, error) { return usage{}, nil }
	}
	before, err := count(ctx)
	if err != nil {
		return r, err
	}
	r.length = max(b.scaled(sc.length), sc.least)
	replies, err = f.do(ctx, order{For: r.length}, r.length)
	if err != nil {
		return r, err
	}
	after, err := count(ctx)
	if err != nil {
		return r, err
	}
	if r.requests == 0 {
		r.requests = max(after.requests-before.requests-1, 0)
		r.serverCPU = after.cpu - before.cpu
	}
	r.waits, r.handOff = newHist(), newHist()
	for _, reply := range replies {
		var sum int64
		for _, n := range reply.Served {
			sum += n
		}
		r.served = append(r.served, reply.Served...)
		r.processes = append(r.processes, sum)
		r.all += reply.Cycles
		r.cpu += reply.CPU
		r.waits.merge(reply.Waits)
		r.handOff.merge(reply.HandOff)
	}
	entries, overlaps := b.shared.sums()
	r.overlaps = overlaps
	if err := firstError(replies); err != nil {
		return r, err
	}
	if entries != r.all {
		return r, fmt.Errorf("%d cycles, but the shared memory has seen %d", r.all, entries)
	}
	if r.all == 0 {
		return r, errors.New("the lock was never acquired")
	}
	return r, nil
}

func firstError(replies []reply) error {
	fails := 0
	var first string
	for _, r := range replies {
		fails += r.Fails
		if first == "" {
			first = r.Error
		}
	}
	if fails > 0 {
		return fmt.Errorf("%d calls failed: %s", fails, first)
	}
	return nil
}

func (r cycles) metrics() []metric {
	var sum int64
	for _, n := range r.served {
		sum += n
	}
	m := []metric{
		{float64(sum) / r.length.Seconds(), "cycles/s"},
		{milliseconds(r.waits.quantile(0.5)), "lock-p50-ms"},
		{milliseconds(r.waits.quantile(0.99)), "lock-p99-ms"},
		{share(r.served), "least-share"},
		{float64(r.overlaps), "overlaps"},
	}
	m = append(m, metric{float64(r.cpu.Microseconds()) / float64(max(r.all, 1)), "cpu-us/cycle"})
	if r.requests >= 0 {
		m = append(m, metric{float64(r.serverCPU.Microseconds()) / float64(max(r.all, 1)), "server-cpu-us/cycle"},
			metric{float64(r.requests) / float64(max(r.all, 1)), "requests/cycle"})
	}
	if len(r.processes) > 1 {
		m = append(m, metric{share(r.processes), "least-process-share"})
	}
	if r.handOff.count() > 0 {
		m = append(m, metric{milliseconds(r.handOff.quantile(0.5)), "hand-off-p50-ms"},
			metric{milliseconds(r.handOff.quantile(0.99)), "hand-off-p99-ms"})
	}
	return m
}

// share is the share of the one that was served least, as a fraction of an equal share.
func share(served []int64) float64 {
	var sum int64
	for _, n := range served {
		sum += n
	}
	if sum == 0 {
		return 0
	}
	return float64(slices.Min(served)) * float64(len(served)) / float64(sum)
}

// cycler is a process that locks and unlocks.
type cycler struct {
	job
	lock   lock
	shared *shared
}

func newCycler(j job) (worker, error) {
	c, err := findContender(j.Who)
	if err != nil {
		return nil, err
	}
	s, err := openShared(j.Shared)
	if err != nil {
		return nil, err
	}
	l, err := c.open(j)
	if err != nil {
		return nil, err
	}
	return &cycler{j, l, s}, nil
}

const (
	maxHangs  = 3 // then a run is not repeated
	maxCycles = 100_000_000
	maxFails  = 20
)

func (c *cycler) run(ctx context.Context, o order) reply {
	results := make([]reply, c.Count)
	before := cpuTime()
	var all sync.WaitGroup
	for i := range c.Count {
		key, number := c.Key, 0
		if c.OwnKeys {
			number = c.Process*c.Count + i
			key += "/" + strconv.Itoa(number)
		}
		all.Go(func() { results[i] = c.cycles(ctx, o, key, c.shared.slot(number)) })
	}
	all.Wait()
	sum := reply{Waits: newHist(), HandOff: newHist(), CPU: cpuTime() - before}
	for _, r := range results {
		sum.Cycles += r.Cycles
		sum.Served = append(sum.Served, r.Served...)
		sum.Waits.merge(r.Waits)
		sum.HandOff.merge(r.HandOff)
		sum.Fails += r.Fails
		if sum.Error == "" {
			sum.Error = r.Error
		}
	}
	return sum
}

// cycles is one goroutine's share of a run.
func (c *cycler) cycles(ctx context.Context, o order, key string, s *slot) reply {
	r := reply{Served: make([]int64, 1), Waits: newHist(), HandOff: newHist()}
	fail := func(err error) bool {
		if r.Fails++; r.Error == "" {
			r.Error = err.Error()
		}
		return r.Fails >= maxFails
	}
	end := o.Start.Add(o.For)
	time.Sleep(time.Until(o.Start))
	common := key
	for range maxCycles {
		if c.RandomKeys > 0 {
			number := rand.IntN(c.RandomKeys)
			key, s = common+"/"+strconv.Itoa(number), c.shared.slot(number)
		}
		asked := time.Now()
		if !asked.Before(end) && r.Cycles > 0 { // once also on a machine so busy that the time is up
			break
		}
		unlock, err := c.lock(ctx, key)
		got := time.Now()
		if err != nil {
			if fail(err) {
				break
			}
			continue
		}
		r.Cycles++
		if handOff, waited := s.enter(asked, got); waited {
			r.HandOff.add(handOff)
		}
		r.Waits.add(got.Sub(asked))
		if c.Hold > 0 {
			time.Sleep(c.Hold)
		}
		done := time.Now()
		s.leave(done)
		if err := unlock(); err != nil && fail(err) {
			break
		}
		if done.Before(end) {
			r.Served[0]++
		}
		if c.Rest > 0 {
			time.Sleep(c.Rest)
		}
	}
	return r
}

// cpuTime is how long this process has used a processor. Unlike the elapsed time, it is much the same on a
// machine that others use as well.
func cpuTime() time.Duration {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// runChecks tests the benchmarks themselves: with every contender, locks of distinct keys are held at the same
// time, one lock is not, and an overlap would be noticed.
func runChecks(ctx context.Context, b *bench) error {
	one := scenario{name: "check-one-key", processes: 4, goroutines: 2, hold: time.Millisecond,
		length: 200 * time.Millisecond, least: 150 * time.Millisecond}
	own := scenario{name: "check-own-keys", processes: 2, goroutines: 4, ownKeys: true, hold: 20 * time.Millisecond,
		length: 200 * time.Millisecond, least: 150 * time.Millisecond}
	for _, c := range slices.Concat(redisLocks, memcachedLocks, []contender{noLock}) {
		for _, sc := range []scenario{one, own} {
			s := sample{section: "check", scenario: sc.name, who: c.name}
			r, err := b.check(ctx, sc, c)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				s.err = err.Error()
				if c.ours || c.name == noLock.name {
					b.ourFault("%s: %w", s.name(), err)
				}
			}
			s.metrics = r.metrics()
			if err := b.record(s); err != nil {
				return err
			}
		}
	}
	return nil
}

// errTooLittle is the cause when a run shows nothing.
var errTooLittle = errors.New("too little happened")

// check runs a scenario, and again for longer if it shows nothing: other programs may have kept the
// machine busy.
func (b *bench) check(ctx context.Context, sc scenario, c contender) (r cycles, err error) {
	for range 3 {
		if r, err = b.cycle(ctx, sc, c, nil); err == nil {
			err = checked(sc, c, r)
		}
		if !errors.Is(err, errTooLittle) {
			break
		}
		sc.length, sc.least = 4*sc.length, 4*sc.least
	}
	return r, err
}

func checked(sc scenario, c contender, r cycles) error {
	var busy float64 // how many held a lock at a time, on average
	for _, n := range r.served {
		busy += float64(n) * sc.hold.Seconds() / r.length.Seconds()
	}
	switch {
	case c.name == noLock.name && !sc.ownKeys:
		if r.overlaps == 0 {
			return fmt.Errorf("%w: there is no lock, but no overlap was noticed", errTooLittle)
		}
	case r.overlaps > 0:
		return fmt.Errorf("it does not exclude: %d overlaps in %d cycles", r.overlaps, r.all)
	case sc.ownKeys && r.handOff.count() > 0:
		return errors.New("the keys are not distinct: a caller waited")
	case !sc.ownKeys && r.handOff.count() == 0:
		return fmt.Errorf("%w: no contention", errTooLittle)
	case sc.ownKeys && busy < 1.5:
		return fmt.Errorf("%w: distinct keys were not held at the same time: %.1f", errTooLittle, busy)
	}
	return nil
}
