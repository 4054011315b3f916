// Package memory is a locker.Locker inside one process: the reference for the contract, and the
// one to start with, since it needs no server.
//
//	l := memory.New()
//	lease, err := locker.Lock(ctx, l, "invoice/42", 30*time.Second)
//
// It keeps a queue for every lock, first come, first served (locker.Waiter), wakes watchers
// (locker.Watcher) and mints fencing numbers (locker.Fencer). It has no background goroutine: later
// operations on the same Locker, whatever their key, remove expired locks a few at a time. A timer
// runs only for a lock that others wait for. Expiry is by the monotonic clock, to the nanosecond,
// so setting the machine's clock changes nothing, and the package works in a testing/synctest
// bubble.
package memory

import (
	"context"
	"fmt"
	"hash/maphash"
	"math"
	"sync/atomic"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/misuse"
	"github.com/golockers/locker/internal/waithook"
)

var (
	_ locker.Watcher = (*Locker)(nil)
	_ locker.Waiter  = (*Locker)(nil)
	_ locker.Fencer  = (*Locker)(nil)

	_ locker.Inspector = (*Locker)(nil)
	_ locker.Lister    = (*Locker)(nil)
)

// Locker holds locks in this process's memory. The zero value is ready to use; each Locker is a
// backend of its own. It is safe for concurrent use and must not be copied. The operations of a
// nil Locker fail.
type Locker struct {
	shards [shardCount]shard
	swept  atomic.Uint32 // counts sweeps; the shard that is next is this modulo shardCount
	owners owners
	fence  atomic.Int64 // the last fencing number, for all keys

	windows windows // counts for package window
}

// New returns a Locker that holds no locks.
func New() *Locker { return new(Locker) }

// Acquire takes the lock of key for token, for ttl, if it is free. It reports false if another
// token holds it; a cohort that only keeps it for its next caller is asked to give it up. A lock
// that others wait for passes to the next in the queue at once, so Acquire never overtakes a
// queue. When token holds the lock already, Acquire is Extend.
//
// An error means that nothing happened: ctx was done, or ttl is not positive.
func (l *Locker) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if err := l.check(ctx, ttl); err != nil {
		return false, err
	}
	for range maxAsked {
		holder := l.take(key, token, ttl)
		if holder == "" {
			return true, nil
		}
		if free, err := l.owners.ask(ctx, key, holder); !free {
			return false, err
		}
	}
	return l.take(key, token, ttl) == "", nil
}

// take returns the token that holds the lock instead, or "" if the lock was taken.
func (l *Locker) take(key, token string, ttl time.Duration) (holder string) {
	s := l.lock(key)
	defer l.unlock(s)
	e, ok := s.take(key, token, ttl, clock())
	if ok {
		return ""
	}
	return e.token
}

// Extend sets the remaining time of the lock of key to ttl, longer or shorter than before, if token
// holds it. It reports false if token does not hold the lock.
//
// An error means that nothing happened: ctx was done, or ttl is not positive.
func (l *Locker) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if err := l.check(ctx, ttl); err != nil {
		return false, err
	}
	s := l.lock(key)
	defer l.unlock(s)
	now := clock()
	e := s.find(key, now)
	if !e.heldBy(token, now) {
		return false, nil
	}
	s.hold(e, token, ttl, now)
	return true, nil
}

// Release frees the lock of key if token holds it. The next in the queue then has it at once, for
// its full ttl. Release reports false if token does not hold the lock.
//
// An error means that nothing happened: ctx was done.
func (l *Locker) Release(ctx context.Context, key, token string) (bool, error) {
	if err := l.check(ctx, 1); err != nil {
		return false, err
	}
	s := l.lock(key)
	defer l.unlock(s)
	now := clock()
	e := s.find(key, now)
	if !e.heldBy(token, now) {
		return false, nil
	}
	s.release(e, now)
	return true, nil
}

