// Package locker is for named, expiring, exclusive locks that work across processes, on the backend
// you already run.
//
//	lease, err := locker.Lock(ctx, l, "invoice/42", 30*time.Second)
//	if err != nil {
//		return err
//	}
//	defer lease.Unlock(ctx)
//
// [Lock] waits for the lock, [TryLock] does not, [Do] runs a function under it and keeps it alive, and
// [Resume] takes over a lock that another process acquired. Each gives a [Lease]: it knows its deadline,
// tells when the lock was lost, and releases the lock even when the context has ended meanwhile.
//
// A backend is anything that implements [Locker]: three stateless operations, each a single attempt. The
// packages memory, redisv9, redigo and memcache beside this one do; package conformance checks others.
// Package singleflight builds on locks: one load in the fleet for a cache key that has expired, and one line
// for the goroutines of a process that want the same lock.
//
// # What such a lock promises
//
// A lock that expires protects against two holders for as long as the holder minds its deadline: a process
// that is stopped for longer than the ttl and goes on afterwards still believes for a moment that it holds
// the lock. Where that is not good enough, pass [Lease.Fence]'s number to the resource that the lock
// protects and let it refuse smaller numbers than it has seen.
//
// # Names and lifetimes
//
// A key is 1 to 1,024 bytes of any kind, and so is a token. A ttl is at least a millisecond. When a holder
// dies the others wait for what is left of its ttl; when it pauses for longer than its ttl (a garbage
// collection, a stopped machine, a network that hangs) it loses the lock. With a keep-alive a ttl of ten
// seconds or more survives a few lost requests, and one should be many times the backend's usual answer time
// in any case.
package locker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"
)

// Locker is what a backend implements. It is stateless: the token that proves ownership is an argument of
// every method, so a retry is safe, and ownership can move to another process with the token.
//
// Applications do not call these methods, they call [Lock], [TryLock], [Do] and [Resume], which check the
// arguments first: a Locker may rely on a key and a token of 1 to 1,024 bytes and a ttl of at least a
// millisecond. A Locker is safe for concurrent use.
//
// These are the rules. Package conformance checks them, and refers to them by number:
//
//   - C1 One attempt. No method waits for a holder, sleeps, or retries on contention. It may repeat its own
//     steps when the value changed under it, three times at most; after that it is an error.
//   - C2 Three outcomes. (true, nil): done. (false, nil): certainly not done. An error: unknown, the operation
//     may or may not have happened, or may happen yet. When the client library may have sent a Release
//     twice, finding nothing is true or an error, never false.
//   - C3 Never early. After Acquire or Extend returned true, no other token acquires the lock before ttl has
//     passed since that call started, unless this token releases it.
//   - C4 Late by little. ttl plus the backend's granularity after the call returned, the lock is free.
//   - C5 Same token. Acquire by the token that holds the lock is an Extend, so an attempt that is repeated
//     after a lost reply succeeds.
//   - C6 Extend works only when the token holds the lock. It replaces the remaining time, longer or shorter,
//     and never re-creates a lock that is gone.
//   - C7 Release works only when the token holds the lock, as one atomic step; the lock is free at once.
//   - C8 Exact. Keys and tokens compare byte for byte, and two names never share a lock.
//   - C9 Context. When ctx is done before the call, the method returns ctx's error and nothing happens. When
//     ctx ends during the call, the method returns ctx's error within one I/O timeout of the client, and
//     promptly when ctx's deadline is nearer than that; from then on it starts nothing more, and an
//     Extend or a Release of that token on the same Locker waits behind what is still under way.
//   - C10 Faults are errors. A backend that is down, hung, read-only or out of memory is an error that wraps
//     its cause, never (false, nil), never a success and never a panic.
//   - C11 Foreign values. What the Locker can tell it did not write is an error and is left alone.
//   - C12 Any name works, and any token, of 1 to 1,024 bytes.
//   - C13 Any ttl from a millisecond. Rounding is up only; what the backend cannot express is
//     [ErrInvalidTTL], never a lock without expiry, never one that is gone at once.
//   - C14 Nothing left behind. After release or expiry the backend keeps nothing for a key that does not
//     expire by itself, and the Locker keeps no goroutine, timer or map entry for it.
type Locker interface {
	// Acquire takes the lock for token when it is free, in one attempt. False says that another token holds
	// the lock, or is next in line for it on this Locker. When token holds the lock already, Acquire is
	// Extend.
	Acquire(ctx context.Context, key, token string, ttl time.Duration) (acquired bool, err error)

	// Extend replaces the remaining time of a lock that token holds by ttl. False says that token does not
	// hold the lock.
	Extend(ctx context.Context, key, token string, ttl time.Duration) (extended bool, err error)

	// Release frees a lock that token holds. False says that token does not hold the lock.
	Release(ctx context.Context, key, token string) (released bool, err error)
}

