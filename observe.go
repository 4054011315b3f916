package locker

// What an Observer is told: the events, and how they are reported.

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/golockers/locker/internal/waithook"
)

// Observer receives the events of a Locker that was made by [Observed]. It is safe for concurrent
// use.
//
// Observe is called by the goroutine that acquires, extends or unlocks, or by one in the
// background for the keep-alive, a loss or a cleanup. That goroutine waits for it, so a slow
// Observer slows locks down, and a panic of an Observer is a panic of that goroutine. If it panics
// on Acquired, there is no lease: Detached is reported, and the lock is released in the background
// unless it was resumed. Observe may call the methods of a lease. Its ctx has the values of the
// caller's context, or in the background those of the acquisition's, and may have ended.
type Observer interface {
	Observe(ctx context.Context, e Event)
}

// Event describes a step of an acquisition or of a lease.
type Event struct {
	Kind EventKind
	Key  string

	// Took is the time since the acquisition began, for Waiting, Acquired, Refused, Failed,
	// CleanedUp and NotCleanedUp, and the time since the lock was acquired for the others.
	Took time.Duration

	// Err is the reason for Refused, Failed, ExtendFailed, Lost, UnlockFailed and NotCleanedUp, and
	// may be set for Waiting.
	Err error

	// Waiters is the change in the number of acquisitions that wait: 1 for Waiting, and -1 for the
	// end of an acquisition that was reported as Waiting. Leases is the change in the number of
	// leases that are held: 1 for Acquired, and -1 for the first event that ends the lease, which is
	// Lost, Unlocked, UnlockFailed or Detached. Both are 0 otherwise, so each adds up to the present
	// number, in an order that may differ from that of the events. Leases is always 0 where there is
	// no lease: for a method of the Locker that is called directly, and under a cohort.
	Waiters, Leases int
}

// EventKind is the kind of an [Event].
type EventKind uint8

// Each acquisition is reported as exactly one of Acquired, Refused and Failed, unless nothing was
// attempted: its arguments were invalid, its context had already ended, or it returned
// [ErrDeadlock]. [Resume] counts as an acquisition.
const (
	// Waiting means that an acquisition was refused for the first time and waits. With
	// [WithRetry] it may also have failed, with Err as the reason. A [Waiter] outside this module
	// does not report that its callers wait.
	Waiting EventKind = iota + 1

	// Acquired means that an acquisition has the lock.
	Acquired

	// Refused means that an acquisition ended because another token holds the lock, with or
	// without waiting.
	Refused

	// Failed means that an acquisition ended with any other error.
	Failed

	// Extended means that the keep-alive or the caller extended the lock.
	Extended

	// ExtendFailed means that an extension failed. The lease is held until its deadline.
	ExtendFailed

	// Lost means that the lease was lost. It is reported once, and on time. If the backend is the
	// first to report the loss, in answer to an Unlock, only UnlockFailed is reported.
	Lost

	// Unlocked means that the lock was released.
	Unlocked

	// UnlockFailed means that Unlock returned an error, which may be [ErrNotHeld].
	UnlockFailed

	// Detached means that the lease was given up without releasing the lock, by Detach or by an
	// Unlock with [WithMinHold].
	Detached

	// CleanedUp means that an attempt of unknown outcome had taken the lock after all, and that it
	// was released in the background. It belongs to Failed; or to Refused, if an earlier attempt was
	// refused; or to Acquired, if [WithRetry] made another attempt. It may be reported first. A
	// cleanup that finds nothing is not reported.
	CleanedUp

	// NotCleanedUp means that an attempt of unknown outcome may have taken the lock, which then ends
	// with its ttl: the backend has not answered its cleanup for as long as the ttl, a minute at
	// most, or too many cleanups were under way already.
	NotCleanedUp

	// Overdue means that a lock is held for longer than [WithMaxHold] allows, because what is done
	// under it hangs or takes too long. Its keep-alive has stopped, so it is lost within the ttl
	// unless it is unlocked. It is reported up to a third of the ttl late.
	Overdue
)

var kindNames = [...]string{
	Waiting: "waiting", Acquired: "acquired", Refused: "refused", Failed: "failed", Extended: "extended",
	ExtendFailed: "extend failed", Lost: "lost", Unlocked: "unlocked", UnlockFailed: "unlock failed",
	Detached: "detached", CleanedUp: "cleaned up", NotCleanedUp: "not cleaned up", Overdue: "overdue",
}

