// Package locker provides named, expiring, exclusive locks that work across processes, on a
// backend that you already run.
//
//	lease, err := locker.Lock(ctx, l, "invoice/42", 30*time.Second)
//	if err != nil {
//		return err
//	}
//	defer func() { err = errors.Join(err, lease.Unlock(ctx)) }()
//
// [Lock] waits for the lock, [TryLock] does not, and [Resume] takes over a lock that another
// process acquired. They return a [Lease], which knows its deadline, reports when the lock is
// lost, and releases the lock even after the context has ended. Unlock's error is [ErrNotHeld] if
// the lock was lost, so do not drop it.
//
// [Do] runs a function while it holds the lock, and keeps the lock alive. [TryDo] does so only if
// the lock is free: with [WithMinHold], a job that all replicas start at the same time runs once.
// [LockAll] and [DoAll] take several locks at once.
//
// A backend is anything that implements [Locker]: three stateless operations, each a single
// attempt. The packages memory, redisv9, redigo and memcache in this module are backends, and the
// modules rueidis, postgres, sqllock and etcd are more; package conformance tests your own.
// [Observed] reports what happens to a backend's locks, for metrics and logs. Package lockertest has
// a backend for your tests. Package cohort lets the goroutines of a process share one place among the contenders, and
// package semaphore lets several callers hold a name. Package singleflight builds on locks: when a
// cache key expires, one process of the fleet loads it. Package window needs no locks: it limits how
// often something happens, on the same servers.
//
// # What such a lock promises
//
// A lock that expires excludes others only while its holder respects its deadline. A process that
// is stopped for longer than the ttl and then goes on still believes for a moment that it holds
// the lock. If that could do harm, pass the number from [Lease.Fence] to the resource that the
// lock protects, and let the resource refuse any number smaller than one it has seen.
//
// # Names and lifetimes
//
// A key is 1 to 1,024 arbitrary bytes, and so is a token. A ttl is at least a millisecond. When a
// holder dies, the others wait until its ttl has passed. A holder that pauses for longer than its
// ttl (because of a garbage collection, a stopped machine or a hung network) loses the lock.
// Choose a ttl that is many times the backend's usual response time: with a keep-alive, 10
// seconds or more survive a few lost requests.
//
// # More
//
// See the other [pages] in the repository: [getting started], [choosing a backend], [coming from
// another library], [recipes], [operations], the [guarantees] of each backend and their [proof],
// [performance] and [scale], writing [adapters], and the [design].
//
// [pages]: https://github.com/golockers/locker/blob/main/docs/README.md
// [getting started]: https://github.com/golockers/locker/blob/main/docs/getting-started.md
// [choosing a backend]: https://github.com/golockers/locker/blob/main/docs/choosing.md
// [coming from another library]: https://github.com/golockers/locker/blob/main/docs/coming-from.md
// [recipes]: https://github.com/golockers/locker/blob/main/docs/recipes.md
// [operations]: https://github.com/golockers/locker/blob/main/docs/operations.md
// [guarantees]: https://github.com/golockers/locker/blob/main/docs/guarantees.md
// [proof]: https://github.com/golockers/locker/blob/main/docs/proof.md
// [performance]: https://github.com/golockers/locker/blob/main/docs/performance.md
// [scale]: https://github.com/golockers/locker/blob/main/docs/scale.md
// [adapters]: https://github.com/golockers/locker/blob/main/docs/adapters.md
// [design]: https://github.com/golockers/locker/blob/main/docs/design.md
package locker

import (
	"context"
	"errors"
	"time"

	"github.com/golockers/locker/internal/misuse"
)

