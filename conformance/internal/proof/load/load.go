// Package load uses locks as a busy service does, and compares the beliefs of its callers. Packages
// clocks, disturb and soak use it to find the effects of a disturbance.
package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker"
)

// Config describes a load.
type Config struct {
	Lockers []locker.Locker // of different clients of one backend
	Workers int             // for each Locker
	Keys    []string
	TTL     time.Duration
	Hold    time.Duration // the longest time that a lock is held
	Wait    time.Duration // the longest time that a caller waits
	Vanish  bool          // some holders do not unlock
	Fence   bool          // some holders mint fencing numbers, where there are any
}

// A Belief is the time in which a caller believed that it held a lock. The server had granted the
// lock between Asked and From.
type Belief struct {
	Key, Token         string
	Asked, From, Until time.Time
}

// An Overlap is two beliefs that contradict each other.
type Overlap struct{ First, Second Belief }

// Load is a running load.
type Load struct {
	config Config
	stop   context.CancelFunc
	ended  sync.WaitGroup

	mu      sync.Mutex
	beliefs []Belief // the latest beliefs
	found   map[[2]string]Overlap
	fences  map[string]uint64 // by key
	errs    map[string]int

	leases, lost, gaveUp, errors atomic.Int64
	fenced, backward             atomic.Int64
	longest, overrun             atomic.Int64
}

// Start begins a load. Its callers go on until Stop.
func Start(c Config) *Load {
	ctx, stop := context.WithCancel(context.Background())
	l := &Load{config: c, stop: stop, found: make(map[[2]string]Overlap), fences: make(map[string]uint64),
		errs: make(map[string]int)}
	for _, lock := range c.Lockers {
		for range c.Workers {
			l.ended.Go(func() {
				for ctx.Err() == nil {
					l.turn(ctx, lock)
				}
			})
		}
	}
	return l
}

// Leases returns how many locks have been taken so far.
func (l *Load) Leases() int64 { return l.leases.Load() }

// turn takes a lock, holds it for a while, and releases it.
func (l *Load) turn(ctx context.Context, lock locker.Locker) {
	c := l.config
	key := c.Keys[rand.N(len(c.Keys))]
	wait := c.Wait/2 + rand.N(c.Wait/2+1)
	if rand.N(4) == 0 {
		wait = rand.N(wait) // leaves the queue sooner
	}
	waitCtx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	var opts []locker.Option
	keep := rand.N(2) == 0
	if keep {
		opts = append(opts, locker.WithKeepAlive())
	}
	begin := time.Now()
	lease, err := locker.Lock(waitCtx, lock, key, c.TTL, opts...)
	took := time.Since(begin)
	raise(&l.overrun, took-wait)
	if err != nil {
		l.failed(ctx, err)
		return
	}
	raise(&l.longest, took)
	l.leases.Add(1)
	belief := Belief{Key: key, Token: lease.Token(), Asked: lease.Deadline().Add(-c.TTL), From: time.Now()}
	if c.Fence && rand.N(4) == 0 {
		l.fence(ctx, lease)
	}
	timer := time.NewTimer(rand.N(c.Hold + 1))
	select {
	case <-timer.C:
	case <-lease.Lost():
		timer.Stop()
	}
	belief.Until = earlier(time.Now(), lease.Deadline())
	l.note(belief)
	if c.Vanish && !keep && rand.N(100) == 0 {
		return
	}
	l.unlock(lease)
}

// unlock repeats Unlock until the lock is certainly released, or its ttl has passed.
func (l *Load) unlock(lease *locker.Lease) {
	ctx, cancel := context.WithTimeout(context.Background(), l.config.TTL)
	defer cancel()
	for {
		err := lease.Unlock(ctx)
		if errors.Is(err, locker.ErrNotHeld) {
			l.lost.Add(1)
		}
		if err == nil || errors.Is(err, locker.ErrNotHeld) {
			return
		}
		l.failed(ctx, err)
		if rest(ctx, 20*time.Millisecond) != nil {
			return
		}
	}
}

// fence mints a number, which must be greater than all numbers that were minted before the call.
func (l *Load) fence(ctx context.Context, lease *locker.Lease) {
	l.mu.Lock()
	before := l.fences[lease.Key()]
	l.mu.Unlock()
	n, err := lease.Fence(ctx)
	switch {
	case errors.Is(err, errors.ErrUnsupported), errors.Is(err, locker.ErrNotHeld):
		return
	case err != nil:
		l.failed(ctx, err)
		return
	}
	l.fenced.Add(1)
	if n <= before {
		l.backward.Add(1)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fences[lease.Key()] = max(l.fences[lease.Key()], n)
}

// manyBeliefs is how many beliefs are compared at a time. Beliefs much older than any ttl are then
// forgotten.
const manyBeliefs = 10_000

// note adds a belief that has ended.
func (l *Load) note(b Belief) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.beliefs = append(l.beliefs, b); len(l.beliefs) == cap(l.beliefs) && len(l.beliefs) >= manyBeliefs {
		l.compareLocked()
		old := time.Now().Add(-2 * l.config.TTL)
		recent := slices.DeleteFunc(l.beliefs, func(b Belief) bool { return b.Until.Before(old) })
		l.beliefs = append(make([]Belief, 0, len(recent)+manyBeliefs), recent...)
	}
}

