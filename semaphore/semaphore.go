// Package semaphore lets up to N holders share a name on any [locker.Locker], for instance to run
// at most three imports at a time in the whole fleet.
//
//	imports := semaphore.New(l, "imports", 3)
//	err := imports.Do(ctx, 30*time.Second, runImport)
//
// A semaphore has N permits. Each permit is a lock of the Locker, so it expires when its holder
// dies. Its lease is a [locker.Lease]: it has a deadline, can be kept alive, and reports its loss.
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
// RunSemaphore of package conformance checks these rules. The sections below explain S4, S7 and S8.
//
// # Order
//
// Packages redisv9 and rueidis keep one queue for all permits of a semaphore, on a single server
// and with Sentinel, if N is no more than 64. Callers of Acquire and Do are served first come,
// first served, across all processes. A release gives the permit to the next waiter. Each operation
// takes as many requests as that of a lock, whatever N is. TryAcquire and TryDo are refused while
// others wait. The first waiter looks at the permits once a second, in case one of them was
// released by a program that does not know the queue. The first waiter of each other process does
// so every four to five seconds, in case that one has died.
//
// On any other [locker.Waiter], which is a Locker that keeps a queue for each lock, callers of
// Acquire and Do are served in that order as well. The queue is that of an additional lock, which
// the first waiter holds until it has a permit. So an Acquire makes two more requests than the
// acquisition of a lock, and Acquires of the same semaphore take their permits one after the other.
// If the first waiter dies, the others wait until its lock ends, for up to 5 seconds. The same
// holds for a Locker that wraps one of redisv9 or rueidis, unless [locker.Observed] returned it. Do
// not use both for one semaphore: there are never more than N holders, but the callers do not share
// a queue.
//
// On other Lockers, each Semaphore of each process has its own queue, whose first waiter competes
// with those of other processes.
//
// Where the permits have no queue of their own, a release wakes the first waiter on a
// [locker.Watcher]. That waiter also tries all permits about once a second, since a permit that
// expires wakes no waiter. On other Lockers it tries them as often as [locker.Lock] polls.
// TryAcquire and TryDo do not queue there: they may take a permit before waiters in other
// processes. They make up to N requests.
//
// Give New the backend's Locker rather than one of package cohort. With cohort.WithLinger a permit
// that is released wakes no waiter until it lingers no more.
//
// # Names
//
// The locks of a semaphore named "imports" are "imports/1" to "imports/N", and "imports/queue" for
// its waiters. Do not use these names for other locks. If a name is longer than 1,000 bytes, its
// end is replaced by a hash.
//
// # Changing N
//
// Processes may use the same name with different N, for instance during a deployment. There are
// never more holders than the largest N in use. When N is reduced, a holder of a permit that is no
// longer used keeps it until it releases it. If a waiter with the smaller N is at the head of the
// queue, it waits for one of its own permits, and waiters with the larger N wait behind it.
//
// # Fencing
//
// Fencing numbers belong to a permit, not to the semaphore. They order the successive holders of
// one permit. They do not order the holders of different permits, which may work at the same time.
// So a resource can refuse numbers that are smaller than one it has seen only if it belongs to one
// permit, such as a working directory or a license. [Semaphore.Permit] returns the number of the
// permit.
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

// check returns an error if the arguments of New were invalid.
func (s *Semaphore) check(op string) error {
	if err := s.permits.check(); err != nil {
		return fmt.Errorf("semaphore: %s %q: %w", op, s.name, err)
	}
	return nil
}

// observed is implemented by the Lockers that [locker.Observed] returns.
type observed interface {
	Behind() locker.Locker                // the observed Locker
	Around(l locker.Locker) locker.Locker // l with the same observer
}

// Acquire waits for a permit for as long as ctx allows, as [locker.Lock] waits for a lock, and
// returns its lease. The options and errors are those of Lock. The key of the lease is the
// semaphore's name. With [locker.WithToken], use each token for only one permit.
// [locker.WithBackoff] has no effect. [locker.WithMinHold] with more than ttl takes up to N more
// requests.
//
// If ctx carries a lease of this Semaphore (see [locker.FromContext]), Acquire returns
// [locker.ErrDeadlock], since holders that wait for a second permit could block each other forever.
func (s *Semaphore) Acquire(ctx context.Context, ttl time.Duration, opts ...locker.Option) (*locker.Lease, error) {
	if err := s.check("acquire"); err != nil {
		return nil, err
	}
	return locker.Lock(ctx, s.locker, s.name, ttl, opts...)
}

// TryAcquire takes a permit if one is free. Otherwise it returns [locker.ErrHeld]. It tries the
// permits as [locker.TryLock] tries a lock, and has the same options and errors.
func (s *Semaphore) TryAcquire(ctx context.Context, ttl time.Duration, opts ...locker.Option) (*locker.Lease, error) {
	if err := s.check("try acquire"); err != nil {
		return nil, err
	}
	return locker.TryLock(ctx, s.locker, s.name, ttl, opts...)
}

// Do waits for a permit as Acquire does, and runs fn while it holds the permit. Everything else is
// as in [locker.Do]: the permit is kept alive, fn's context ends when the permit is lost, and the
// permit is released however fn ends.
func (s *Semaphore) Do(ctx context.Context, ttl time.Duration, fn func(context.Context) error,
	opts ...locker.Option) error {
	if err := s.check("do"); err != nil {
		return err
	}
	return locker.Do(ctx, s.locker, s.name, ttl, fn, opts...)
}

// TryDo runs fn as Do does if a permit is free. Otherwise it returns (false, nil). See
// [locker.TryDo].
func (s *Semaphore) TryDo(ctx context.Context, ttl time.Duration, fn func(context.Context) error,
	opts ...locker.Option) (ran bool, err error) {
	if err := s.check("try do"); err != nil {
		return false, err
	}
	return locker.TryDo(ctx, s.locker, s.name, ttl, fn, opts...)
}

// Permit returns the number of the permit that lease holds, from 1 to N. It returns 0 if lease is
// not a lease of this Semaphore or has been released.
func (s *Semaphore) Permit(lease *locker.Lease) int {
	if lease.Key() != s.name {
		return 0
	}
	return s.permits.Permit(s.name, lease.Token())
}