// Locker is what a backend implements. It is stateless: the token that proves ownership is an
// argument of every method, so a retry is safe, and ownership can move to another process with
// the token.
//
// Applications do not call these methods. They call the functions of this package, such as [Lock],
// which check the arguments first: a Locker may rely on a key and a token of 1 to 1,024 bytes and a
// ttl of at least a millisecond. A Locker is safe for concurrent use.
//
// These are the rules. Package conformance checks them, and refers to them by number:
//
//   - C1 One attempt. No method waits for a holder, sleeps, or retries on contention. It may
//     repeat its own steps up to three times when the value changed under it, and then returns an
//     error. If the holder is a process that keeps the lock for its next caller, see C7, Acquire
//     may wait for that process's answer, for a bounded time.
//   - C2 Three outcomes. (true, nil): done. (false, nil): certainly not done. An error: unknown,
//     the operation may or may not have happened, or may happen yet. When the client library may
//     have sent a request twice, what the second one finds is not the answer: a Release that
//     finds nothing is true or an error, and so is an Acquire that finds another holder when the
//     first request may have taken the lock.
//   - C3 Never early. After Acquire or Extend returned true, no other token acquires the lock
//     before ttl has passed since that call started, unless this token releases it.
//   - C4 Late by little. ttl plus the backend's granularity after the call returned, the lock is
//     free. The granularity includes the least ttl that the backend keeps, if it has one.
//   - C5 Same token. Acquire by the token that holds the lock is an Extend, so an attempt that is
//     repeated after a lost reply succeeds.
//   - C6 Extend works only when the token holds the lock. It replaces the remaining time, longer
//     or shorter, and never re-creates a lock that is gone.
//   - C7 Release works only when the token holds the lock, as one atomic step; the lock is free at
//     once. A Locker may keep it for the next caller of its process, if an attempt by any other
//     process still gets it.
//   - C8 Exact. Keys and tokens compare byte for byte, and two names never share a lock.
//   - C9 Context. When ctx is done before the call, the method returns ctx's error and nothing
//     happens. When ctx ends during the call, the method returns ctx's error within one I/O
//     timeout of the client, and promptly when ctx's deadline is nearer than that; from then on
//     it starts nothing more for that call, except to undo it. A rollback may use a context of
//     its own that has not ended, bounded in time. An Extend or a Release of that token on the
//     same Locker waits behind what is still under way.
//   - C10 Faults are errors. A backend that is down, hung, read-only or out of memory is an error
//     that wraps its cause, never (false, nil), never a success and never a panic.
//   - C11 Foreign values. A value that the Locker recognizes as not its own is an error and is
//     left alone.
//   - C12 Any name works, and any token, of 1 to 1,024 bytes.
//   - C13 Any ttl from a millisecond. Rounding is up only, to the backend's unit and to the least
//     ttl that it keeps; what the backend cannot express is [ErrInvalidTTL], never a lock without
//     expiry, never one that is gone at once.
//   - C14 Nothing left behind. After release or expiry the backend keeps nothing for a key that
//     does not expire by itself, and the Locker keeps no goroutine, timer or map entry for it.
type Locker interface {
	// Acquire takes the lock for token if it is free, in one attempt. False means that another
	// token holds the lock, or is next in the queue for it on this Locker. When token holds the
	// lock already, Acquire acts as Extend.
	Acquire(ctx context.Context, key, token string, ttl time.Duration) (acquired bool, err error)

	// Extend sets the remaining time of a lock that token holds to ttl. False means that token
	// does not hold the lock.
	Extend(ctx context.Context, key, token string, ttl time.Duration) (extended bool, err error)

	// Release frees a lock that token holds. False means that token does not hold the lock.
	Release(ctx context.Context, key, token string) (released bool, err error)
}

// Watcher is a Locker that can tell when a lock may have become free.
type Watcher interface {
	Locker

	// Watch returns a channel that gets a value when the lock of key may have become free. It
	// returns once the subscription is live, so a caller that subscribes and then tries again
	// misses no release. Every release wakes all watchers of its key. The channel has room for
	// one wake-up and is never closed; wake-ups are hints: they coalesce, may be spurious, and an
	// expiry need not be signaled.
	//
	// When the subscription breaks, the Locker subscribes again, and the channel then gets a
	// wake-up if a release may have been missed. A subscription that resumes and has missed
	// nothing need not wake its watchers. A subscription only shortens the pauses between
	// attempts: if it cannot be established or is silent, Lock still gets the lock as soon as
	// polling would.
	//
	// The subscription ends with ctx. An error that wraps [errors.ErrUnsupported] means that this
	// key cannot be watched.
	Watch(ctx context.Context, key string) (<-chan struct{}, error)
}