// Watcher is a Locker that can tell when a lock may have become free.
type Watcher interface {
	Locker

	// Watch returns a channel that gets a value when the lock of key may have become free. It returns once
	// the subscription is live, so a caller that subscribes and then tries again misses no release. Every
	// release wakes all watchers of its key. The channel has room for one wake-up and is never closed;
	// wake-ups are hints: they coalesce, may be spurious, and an expiry need not be signalled. When the
	// subscription breaks, the channel gets one wake-up and the Locker subscribes anew. All of it ends with
	// ctx. An error that wraps [errors.ErrUnsupported] says that this key cannot be watched.
	Watch(ctx context.Context, key string) (<-chan struct{}, error)
}

// Waiter is a Locker that keeps a line: first come, first served.
type Waiter interface {
	Locker

	// Wait takes the lock as Acquire does when it is free, and otherwise joins the line and returns when
	// token holds the lock or ctx is done. A release hands the lock to the next in line directly. The
	// deadline is on this process's monotonic clock and is never after the real expiry.
	//
	// When ctx ends in line, Wait leaves the line, and the error wraps both ctx's error and [ErrHeld]; a
	// grant that crosses with the leaving is released or passed on. An error without ErrHeld says nothing
	// about who holds the lock, as one from Acquire. An error that wraps [errors.ErrUnsupported] says that
	// there is no line for this key; then nothing happened.
	Wait(ctx context.Context, key, token string, ttl time.Duration) (deadline time.Time, err error)
}

// Fencer is a Locker that can mint fencing numbers.
type Fencer interface {
	Locker

	// Fence returns a number greater than every number minted for key before, by anyone, across releases,
	// expiries and re-acquisitions. It is false when token does not hold the lock. The order lasts as long
	// as the backend's data does. An error that wraps [errors.ErrUnsupported] says that this key has none.
	Fence(ctx context.Context, key, token string) (fence uint64, ok bool, err error)
}

var (
	// ErrHeld says that another token holds the lock.
	ErrHeld = errors.New("the lock is held by another")

	// ErrNotHeld says that the lock is not, or no longer, held by the lease or token in question.
	ErrNotHeld = errors.New("the lock is not held")

	// ErrInvalidKey says that a key is empty or longer than 1,024 bytes.
	ErrInvalidKey = errors.New("invalid key")

	// ErrInvalidTTL says that a ttl is under a millisecond, or longer than the backend can express.
	ErrInvalidTTL = errors.New("invalid ttl")

	// ErrInvalidToken says that a token is empty or longer than 1,024 bytes.
	ErrInvalidToken = errors.New("invalid token")
)

const maxName = 1024 // bytes, of a key and of a token

// TryLock takes the lock of key for ttl, in one attempt. The error is [ErrHeld] when another holds it, or is
// next in line for it; [ErrInvalidKey], [ErrInvalidTTL] or [ErrInvalidToken] for arguments that cannot be;
// or what the backend or ctx says; also when the backend answered so late that the ttl had passed. After an
// error of the last kind the attempt may have taken the lock unnoticed: a clean-up in the background releases
// it then, within 5 seconds, or else it ends with its ttl.
//
// ctx bounds the attempt and not the lease. When ctx is cancelled, or has a deadline that is further off than
// the client's own I/O timeout, a backend that hangs may delay the return by one such timeout. Errors carry
// ctx.Err, not its cause.
func TryLock(ctx context.Context, l Locker, key string, ttl time.Duration, opts ...Option) (*Lease, error) {
	return lock(ctx, "try lock", l, key, ttl, opts, false)
}

// Lock takes the lock of key for ttl, and waits for it as long as ctx allows: in line where l is a [Waiter];
// otherwise woken by releases where it is a [Watcher], with slow polls in between since an expiry wakes
// nobody; otherwise polling, see [WithBackoff].
//
// The errors are those of [TryLock], but for one: when ctx ends after an attempt was refused, the error is
// both ctx's error and [ErrHeld]. A backend error ends the waiting at once, for all who wait when a server
// restarts; a caller who is to outlast that calls Lock again.
func Lock(ctx context.Context, l Locker, key string, ttl time.Duration, opts ...Option) (*Lease, error) {
	return lock(ctx, "lock", l, key, ttl, opts, true)
}