// String returns the kind in words, such as "extend failed".
func (k EventKind) String() string {
	if k == 0 || int(k) >= len(kindNames) {
		return "unknown"
	}
	return kindNames[k]
}

// observation reports the events of one acquisition and its lease. It is also the context of the
// acquisition's Wait, which finds it there to note that it waits. A nil observation reports
// nothing.
type observation struct {
	context.Context // the acquisition's
	observer        Observer
	key             string
	leaseless       bool        // nothing holds the lock by the lease
	began           time.Time   // the acquisition
	acquired        time.Time   // the lock
	waits           atomic.Bool // Waiting was reported, or no longer may be
	held            atomic.Bool // the lease was reported, and its end was not
	lease           Lease       // allocated here, since an observed lock may cost no more than two allocations
}

// newLease returns the memory for the lease.
func (o *observation) newLease() *Lease {
	if o == nil {
		return new(Lease)
	}
	return &o.lease
}

// leaseless is the Observer of acquisitions whose leases are not used.
type leaseless struct{ Observer }

// observe begins the observation of an acquisition, and returns the context for it. Without an
// observer it is nil.
func observe(ctx context.Context, o Observer, key string) (context.Context, *observation) {
	if o == nil {
		return ctx, nil
	}
	obs := &observation{Context: ctx, observer: o, key: key, began: time.Now()}
	if inner, ok := o.(leaseless); ok {
		obs.observer, obs.leaseless = inner.Observer, true
	}
	return obs, obs
}

// Value implements [context.Context].
func (o *observation) Value(key any) any {
	if key == (waithook.Key{}) {
		return o
	}
	return o.Context.Value(key)
}

// NoteWaiting implements [waithook.Hook].
func (o *observation) NoteWaiting() {
	o.wait(nil)
	waithook.Call(o.Context) // the Locker may be wrapped in one that is observed as well
}

func (o *observation) wait(err error) {
	if o != nil && !o.waits.Swap(true) {
		e := Event{Kind: Waiting, Key: o.key, Took: time.Since(o.began), Err: err, Waiters: 1}
		o.observer.Observe(o.Context, e)
	}
}

// end reports how an acquisition without a lease ended.
func (o *observation) end(err error) {
	if o != nil {
		o.conclude(err, 0)
	}
}

// hold reports that an acquisition has ended with a lease.
func (o *observation) hold() {
	switch {
	case o == nil:
	case o.leaseless:
		o.conclude(nil, 0)
	default:
		o.held.Store(true)
		returned := false
		defer func() {
			if !returned { // others may have counted the lease
				o.report(o.Context, Detached, errObserver)
			}
		}()
		o.conclude(nil, 1)
		returned = true
	}
}

func (o *observation) conclude(err error, leases int) {
	now := time.Now()
	e := Event{Kind: acquisitionKind(err), Key: o.key, Took: now.Sub(o.began), Err: err, Leases: leases}
	if o.waits.Swap(true) {
		e.Waiters = -1
	}
	if err == nil {
		o.acquired = now
	}
	o.observer.Observe(o.Context, e)
}

// endUnless is deferred by an acquisition: without it, one whose Locker panics would wait forever.
func (o *observation) endUnless(returned *bool) {
	if !*returned {
		o.end(errNoReturn)
	}
}

var (
	errNoReturn = errors.New("the Locker panicked or called runtime.Goexit")
	errObserver = errors.New("the Observer panicked or called runtime.Goexit")
)

// cleanup reports an event of a cleanup.
func (o *observation) cleanup(kind EventKind, err error) {
	if o != nil {
		e := Event{Kind: kind, Key: o.key, Took: time.Since(o.began), Err: err}
		o.observer.Observe(o.background(), e)
	}
}

// report reports an event of the lease. The first one that ends it counts.
func (o *observation) report(ctx context.Context, kind EventKind, err error) {
	if o == nil {
		return
	}
	e := Event{Kind: kind, Key: o.key, Took: time.Since(o.acquired), Err: err}
	switch kind {
	case Lost, Unlocked, UnlockFailed, Detached:
		if o.held.Swap(false) {
			e.Leases = -1
		}
	}
	o.observer.Observe(ctx, e)
}

// background returns the context for events that no caller waits for.
func (o *observation) background() context.Context {
	if o == nil {
		return nil
	}
	return context.WithoutCancel(o.Context)
}