func (l *Load) compareLocked() {
	for _, o := range overlaps(l.beliefs) {
		l.found[[2]string{o.First.Token, o.Second.Token}] = o
	}
}

func (l *Load) failed(ctx context.Context, err error) {
	switch {
	case errors.Is(err, locker.ErrHeld), ctx.Err() != nil:
		l.gaveUp.Add(1)
		return
	case errors.Is(err, context.DeadlineExceeded):
	default: // do not retry as fast as a backend that is down can refuse
		_ = rest(ctx, 5*time.Millisecond)
	}
	l.errors.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.errs) < 100 {
		l.errs[err.Error()]++
	}
}

func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func raise(most *atomic.Int64, d time.Duration) {
	for {
		old := most.Load()
		if int64(d) <= old || most.CompareAndSwap(old, int64(d)) {
			return
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// Report contains the results of a load.
type Report struct {
	Leases, Lost, GaveUp, Errors int64
	Fences, Backward             int64 // all numbers, and those not greater than an earlier one
	Overlaps                     []Overlap
	LongestWait                  time.Duration  // of a caller that was served
	Overrun                      time.Duration  // how long after its context's end a caller returned
	Messages                     map[string]int // of some of the errors
}

// patience is how long callers may take to return. Only callers that hang take longer.
const patience = 2 * time.Minute

// Stop ends the load and waits for all its callers. If one does not return, the test fails.
func (l *Load) Stop(tb testing.TB) Report {
	tb.Helper()
	report, err := l.End(patience)
	if err != nil {
		tb.Fatal(err)
	}
	return report
}

// End is Stop with the time that callers may take to return, and returns an error if one does not.
func (l *Load) End(patience time.Duration) (Report, error) {
	l.stop()
	returned := make(chan struct{})
	go func() {
		l.ended.Wait()
		close(returned)
	}()
	select {
	case <-returned:
	case <-time.After(patience):
		return Report{}, fmt.Errorf("a caller has not returned after %v", patience)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.compareLocked()
	return Report{
		Leases: l.leases.Load(), Lost: l.lost.Load(), GaveUp: l.gaveUp.Load(), Errors: l.errors.Load(),
		Fences: l.fenced.Load(), Backward: l.backward.Load(),
		Overlaps: slices.Collect(maps.Values(l.found)), LongestWait: time.Duration(l.longest.Load()),
		Overrun: time.Duration(l.overrun.Load()), Messages: l.errs,
	}, nil
}

// overlaps returns the pairs of beliefs that contradict each other, each belief with the next one.
func overlaps(all []Belief) (found []Overlap) {
	all = slices.SortedFunc(slices.Values(all), func(a, b Belief) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), a.From.Compare(b.From))
	})
	var last Belief // the one of the key that lasts longest
	for _, b := range all {
		if b.Key == last.Key && b.Token != last.Token && b.From.Before(last.Until) && b.From.Before(b.Until) {
			found = append(found, Overlap{last, b})
		}
		if b.Key != last.Key || b.Until.After(last.Until) {
			last = b
		}
	}
	return found
}

// Serves checks that every Locker gets every lock, and returns the time until the last lock.
func Serves(tb testing.TB, lockers []locker.Locker, keys []string, ttl time.Duration) time.Duration {
	tb.Helper()
	took, err := Served(lockers, keys, ttl, patience)
	if err != nil {
		tb.Error(err)
	}
	return took
}

// Served is Serves with the time that this may take, and returns an error if it takes longer.
func Served(lockers []locker.Locker, keys []string, ttl, patience time.Duration) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	begin := time.Now()
	errs := make(chan error, len(lockers)*len(keys))
	for _, lock := range lockers {
		for _, key := range keys {
			go func() {
				lease, err := locker.Lock(ctx, lock, key, ttl, locker.WithRetry())
				if err == nil {
					err = lease.Unlock(ctx)
				}
				errs <- err
			}()
		}
	}
	for range cap(errs) {
		if e := <-errs; e != nil && err == nil {
			err = fmt.Errorf("not served after the disturbance: %w", e)
		}
	}
	return time.Since(begin), err
}
