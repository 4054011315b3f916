// Package semaphore lets up to N holders share a name: at most three imports at a time, in the whole
// fleet, on any [locker.Locker].
//
//	imports := semaphore.New(l, "imports", 3)
//	err := imports.Do(ctx, 30*time.Second, runImport)
//
// A semaphore has N permits. Each of them is a lock of the Locker, so it expires when its holder
// dies, and its lease is a lock's: it has a deadline, can be kept alive, and reports its loss.
//
//   - S1 Up to N tokens hold a permit at a time: never more, and N can.
//   - S2 A permit belongs to its token. Only that token extends or releases it, and an Acquire by it
//     on the same Locker is an Extend.
//   - S3 Each permit ends with its own ttl or its release, whatever becomes of the others.
//   - S4 Waiters get permits in the order in which they called Wait.
//   - S5 Whichever permit becomes free serves the next waiter.
//   - S6 A waiter that has left leaves nothing behind. One that has died delays the others by no more
//     than its ttl, or 5 seconds if that is longer.
//   - S7 Where a name is used with different N, there are never more holders than the largest of them.
//   - S8 The fencing numbers of one permit grow.
//
// RunSemaphore of package conformance checks these rules. The next sections describe S4, S7 and S8.
//
// # Order
//
// On a Locker that keeps a queue, a [locker.Waiter], callers of Acquire and Do are served first
// come, first served, across all processes. The queue is that of one more lock, which the first
// waiter holds until it has a permit. So an Acquire makes two requests more than the acquisition of
// a lock, and Acquires of the same semaphore take their permits one after the other. If the first
// waiter dies, the others wait until its lock ends, for up to 5 seconds.
//
// Elsewhere, each process has a queue of its own for every Semaphore, whose first waiter competes
// with those of other processes.
//
// The first waiter is woken by a release if the Locker is a [locker.Watcher]. It tries all permits
// about once a second in any case, since a permit that expires wakes no waiter. On other Lockers it
// tries them as often as [locker.Lock] polls. TryAcquire and TryDo do not queue: they may take a
// permit before those that wait in other processes. They make up to N requests.
//
// Give New the backend's Locker rather than one of package cohort. With cohort.WithLinger a permit
// that is released wakes no waiter until it lingers no more.
//
// # Names
//
// The locks of a semaphore named "imports" are "imports/1" to "imports/N", and "imports/queue" for
// its waiters. No other lock may have one of these names. If a name has more than 1,000 bytes, its
// end is replaced by a hash.
//
// # Another N
//
// Processes may use the same name with different N, for instance during a deployment. There are
// never more holders than the largest N in use. When N shrinks, those that hold one of the permits
// that are no longer used keep it until they release it. A waiter with the smaller N at the head of
// the queue waits for its own permits, and those behind it with the larger one wait with it.
//
// # Fencing
//
// Fencing numbers are those of a permit, not of the semaphore. They order the holders of one permit,
// one after the other; they say nothing about holders of two permits, who may work at the same time.
// So a resource can refuse smaller numbers than it has seen if it belongs to one permit, whose
// number is [Semaphore.Permit]: the working directory or the license of that permit, for example.
package semaphore

import (
	"context"
	"fmt"
	"time"

	"github.com/golockers/locker"
)

// Semaphore limits the holders of a name to N. It is safe for concurrent use.
type Semaphore struct {
	permits *Locker
	locker  locker.Locker // permits, observed if the caller's Locker is
	name    string
}

// New returns the semaphore of that name, of which n may hold a permit at a time. A name is 1 to
// 1,024 arbitrary bytes. New makes no request. Programs that use the same name on the same backend share it. If l is the result of
// [locker.Observed], its observer gets the events of the permits under the semaphore's name.
//
// If l is nil or n is less than 1, every operation fails.
func New(l locker.Locker, name string, n int) *Semaphore {
	s := &Semaphore{permits: NewLocker(l, n), name: name}
	s.locker = s.permits
	if o, ok := l.(observed); ok {
		s.locker = o.Around(s.permits)
	}
	return s
}

// check returns what is wrong with the arguments of New.
func (s *Semaphore) check(op string) error {
	if err := s.permits.check(); err != nil {
		return fmt.Errorf("semaphore: %s %q: %w", op, s.name, err)
	}
	return nil
}

// observed has the additional methods of a Locker from [locker.Observed].
type observed interface {
	Behind() locker.Locker                // what is observed
	Around(l locker.Locker) locker.Locker // l, observed in place of it
}

// Acquire waits for a permit for as long as ctx allows, as [locker.Lock] waits for a lock, and
// returns its lease. The options and the errors are those of Lock. The key of the lease is the
// semaphore's name. With [locker.WithToken], use a token for one permit only. [locker.WithBackoff]
// has no effect. [locker.WithMinHold] with more than ttl takes up to N requests more.
//
// If ctx carries a lease of this Semaphore (see [locker.FromContext]), the error is
// [locker.ErrDeadlock]: if all holders did that, each would wait for the others.
func (s *Semaphore) Acquire(ctx context.Context, ttl time.Duration, opts ...locker.Option) (*locker.Lease, error) {
	if err := s.check("acquire"); err != nil {
		return nil, err
	}
	return locker.Lock(ctx, s.locker, s.name, ttl, opts...)
}

// TryAcquire takes a permit if one is free. Otherwise the error is [locker.ErrHeld]. It tries each
// permit, as [locker.TryLock] tries a lock, and has its options and errors.
func (s *Semaphore) TryAcquire(ctx context.Context, ttl time.Duration, opts ...locker.Option) (*locker.Lease, error) {
	if err := s.check("try acquire"); err != nil {
		return nil, err
	}
	return locker.TryLock(ctx, s.locker, s.name, ttl, opts...)
}

// Do runs fn while holding a permit, for which it waits as Acquire does. Everything else is as in
// [locker.Do]: the permit is kept alive, fn's context ends when it is lost, and it is released
// however fn ends.
func (s *Semaphore) Do(ctx context.Context, ttl time.Duration, fn func(context.Context) error,
	opts ...locker.Option) error {
	if err := s.check("do"); err != nil {
		return err
	}
	return locker.Do(ctx, s.locker, s.name, ttl, fn, opts...)
}

// TryDo runs fn as Do does if a permit is free. If none is, it returns (false, nil). See
// [locker.TryDo].
func (s *Semaphore) TryDo(ctx context.Context, ttl time.Duration, fn func(context.Context) error,
	opts ...locker.Option) (ran bool, err error) {
	if err := s.check("try do"); err != nil {
		return false, err
	}
	return locker.TryDo(ctx, s.locker, s.name, ttl, fn, opts...)
}

// Permit returns which of the permits lease holds, from 1 to N, or 0 if it is not a lease of this
// Semaphore or has been released.
func (s *Semaphore) Permit(lease *locker.Lease) int {
	if lease.Key() != s.name {
		return 0
	}
	return s.permits.Permit(s.name, lease.Token())
}
