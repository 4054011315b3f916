package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/metrics"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/redisv9"
)

// growing are the contenders whose cost grows in different ways: they wait in a queue, woken, or
// polling.
var growing = []string{"redisv9", "redigo", "rueidislock", "redislock-100ms", "by-hand-1ms"}

// runGrowth measures what more waiting processes cost.
func runGrowth(ctx context.Context, b *bench) error {
	rounds := max(b.rounds*3/8, 1)
	var contenders []contender
	for _, c := range redisLocks {
		if slices.Contains(growing, c.name) {
			contenders = append(contenders, c)
		}
	}
	var scenarios []scenario
	for _, processes := range []int{1, 4, 16, 64} {
		scenarios = append(scenarios, scenario{
			name:      "processes-" + strconv.Itoa(processes),
			processes: processes, goroutines: 1, hold: 5 * time.Millisecond, rest: 5 * time.Millisecond,
			length: time.Second,
		})
	}
	some := *b
	some.rounds = rounds
	err := some.takeTurns(ctx, "growth", scenarios, contenders, b.redis.usage)
	b.errs = some.errs
	return err
}

// runLeases measures what the locks that one process holds cost.
func runLeases(ctx context.Context, b *bench) error {
	for _, leases := range []int{1, 100, 10_000, 100_000} {
		for _, h := range holders {
			s := sample{section: "leases", scenario: "leases-" + strconv.Itoa(leases), who: h.name}
			if err := b.try(ctx, s, h.ours, func() ([]metric, error) { return b.hold(ctx, h, leases) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// holders hold many locks at a time.
var holders = []contender{
	ours("memory", newMemory),
	ours("redisv9", newRedisv9),
	{"redisv9-keepalive", true, func(j job) (lock, error) {
		l := redisv9.New(goredis(j))
		return func(ctx context.Context, key string) (func() error, error) {
			lease, err := locker.Lock(ctx, l, key, leaseTTL, locker.WithKeepAlive())
			if err != nil {
				return nil, err
			}
			return func() error { return lease.Unlock(ctx) }, nil
		}, nil
	}},
	{"rueidislock", false, func(j job) (lock, error) { return rueidisLock(j) }},
	{"redislock-1ms", false, func(j job) (lock, error) { return redislockPolling(j, time.Millisecond), nil }},
}

// leaseTTL is the ttl of leases that are kept alive: this library extends them three times in it,
// rueidislock twice.
const leaseTTL = 15 * time.Second

// hold makes one process take so many locks, keep them for a while and release them.
func (b *bench) hold(ctx context.Context, h contender, leases int) ([]metric, error) {
	j := b.job("leases", h.name, newKey("leases"))
	j.Count, j.TTL = leases, leaseTTL
	f, err := startFleet(ctx, 1, j)
	if err != nil {
		return nil, err
	}
	defer f.kill()
	const work = 30 * time.Second // for as many requests
	held, err := f.one(ctx, order{}, work)
	if err != nil {
		return nil, fmt.Errorf("acquire: %w", err)
	}
	window := time.Duration(0)
	if isKept := h.name == "redisv9-keepalive" || h.name == "rueidislock"; isKept && leases > 1 {
		window = 9 * time.Second // somewhat longer than until the first extension
	}
	before, err := b.redis.requests(ctx)
	if err != nil {
		return nil, err
	}
	time.Sleep(window)
	after, err := b.redis.requests(ctx)
	if err != nil {
		return nil, err
	}
	released, err := f.one(ctx, order{Finish: true}, work)
	if err != nil {
		return nil, fmt.Errorf("release: %w", err)
	}
	m := []metric{
		{float64(held.Memory) / float64(leases), "bytes/lease"},
		{float64(held.Goroutines), "goroutines"},
		{float64(released.Goroutines), "goroutines-after"},
	}
	if window > 0 {
		m = append(m, metric{float64(after-before-1) / window.Seconds(), "requests/s"})
	}
	return m, nil
}

// holding is a process that holds many locks.
type holding struct {
	job
	lock     lock
	unlocks  []func() error
	memory   int64 // before the first
	routines int
}

func newHolder(j job) (worker, error) {
	i := slices.IndexFunc(holders, func(h contender) bool { return h.name == j.Who })
	if i < 0 {
		return nil, fmt.Errorf("no holder %q", j.Who)
	}
	l, err := holders[i].open(j)
	if err != nil {
		return nil, err
	}
	h := &holding{job: j, lock: l, unlocks: make([]func() error, j.Count)}
	// The connections of the pool are not part of a lease's cost.
	if err := openConnections(l, j.Key); err != nil {
		return nil, err
	}
	h.memory, h.routines = used(), runtime.NumGoroutine()
	return h, nil
}

func (h *holding) run(ctx context.Context, o order) reply {
	err := inParallel(h.Count, func(i int) (err error) {
		if o.Finish {
			return h.unlocks[i]()
		}
		h.unlocks[i], err = h.lock(ctx, h.Key+"/"+strconv.Itoa(i))
		return err
	})
	r := reply{Memory: used() - h.memory, Goroutines: runtime.NumGoroutine() - h.routines}
	if err != nil {
		r.Fails, r.Error = 1, err.Error()
	}
	return r
}

// openConnections fills the pool of a client.
func openConnections(l lock, key string) error {
	return inParallel(connections, func(i int) error {
		unlock, err := l(context.Background(), fmt.Sprintf("%s/warm-up/%d", key, i))
		if err != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond)
		return unlock()
	})
}

// inParallel calls do with each number up to n, 32 at a time, and returns one of the errors.
func inParallel(n int, do func(int) error) error {
	var errs firstOf
	numbers := make(chan int)
	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			for i := range numbers {
				errs.add(do(i))
			}
		})
	}
	for i := range n {
		numbers <- i
	}
	close(numbers)
	all.Wait()
	return errs.err
}

// firstOf is the first of many errors.
type firstOf struct {
	once sync.Once
	err  error
}

func (f *firstOf) add(err error) {
	if err != nil {
		f.once.Do(func() { f.err = err })
	}
}

// used is how many bytes are in use by objects and stacks.
func used() int64 {
	runtime.GC()
	runtime.GC()
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64() + s[1].Value.Uint64())
}
