package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/redisv9"
)

// crowds are the locks whose waiters are counted.
var crowds = slices.DeleteFunc(slices.Clone(redisLocks), func(c contender) bool {
	return c.name != "redisv9" && c.name != "rueidis"
})

// standing is a scenario in which the goroutines of one process wait for locks that are held.
type standing struct {
	name      string
	waiters   int
	ownKeys   bool          // each waits for a lock of its own
	keepAlive time.Duration // the ttl of the lock, which is kept alive; 0 is one that outlives the scenario
}

// runScale measures the cost of waiting, for different numbers of waiters, and what many locks
// leave behind.
func runScale(ctx context.Context, b *bench) error {
	scenarios := []standing{
		{name: "queue-100", waiters: 100},
		{name: "queue-1000", waiters: 1000},
		{name: "queue-10000", waiters: 10_000},
		{name: "kept-1s", waiters: 2000, keepAlive: time.Second},
		{name: "kept-15s", waiters: 2000, keepAlive: 15 * time.Second},
		{name: "kept-1m", waiters: 2000, keepAlive: time.Minute},
		{name: "keys-1000", waiters: 1000, ownKeys: true},
		{name: "keys-10000", waiters: 10_000, ownKeys: true},
		{name: "keys-100000", waiters: 100_000, ownKeys: true},
	}
	for _, s := range scenarios {
		for _, c := range crowds {
			of := sample{section: "scale", scenario: s.name, who: c.name}
			if err := b.try(ctx, of, c.ours, func() ([]metric, error) { return b.stand(ctx, s, c) }); err != nil {
				return err
			}
		}
	}
	for _, keys := range []int{10_000, 100_000, 1_000_000} {
		for _, c := range crowds {
			of := sample{section: "scale", scenario: "held-" + strconv.Itoa(keys), who: c.name}
			if err := b.try(ctx, of, c.ours, func() ([]metric, error) { return b.holdInTurn(ctx, keys, c) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// scaleWork limits everything but the waiting.
const scaleWork = 2 * time.Minute

// mostLooks is how many waiters of this library look at the same time. On a busy machine all of them
// may be under way when the connections break.
const mostLooks = 64

// stand lets a process wait, breaks all its connections, and then frees the locks.
func (b *bench) stand(ctx context.Context, s standing, c contender) ([]metric, error) {
	client := b.redis.client
	if err := client.FlushAll(ctx).Err(); err != nil {
		return nil, err
	}
	j := b.job("standing", c.name, newKey("scale"))
	j.Count, j.OwnKeys = s.waiters, s.ownKeys
	empty, err := b.redis.memory(ctx)
	if err != nil {
		return nil, err
	}
	free, err := b.occupy(ctx, s, j)
	if err != nil {
		return nil, fmt.Errorf("occupy: %w", err)
	}
	f, err := startFleet(ctx, 1, j)
	if err != nil {
		return nil, err
	}
	defer f.kill()
	memory, err := b.redis.memory(ctx)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	if _, err := f.one(ctx, order{Round: standUp}, scaleWork); err != nil {
		return nil, err
	}
	if err := b.until(ctx, func() (bool, error) { return b.allQueue(ctx, j) }); err != nil {
		return nil, fmt.Errorf("until all wait: %w", err)
	}
	live := time.Since(start)
	memoryThen, err := b.redis.memory(ctx)
	if err != nil {
		return nil, err
	}
	time.Sleep(b.scaled(time.Second)) // waiters look once more when their subscription is live
	still, err := b.watchRequests(ctx, b.scaled(10*time.Second))
	if err != nil {
		return nil, err
	}
	held, err := f.one(ctx, order{Round: measureStanding}, scaleWork)
	if err != nil {
		return nil, err
	}

	// Every connection breaks, and all waiters have to be reached again. Requests under way then
	// fail, so the subscriptions break last, since their loss makes waiters send requests.
	for _, kind := range []string{"normal", "pubsub"} {
		if err := client.ClientKillByFilter(ctx, "TYPE", kind, "SKIPME", "yes").Err(); err != nil {
			return nil, err
		}
	}
	broken, err := b.watchRequests(ctx, b.scaled(10*time.Second))
	if err != nil {
		return nil, err
	}

	before, err := b.redis.usage(ctx)
	if err != nil {
		return nil, err
	}
	freed := time.Now()
	if err := free(); err != nil {
		return nil, fmt.Errorf("free: %w", err)
	}
	replies, err := f.do(ctx, order{Round: allServed}, scaleWork)
	if err != nil {
		return nil, fmt.Errorf("until all were served: %w", err)
	}
	done := replies[0]
	if done.Fails > max(s.waiters/100, mostLooks) { // a break fails the calls that are under way
		return nil, fmt.Errorf("until all were served: %w", firstError(replies))
	}
	served := time.Since(freed)
	after, err := b.redis.usage(ctx)
	if err != nil {
		return nil, err
	}
	n := float64(s.waiters)
	m := []metric{
		{live.Seconds(), "until-all-wait-s"},
		{float64(held.Memory) / n, "bytes/waiter"},
		{float64(held.Goroutines) / n, "goroutines/waiter"},
		{float64(memoryThen-memory) / n, "server-bytes/waiter"},
		{still.requests, "requests/s"},
		{still.cpu, "server-cpu-%"},
		{broken.requests, "requests/s-after-break"},
		{float64(done.Fails), "failed-by-break"},
		{served.Seconds(), "until-all-served-s"},
		{float64(after.requests-before.requests) / n, "requests/served"},
		{float64(done.Goroutines), "goroutines-after"},
	}
	if s.ownKeys {
		m = append(m, metric{float64(memory-empty) / n, "server-bytes/lock"})
	}
	return m, nil
}

// occupy takes the locks to wait for, and returns a function that frees them.
func (b *bench) occupy(ctx context.Context, s standing, j job) (free func() error, err error) {
	client := goredis(j)
	l := redisv9.New(client)
	if !s.ownKeys {
		lease, err := locker.Lock(ctx, l, j.Key, scaleWork*3)
		if s.keepAlive > 0 {
			if err := lease.Unlock(ctx); err != nil {
				return nil, err
			}
			lease, err = locker.Lock(ctx, l, j.Key, s.keepAlive, locker.WithKeepAlive())
		}
		if err != nil {
			return nil, err
		}
		return func() error { return errors.Join(lease.Unlock(ctx), client.Close()) }, nil
	}
	leases := make([]*locker.Lease, s.waiters)
	err = inParallel(s.waiters, func(i int) (err error) {
		leases[i], err = locker.Lock(ctx, l, standingKey(j, i), scaleWork*3)
		return err
	})
	return func() error {
		return errors.Join(inParallel(s.waiters, func(i int) error { return leases[i].Unlock(ctx) }), client.Close())
	}, err
}

func standingKey(j job, i int) string {
	if !j.OwnKeys {
		return j.Key
	}
	return j.Key + "/" + strconv.Itoa(i)
}

// allQueue reports whether the server knows that the process waits, for each of the locks.
func (b *bench) allQueue(ctx context.Context, j job) (bool, error) {
	if j.OwnKeys { // a key for each lock, and one for each queue
		keys, err := b.redis.client.DBSize(ctx).Result()
		return keys >= int64(2*j.Count), err
	}
	entries, err := b.redis.client.ZCard(ctx, "!line:locker:{locker:"+j.Key+"}").Result()
	return entries > 0, err // one for the process: its other waiters stand in line behind the first
}

// until polls until the condition holds.
func (b *bench) until(ctx context.Context, is func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, scaleWork, errHangs)
	defer cancel()
	for {
		if ok, err := is(); ok || err != nil {
			return err
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// rates returns the requests a second, and the processor time of the server in percent.
type rates struct{ requests, cpu float64 }

func (b *bench) watchRequests(ctx context.Context, window time.Duration) (rates, error) {
	before, err := b.redis.usage(ctx)
	if err != nil {
		return rates{}, err
	}
	time.Sleep(window)
	after, err := b.redis.usage(ctx)
	return rates{
		requests: float64(after.requests-before.requests-1) / window.Seconds(),
		cpu:      100 * (after.cpu - before.cpu).Seconds() / window.Seconds(),
	}, err
}

// memory returns the number of bytes that the server's data and connections take.
func (s *redisServer) memory(ctx context.Context) (int64, error) {
	info, err := s.client.Info(ctx, "memory").Result()
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(field(info, "used_memory:"), 10, 64)
}

// holdInTurn lets a process take and release that many locks of different keys, 32 at a time.
func (b *bench) holdInTurn(ctx context.Context, keys int, c contender) ([]metric, error) {
	if err := b.redis.client.FlushAll(ctx).Err(); err != nil {
		return nil, err
	}
	j := b.job("in turn", c.name, newKey("scale"))
	j.Count = int(float64(keys) * b.scale)
	f, err := startFleet(ctx, 1, j)
	if err != nil {
		return nil, err
	}
	defer f.kill()
	before, err := b.redis.usage(ctx)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	done, err := f.one(ctx, order{}, scaleWork)
	if err != nil {
		return nil, err
	}
	took := time.Since(start)
	after, err := b.redis.usage(ctx)
	if err != nil {
		return nil, err
	}
	left, err := b.redis.client.DBSize(ctx).Result()
	return []metric{
		{float64(j.Count) / took.Seconds(), "cycles/s"},
		{float64((after.cpu - before.cpu).Microseconds()) / float64(j.Count), "server-cpu-us/cycle"},
		{float64(done.Memory), "bytes-after"},
		{float64(done.Goroutines), "goroutines-after"},
		{float64(left), "server-keys-after"},
	}, err
}

// The orders to a process that waits, in order.Round.
const (
	standUp         = iota // begin to wait
	measureStanding        // measure the cost of waiting
	allServed              // wait until all have had their locks
)

// waiting is a process whose goroutines wait for locks.
type waiting struct {
	job
	lock     lock
	all      sync.WaitGroup
	errs     chan error
	memory   int64
	routines int
}

// newCrowd makes a process whose connections are open, since they are not part of a waiter's cost.
func newCrowd(j job) (*waiting, error) {
	l, err := open(crowds, j)
	if err != nil {
		return nil, err
	}
	w := &waiting{job: j, lock: l, errs: make(chan error, j.Count)}
	if err := openConnections(l, j.Key); err != nil {
		return nil, err
	}
	w.memory, w.routines = used(), runtime.NumGoroutine()
	return w, nil
}

func newWaiting(j job) (worker, error) { return newCrowd(j) }

func (w *waiting) run(ctx context.Context, o order) reply {
	switch o.Round {
	case standUp:
		for i := range w.Count {
			w.all.Go(func() { w.errs <- cycle(ctx, w.lock, standingKey(w.job, i)) })
		}
		return reply{}
	case allServed:
		w.all.Wait()
	}
	r := reply{Memory: used() - w.memory, Goroutines: runtime.NumGoroutine() - w.routines}
	for range len(w.errs) {
		if err := <-w.errs; err != nil {
			r.Fails++
			r.Error = err.Error()
		}
	}
	return r
}

// inTurn is a process that takes many locks, each once.
type inTurn struct{ *waiting }

func newInTurn(j job) (worker, error) {
	w, err := newCrowd(j)
	return inTurn{w}, err
}

func (w inTurn) run(ctx context.Context, _ order) reply {
	err := inParallel(w.Count, func(i int) error { return cycle(ctx, w.lock, w.Key+"/"+strconv.Itoa(i)) })
	r := reply{Memory: used() - w.memory, Goroutines: runtime.NumGoroutine() - w.routines}
	if err != nil {
		r.Fails, r.Error = 1, err.Error()
	}
	return r
}

func cycle(ctx context.Context, l lock, key string) error {
	unlock, err := l(ctx, key)
	if err != nil {
		return err
	}
	return unlock()
}