// Wait takes the lock of key for token as Acquire does if it is free or token itself holds it, and
// otherwise waits in the queue. The lock passes to the next in the queue when it is released or
// expires; the ttl counts from that moment, and deadline is that moment plus ttl. Calls that wait
// at the same time each have a turn of their own, even with the same token.
//
// If ctx ends while Wait is in the queue, the error wraps both ctx's error and locker.ErrHeld, and
// a lock that was granted just then has been passed on. Other errors mean that nothing happened:
// ctx was done before, or ttl is not positive.
func (l *Locker) Wait(ctx context.Context, key, token string, ttl time.Duration) (deadline time.Time, err error) {
	if err := l.check(ctx, ttl); err != nil {
		return time.Time{}, err
	}
	s, w, deadline := l.takeOrJoin(key, token, ttl)
	if w == nil {
		return deadline, nil
	}
	waithook.Call(ctx)
	select {
	case <-w.granted:
		if ctx.Err() == nil {
			now, t := reading()
			return t.Add(w.expires - now), nil
		}
	case <-ctx.Done():
	}
	s.mu.Lock()
	s.leave(key, w, clock())
	s.mu.Unlock()
	return time.Time{}, fmt.Errorf("%w: %w", ctx.Err(), locker.ErrHeld)
}

// takeOrJoin takes the lock until the deadline, or else returns a waiter in its queue.
func (l *Locker) takeOrJoin(key, token string, ttl time.Duration) (*shard, *waiter, time.Time) {
	s := l.lock(key)
	defer l.unlock(s)
	now, t := reading()
	e, ok := s.take(key, token, ttl, now)
	if ok {
		return s, nil, t.Add(e.expires - now)
	}
	w := &waiter{token: token, ttl: ttl, owners: &l.owners, granted: make(chan struct{})}
	s.join(e, w, now)
	l.owners.tell(key, e.token)
	return s, w, time.Time{}
}

// Watch returns a channel, with room for one value, that gets one whenever the lock of key is
// released, even if it passes to the next in the queue; an expiry is signaled when an operation
// on the Locker happens to notice it. The channel is never closed. When ctx ends the Locker
// forgets it.
//
// An error means that ctx was done.
func (l *Locker) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	if err := l.check(ctx, 1); err != nil {
		return nil, err
	}
	w := &watcher{c: make(chan struct{}, 1)}
	s := l.lock(key)
	e := s.find(key, clock())
	if e == nil {
		e = s.add(key)
	}
	e.watch(w)
	l.unlock(s)
	context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		e.unwatch(w)
		s.tidy(e, clock())
	})
	return w.c, nil
}

// Fence returns a number greater than all that this Locker has minted before, for any key. ok is
// false if token does not hold the lock. A number is at least the process's wall clock in
// microseconds since 1970, so a resource that outlives the process can compare it with those of
// the next process, unless the clock was set back.
//
// An error means that nothing happened: ctx was done.
func (l *Locker) Fence(ctx context.Context, key, token string) (fence uint64, ok bool, err error) {
	if err := l.check(ctx, 1); err != nil {
		return 0, false, err
	}
	s := l.lock(key)
	defer l.unlock(s)
	now := clock()
	if !s.find(key, now).heldBy(token, now) {
		return 0, false, nil
	}
	for {
		last := l.fence.Load()
		next := max(last+1, time.Now().UnixMicro())
		if l.fence.CompareAndSwap(last, next) { // other shards mint as well
			return uint64(next), true, nil
		}
	}
}

func (l *Locker) check(ctx context.Context, ttl time.Duration) error {
	if l == nil {
		return errNil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if ttl <= 0 {
		return fmt.Errorf("%w: %v", locker.ErrInvalidTTL, ttl)
	}
	return nil
}

var errNil = misuse.New("memory: nil Locker")

// lock locks the shard of key.
func (l *Locker) lock(key string) *shard {
	s := &l.shards[maphash.String(seed, key)%shardCount]
	s.mu.Lock()
	return s
}

// unlock ends an operation on s. One in sweepEvery sweeps a part of a shard, all shards in turn, so
// that operations on any key remove what has expired under every other.
func (l *Locker) unlock(s *shard) {
	s.ops++
	due := s.ops%sweepEvery == 0
	s.mu.Unlock()
	if due {
		l.shards[l.swept.Add(1)%shardCount].sweep()
	}
}

var (
	seed  = maphash.MakeSeed()
	start = time.Now()
)

// clock reads the monotonic clock. Times are durations since start, which are smaller and faster
// than a time.Time. They may be negative, since a synctest bubble has a clock of its own.
func clock() time.Duration { return time.Since(start) }

// reading returns what clock does, and the same time as a time.Time.
func reading() (time.Duration, time.Time) {
	t := time.Now()
	if t == t.Round(0) { // no monotonic reading: a bubble's, whose clock stands still meanwhile
		return clock(), t
	}
	return t.Sub(start), t
}

// after returns the time d after now, or the latest possible one.
func after(now, d time.Duration) time.Duration {
	if sum := now + d; sum >= now {
		return sum
	}
	return math.MaxInt64
}