// Resume takes over a lock that token holds, as another process or an earlier run of this one left it, and
// extends it to ttl. The error is [ErrNotHeld] when token does not hold the lock; after a backend error the
// lock may or may not have been extended, and Resume may be repeated. Of the options [WithKeepAlive] and
// [WithMaxHold] mean something here, the latter counted from now.
func Resume(ctx context.Context, l Locker, key, token string, ttl time.Duration, opts ...Option) (*Lease, error) {
	const op = "resume"
	if err := check(ctx, l, key, token, ttl); err != nil {
		return nil, wrap(op, key, err)
	}
	start := time.Now()
	extended, err := l.Extend(ctx, key, token, ttl)
	deadline := start.Add(ttl)
	switch {
	case err != nil:
		return nil, wrap(op, key, err)
	case !extended:
		return nil, wrap(op, key, ErrNotHeld)
	case !time.Now().Before(deadline):
		return nil, wrap(op, key, fmt.Errorf("the ttl of %v had passed when the reply came: %w", ttl, ErrNotHeld))
	}
	return newLease(ctx, l, key, token, ttl, deadline, apply(opts)), nil
}

// Do runs fn while it holds the lock of key. It waits for the lock as [Lock] does, extends it until fn
// returns ([WithMaxHold] limits that), and unlocks it on every way out of fn: a return, a panic, and
// [runtime.Goexit].
//
// The context of fn is ctx, and is cancelled with the cause ErrNotHeld when the lock is lost. The error joins
// fn's and the unlock's, which is [ErrNotHeld] when the lock was lost: what fn did may then have overlapped
// with another holder. When the lock cannot be taken fn does not run, and the error is as from Lock, never
// ErrNotHeld. Who needs the lease itself inside fn, for a fencing number say, calls Lock with
// [WithKeepAlive] instead.
func Do(ctx context.Context, l Locker, key string, ttl time.Duration, fn func(context.Context) error,
	opts ...Option) (err error) {
	if fn == nil {
		return wrap("do", key, errors.New("nil function"))
	}
	keep := append(opts[:len(opts):len(opts)], WithKeepAlive())
	lease, err := lock(ctx, "do", l, key, ttl, keep, true)
	if err != nil {
		return err
	}
	fnCtx, cancel := context.WithCancelCause(ctx)
	lease.callWhenLost(func() { cancel(ErrNotHeld) })
	defer func() {
		cancel(nil)
		switch unlockErr := lease.Unlock(ctx); {
		case err == nil:
			err = unlockErr
		case unlockErr != nil:
			err = fmt.Errorf("%w; %w", err, unlockErr)
		}
	}()
	return fn(fnCtx)
}

// lock checks the arguments, acquires the lock and makes the lease.
func lock(ctx context.Context, op string, l Locker, key string, ttl time.Duration, opts []Option,
	wait bool) (*Lease, error) {
	w := waiter{locker: l, key: key, ttl: ttl, opts: apply(opts)}
	w.token = w.opts.token
	if !w.opts.hasToken {
		w.token = rand.Text()
	}
	if err := check(ctx, l, key, w.token, ttl); err != nil {
		return nil, wrap(op, key, err)
	}
	var err error
	if wait {
		err = w.wait(ctx)
	} else {
		err = w.try(ctx)
	}
	if err != nil {
		return nil, wrap(op, key, err)
	}
	return newLease(ctx, l, key, w.token, ttl, w.deadline, w.opts), nil
}

func check(ctx context.Context, l Locker, key, token string, ttl time.Duration) error {
	switch {
	case l == nil:
		return errors.New("nil Locker")
	case key == "":
		return fmt.Errorf("%w: empty", ErrInvalidKey)
	case len(key) > maxName:
		return fmt.Errorf("%w: %d bytes, over %d", ErrInvalidKey, len(key), maxName)
	case token == "":
		return fmt.Errorf("%w: empty", ErrInvalidToken)
	case len(token) > maxName:
		return fmt.Errorf("%w: %d bytes, over %d", ErrInvalidToken, len(token), maxName)
	}
	if err := checkTTL(ttl); err != nil {
		return err
	}
	return ctx.Err()
}

func checkTTL(ttl time.Duration) error {
	if ttl < time.Millisecond {
		return fmt.Errorf("%w: %v is under a millisecond", ErrInvalidTTL, ttl)
	}
	return nil
}

// wrap gives every error of this package its form. A key that is too long is cut, for it may be anything.
func wrap(op, key string, err error) error {
	if len(key) > maxName {
		return fmt.Errorf("locker: %s %q…: %w", op, key[:32], err)
	}
	return fmt.Errorf("locker: %s %q: %w", op, key, err)
}
