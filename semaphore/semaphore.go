// Package semaphore lets up to N holders share a name on any [locker.Locker]. For instance, a fleet
// can limit itself to three imports at a time:
//
//	imports := semaphore.New(l, "imports", 3)
//	err := imports.Do(ctx, 30*time.Second, runImport)
//
// A semaphore has N permits. Each permit is a lock of the Locker, so it expires if its holder dies.
// A caller that acquires a permit gets a [locker.Lease], which has a deadline, can be kept alive,
// and reports its loss. These rules hold:
//
//   - S1 At most N tokens hold a permit at the same time, and N tokens can.
//   - S2 A permit belongs to its token. Only that token extends or releases it. If that token calls
//     Acquire again on the same Locker, the call is an Extend.
//   - S3 Each permit ends when its own ttl has passed or it is released, whatever happens to the
//     others.
//   - S4 Waiters get permits in the order in which they called Wait.
//   - S5 The next waiter gets whichever permit becomes free first.
//   - S6 A waiter that gives up leaves nothing behind. One that dies delays the others by no more
//     than its ttl, or 5 seconds if that is longer.
//   - S7 If processes use a name with different N, there are never more holders than the largest N.
//   - S8 Each permit's fencing numbers grow.
//
// RunSemaphore of package conformance checks these rules. The sections below explain S4, S7 and S8.
//
// # Order
//
// S4 depends on the Locker that New was given. There are three cases.
//
// Packages redisv9 and rueidis keep one queue for all permits of a semaphore, if the client uses a
// single server or Sentinel and N is no more than 64. Callers of Acquire and Do are served first
// come, first served, across all processes. A release hands the permit to the next waiter.
// TryAcquire and TryDo are refused while others wait. Whatever N is, each operation takes as many
// requests as the same operation on a lock. Once a second the first waiter also looks at the
// permits, since [locker.Break], or a program that does not know the queue, may have released one of
// them. In every other process, the waiter that came first looks every four to five seconds, since
// the first waiter may have died.
//
// Any other [locker.Waiter] keeps a queue for each lock. On such a Locker, callers of Acquire and
// Do are also served first come, first served, across all processes. They use the queue of an
// additional lock, which the first waiter holds until it has a permit. So an Acquire makes two more
// requests than the acquisition of a lock, and Acquires of the same semaphore take their permits
// one after the other. If the first waiter dies, the others wait until its lock expires, for up to
// 5 seconds. A Locker that wraps one of redisv9 or rueidis works in this way too, unless
// [locker.Observed] returned it. Do not use a semaphore both through such a wrapper and without it:
// there are never more than N holders, but the callers do not share a queue.
//
// On all other Lockers, each Semaphore of each process has its own queue, and the first waiter of
// each queue competes with those of the others.
//
// In the second and third cases, TryAcquire and TryDo do not queue: they may take a permit before
// waiters of other processes do. They make up to N requests. On a [locker.Watcher] a release wakes
// the first waiter. That waiter also tries all permits about once a second, since the expiry of a
// permit wakes no waiter. On a Locker that is not a Watcher, it tries them as often as
// [locker.Lock] polls.
//
// Pass the backend's Locker to New rather than one of package cohort. With cohort.WithLinger, a
// permit that was released lingers, and until it stops lingering it wakes no waiter.
//
// # Names
//
// The locks of a semaphore named "imports" are "imports/1" to "imports/N", and "imports/queue" if
// its waiters use the queue of an additional lock. Do not use these names for other locks. If a
// name is longer than 1,000 bytes, its end is replaced by a hash.
//
// # Changing N
//
// Processes may use the same name with different N, for instance during a deployment. There are
// never more holders than the largest N in use. If N is reduced, a holder whose permit has a number
// above the new N keeps that permit until it releases it. If the first waiter in the queue has a
// smaller N, it waits for one of its own permits, and waiters with a larger N wait behind it, even
// if one of theirs is free.
//
// # Fencing
//
// Fencing numbers belong to a permit, not to the semaphore. They order the successive holders of
// one permit. They do not order the holders of different permits, which may work at the same time.
// So a resource can use them to refuse late requests only if it belongs to one permit, as a working
// directory or a license may. [Semaphore.Permit] returns the number of the permit.
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

// New returns the semaphore of that name, which has n permits. A name is 1 to 1,024 arbitrary
// bytes. Programs that use the same name on the same backend share the semaphore. New makes no
// request. If l is the result of [locker.Observed], its observer gets the events of the permits
// under the semaphore's name.
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
// returns its lease. The key of the lease is the semaphore's name. The options and errors are those
// of Lock, with these differences: with [locker.WithToken], use each token for only one permit;
// [locker.WithBackoff] has no effect; and [locker.WithMinHold] with a time longer than ttl takes up
// to N more requests.
//
// If ctx carries a lease of this Semaphore (see [locker.FromContext]), Acquire returns
// [locker.ErrDeadlock], since holders that wait for a second permit could block each other forever.
func (s *Semaphore) Acquire(ctx context.Context, ttl time.Duration, opts ...locker.Option) (*locker.Lease, error) {
	if err := s.check("acquire"); err != nil {
		return nil, err
	}
	return locker.Lock(ctx, s.locker, s.name, ttl, opts...)
}

// TryAcquire takes a permit if one is free and otherwise returns [locker.ErrHeld]. Where all
// permits share a queue, it also returns ErrHeld while others wait. It tries the permits as
// [locker.TryLock] tries a lock, and has the same options and errors.
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

// TryDo takes a permit as TryAcquire does and runs fn as Do does. If it gets no permit, it returns
// (false, nil). See [locker.TryDo].
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