// Waiter is a Locker that keeps a queue, in which processes take turns. The callers of a process that
// wait for a lock stand in a line, first come, first served, and only the first of them has a place
// in the queue. Places are served in the order in which they were taken, and the next in line takes a
// new one, so a process with a thousand callers does not keep one with a single caller waiting. A
// line belongs to a Locker: two Lockers of one process are two processes here.
type Waiter interface {
	Locker

	// Wait takes the lock as Acquire does when it is free, and otherwise joins the line and returns
	// when token holds the lock or ctx is done. A release passes the lock to the head of the queue,
	// for the ttl of that Wait. The deadline is on this process's monotonic clock and is never after
	// the real expiry, however late Wait learns that it holds the lock. An error of the backend is
	// the error of everyone in the line.
	//
	// A place is kept when the holder extends the lock or vanishes, when other attempts are
	// refused, and when Wait goes on after its connection broke. A waiter's token does not hold the
	// lock: Extend, Release and Fence return false and leave its place alone. A place whose process
	// has died costs the others at most its ttl or the time that the adapter lets it claim the
	// lock, and a waiter that has left costs nothing while its process lives. Wait does not depend
	// on a notification: it also looks at the lock from time to time.
	//
	// When ctx ends after the lock was found to be held, whether or not token had joined the line by
	// then, Wait leaves it, and the error wraps both ctx's error and [ErrHeld]; a lock that arrives
	// meanwhile is released or passed on. That may go on in the background, so the next attempt
	// needs another token: this one may still be released. An error without ErrHeld, like one from
	// Acquire, says nothing about who holds the lock. An error that wraps [errors.ErrUnsupported]
	// means that there is no queue for this key, and that nothing happened.
	Wait(ctx context.Context, key, token string, ttl time.Duration) (deadline time.Time, err error)
}

// Fencer is a Locker that can mint fencing numbers.
type Fencer interface {
	Locker

	// Fence returns a number greater than every number minted for key before, by anyone, across
	// releases, expiries and re-acquisitions. ok is false if token does not hold the lock, even
	// if it waits for it. If the backend can lose the last number, the next one starts from a
	// clock that has advanced since, as the adapter documents. Numbers are less than 2^63. An
	// error that wraps [errors.ErrUnsupported] means that this key has no fencing numbers.
	Fence(ctx context.Context, key, token string) (fence uint64, ok bool, err error)
}

var (
	// ErrHeld means that another token holds the lock.
	ErrHeld = errors.New("the lock is held by another token")

	// ErrNotHeld means that the lease or token does not hold the lock, or no longer does.
	ErrNotHeld = errors.New("the lock is not held")

	// ErrDeadlock means that the caller's context carries a lease of the lock that it asks for,
	// so it would wait for itself. See [FromContext].
	ErrDeadlock = errors.New("the context already carries a lease of this lock")

	// ErrInvalidKey means that a key is empty or longer than 1,024 bytes.
	ErrInvalidKey = errors.New("invalid key")

	// ErrInvalidTTL means that a ttl is less than a millisecond, or longer than the backend can
	// express.
	ErrInvalidTTL = errors.New("invalid ttl")

	// ErrInvalidToken means that a token is empty or longer than 1,024 bytes.
	ErrInvalidToken = errors.New("invalid token")

	// ErrInvalidLocker means that a Locker, or a Cache of one of its adapters, can never work: it
	// is nil, or was made with arguments that it cannot work with, such as a nil client.
	ErrInvalidLocker = misuse.ErrInvalidLocker

	// ErrClosed means that a Loader of package singleflight was used after its Close.
	ErrClosed = errors.New("the Loader is closed")
)
