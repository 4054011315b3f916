package locker

// A lease: its deadline, its loss, and what it knows. extend.go, unlock.go and keepalive.go have
// what is done to it.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/golockers/locker/internal/lazyctx"
)

// Lease is a lock that is held until [Lease.Unlock], [Lease.Detach] or its loss. It is safe for
// concurrent use. A nil or zero Lease holds nothing: its methods return [ErrNotHeld] or zero
// values.
//
// A lease is lost when its deadline passes, or when the backend reports that its token no longer
// holds the lock. A lost lease stays lost.
type Lease struct {
	locker Locker // not an Observed one, but what is behind it
	key    string
	token  string
	obs    *observation // nil: not observed

	mu       sync.Mutex
	state    leaseState
	loss     leaseState  // expired or refused, once it was lost
	untold   bool        // unlock has yet to report the loss
	deadline time.Time   // when the lock must be assumed gone
	timer    *time.Timer // notices the deadline; nil until watchDeadline is called
	rare     *rareParts  // nil until one of them is needed, and then never replaced

	unlockCtx lazyctx.Context // of the first Unlock; not a pointer, to save an allocation
}

// rareParts is what a lease does not need if its lock is only taken and released. The lease's mu
// guards it.
type rareParts struct {
	keep      *keepAlive    // nil without keep-alive; set once, by newLease
	extendErr error         // of the last extension while it was held
	unsure    time.Duration // the shortest ttl of an unanswered extension, which may yet arrive; 0: none
	minHold   time.Time     // Unlock does not release the lock before that; zero: no limit

	lost     chan struct{}   // made by the first Lost
	contexts []*leaseContext // to cancel when the lease is lost
	turn     chan struct{}   // holds a value while an extension is under way, so there is only one
	unlocked chan struct{}   // closed when the Unlock under way ends; nil if no other waits for that
}

// needed returns l.rare, and makes it if it is nil. It needs l.mu.
func (l *Lease) needed() *rareParts {
	if l.rare == nil {
		l.rare = new(rareParts)
	}
	return l.rare
}

type leaseState uint8

const (
	zeroLease leaseState = iota
	held
	expired   // lost: the deadline passed; the backend may still keep the lock
	refused   // lost: the backend reported that the token does not hold the lock
	releasing // an Unlock is under way
	unknown   // an Unlock ended with an error: released or not
	done      // unlocked, or an Unlock reported the loss
	detached
)

func newLease(ctx context.Context, obs *observation, l Locker, key, token string, ttl time.Duration,
	deadline time.Time, o options) *Lease {
	lease := obs.newLease()
	lease.locker, lease.key, lease.token, lease.obs = l, key, token, obs
	lease.state, lease.deadline = held, deadline
	if o.minHold > 0 {
		lease.needed().minHold = time.Now().Add(o.minHold)
	}
	if o.keepAlive {
		lease.startKeepAlive(ctx, ttl, o.maxHold)
	} else if obs != nil && !obs.leaseless {
		lease.mu.Lock()
		defer lease.unlock()
		lease.watchDeadline() // even a lease that is never used again is reported as lost
	}
	return lease
}

// Key returns the name of the lock.
func (l *Lease) Key() string {
	if l == nil {
		return ""
	}
	return l.key
}

// Token returns the token that proves ownership. With it another process can [Resume] the lock.
func (l *Lease) Token() string {
	if l == nil {
		return ""
	}
	return l.token
}

// String returns the name of the lock and how the lease stands, without the token, which is a
// secret in logs. Its form may change.
func (l *Lease) String() string {
	switch err := l.Err(); {
	case l == nil || l.locker == nil:
		return "no lease"
	case err != nil:
		return fmt.Sprintf("lease of %.100q, lost", l.key)
	}
	l.mu.Lock()
	defer l.unlock()
	if l.state != held {
		return fmt.Sprintf("lease of %.100q, ended", l.key)
	}
	return fmt.Sprintf("lease of %.100q, held for %v", l.key, max(time.Until(l.deadline), 0).Round(time.Millisecond))
}

// GoString is String, so that %#v does not print the token either.
func (l *Lease) GoString() string { return l.String() }

// Deadline returns the moment at which the lock must be assumed gone. Each successful extension
// moves it. While an extension is under way, and after one of unknown outcome, it is the earlier of
// the old deadline and the new one. An extension of unknown outcome may still take effect at any
// time, so from then on the Deadline is never further off than that extension's ttl.
//
// Deadline counts from before the request was sent, on this process's monotonic clock. It is never
// after the real expiry while that clock runs. On Linux and many other systems the clock stops
// while the machine is suspended, and it may stop while a virtual machine is paused. After that,
// Deadline is late by as long as the clock stood still: until an extension is refused, the lease
// may claim a lock that the backend has given to another. Where that can happen, use [Lease.Fence].
func (l *Lease) Deadline() time.Time {
	if l == nil {
		return time.Time{}
	}
	l.mu.Lock()
	defer l.unlock()
	return l.deadline
}

// Lost returns a channel that is closed when the lease is lost: its deadline has passed, or an
// extension or a fencing number was refused. It is closed on time even when the backend cannot be
// reached, by the same clock as [Lease.Deadline]. It stays open after Detach, and after an Unlock
// of a lease that was not lost.
func (l *Lease) Lost() <-chan struct{} {
	if l == nil || l.locker == nil {
		return closedChannel
	}
	l.mu.Lock()
	defer l.unlock()
	l.isHeld() // notices a deadline that has just passed, even before the timer does
	r := l.needed()
	if r.lost == nil {
		r.lost = make(chan struct{})
		if l.loss != 0 {
			close(r.lost)
		} else {
			l.watchDeadline()
		}
	}
	return r.lost
}

// Err returns why the lease was lost, in an error that wraps [ErrNotHeld]. If its deadline passed
// after a failed extension, such as one by the keep-alive, the error also wraps the last
// extension's error. Err returns nil while the lease is held, and after an Unlock or Detach of a
// lease that was not lost.
func (l *Lease) Err() error {
	if l == nil || l.locker == nil {
		return noLease("lease")
	}
	l.mu.Lock()
	defer l.unlock()
	l.isHeld()
	if l.loss == 0 {
		return nil
	}
	return l.wrap("lease", l.lossErr())
}

var closedChannel = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Fence returns a fencing number, which is greater than every number minted for this key before,
// by any holder, and less than 2^63. Pass it to the resource that the lock protects, and let the
// resource refuse a number that is smaller than the last one it has seen, or equal to it but from
// another holder:
//
//	UPDATE invoices SET status = $1, fence = $2, holder = $3
//	WHERE id = $4 AND (fence < $2 OR fence = $2 AND holder = $3)
//
// where $2 is the number and $3 is the lease's token. Work that reads first has to leave its number
// with that read, or an earlier holder could still write between the read and the write: begin with
//
//	UPDATE invoices SET fence = $2, holder = $3
//	WHERE id = $4 AND (fence < $2 OR fence = $2 AND holder = $3) RETURNING status
//
// Each call makes a request and mints a new
// number, so most programs need one call for each lease. Numbers keep growing even if the backend
// loses its data, since they start at the time of its clock; the adapter's documentation
// describes the limits.
//
// The error is [ErrNotHeld] if the lease is lost, [errors.ErrUnsupported] if the backend has no
// fencing numbers, and otherwise the backend's or ctx's.
func (l *Lease) Fence(ctx context.Context) (uint64, error) {
	if l == nil || l.locker == nil {
		return 0, noLease("fence")
	}
	f, ok := l.locker.(Fencer)
	if !ok {
		return 0, l.wrap("fence", errors.ErrUnsupported)
	}
	if !l.isHeldNow() {
		return 0, l.wrap("fence", ErrNotHeld)
	}
	n, ok, err := f.Fence(ctx, l.key, l.token)
	switch {
	case err != nil:
		return 0, l.wrap("fence", err)
	case !ok:
		l.mu.Lock()
		defer l.unlock()
		if l.state == held {
			l.lose(refused)
		}
		return 0, l.wrap("fence", ErrNotHeld)
	}
	return n, nil
}

// Detach stops the keep-alive and gives up the lease without releasing the lock. From then on the
// lock belongs to whichever process has the token and calls [Resume] before the deadline. Detach
// waits until an extension that is under way, by the keep-alive or another goroutine, has ended,
// so that it cannot arrive after the new owner's.
func (l *Lease) Detach() {
	if l == nil || l.locker == nil {
		return
	}
	l.mu.Lock()
	wasHeld := l.isHeld()
	switch {
	case wasHeld:
		l.state = detached
	case l.state != detached && l.state != releasing: // an Unlock that is under way decides by itself
		l.state = done
	}
	l.stopTimers()
	var turn chan struct{}
	if l.rare != nil {
		turn = l.rare.turn
	}
	l.unlock()
	if turn != nil { // no other extension begins, so this waits for the last one
		turn <- struct{}{}
		<-turn
	}
	if wasHeld {
		l.obs.report(l.obs.background(), Detached, nil)
	}
}

// unlockUnlessDetached is Unlock, but does nothing if Detach has ended the lease while it was held.
// Detach may be called by another goroutine until Unlock begins, and not later.
func (l *Lease) unlockUnlessDetached(ctx context.Context) error {
	err := l.Unlock(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == detached {
		return nil
	}
	return err
}

// unlock unlocks l.mu, and then reports a loss that was noticed meanwhile. An Observer may call any
// method of the lease, so the caller must hold nothing that they wait for, such as the turn to
// extend.
func (l *Lease) unlock() {
	if !l.untold {
		l.mu.Unlock()
		return
	}
	l.untold = false
	err := l.lossErr()
	l.mu.Unlock()
	l.obs.report(l.obs.background(), Lost, err)
}

// isHeld reports whether the lease is held, and notices a deadline that has passed. It needs l.mu.
func (l *Lease) isHeld() bool {
	if l.state == held && time.Until(l.deadline) <= 0 {
		l.lose(expired)
	}
	return l.state == held
}

// lose marks a held lease as lost and closes what waits for that. It needs l.mu.
func (l *Lease) lose(how leaseState) {
	l.state, l.loss, l.untold = how, how, l.obs != nil
	l.stopTimers()
	if l.rare == nil {
		return
	}
	if l.rare.lost != nil {
		close(l.rare.lost)
	}
	for _, c := range l.rare.contexts {
		c.cancel(ErrNotHeld)
	}
}

var errRefused = fmt.Errorf("%w: the backend refused its token", ErrNotHeld)

// lossErr returns why the lease was lost. It needs l.mu.
func (l *Lease) lossErr() error {
	switch {
	case l.loss == refused:
		return errRefused
	case l.rare != nil && l.rare.extendErr != nil:
		return fmt.Errorf("%w: its deadline passed, and the last extension failed: %w", ErrNotHeld, l.rare.extendErr)
	}
	return fmt.Errorf("%w: its deadline passed", ErrNotHeld)
}

// lossErrNow is lossErr for callers without l.mu.
func (l *Lease) lossErrNow() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lossErr()
}

// isHeldNow is isHeld for callers without l.mu.
func (l *Lease) isHeldNow() bool {
	l.mu.Lock()
	defer l.unlock()
	return l.isHeld()
}

// bind cancels c when the lease is lost.
func (l *Lease) bind(c *leaseContext) {
	if l == nil || l.locker == nil {
		c.cancel(ErrNotHeld)
		return
	}
	l.mu.Lock()
	defer l.unlock()
	l.isHeld()
	if l.loss != 0 {
		c.cancel(ErrNotHeld)
		return
	}
	r := l.needed()
	r.contexts = append(r.contexts, c)
	l.watchDeadline()
}

func (l *Lease) unbind(c *leaseContext) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.unlock()
	if l.rare == nil {
		return
	}
	if i := slices.Index(l.rare.contexts, c); i >= 0 {
		l.rare.contexts = slices.Delete(l.rare.contexts, i, i+1)
	}
}

// setHold counts the minimum and the maximum hold from now.
func (l *Lease) setHold(least, most time.Duration) {
	l.mu.Lock()
	defer l.unlock()
	now := time.Now()
	r := l.needed()
	r.minHold = time.Time{}
	if least > 0 {
		r.minHold = now.Add(least)
	}
	if r.keep != nil && most > 0 {
		r.keep.until, r.keep.isMax = now.Add(most), true
	}
}

// watchDeadline starts the timer that notices the deadline. It needs l.mu.
func (l *Lease) watchDeadline() {
	if l.timer != nil || l.state != held {
		return
	}
	l.timer = time.AfterFunc(time.Until(l.deadline), func() {
		l.mu.Lock()
		defer l.unlock()
		if l.isHeld() { // the deadline was moved just before this ran
			l.timer.Reset(time.Until(l.deadline))
		}
	})
}

// stopTimers is for a lease that is no longer held. It needs l.mu.
func (l *Lease) stopTimers() {
	if l.timer != nil {
		l.timer.Stop()
	}
	if k := l.keeping(); k != nil {
		k.timer.Stop()
	}
}

func (l *Lease) setDeadline(t time.Time) {
	l.deadline = t
	if l.timer != nil {
		l.timer.Reset(time.Until(t))
	}
}

func (l *Lease) wrap(op string, err error) error { return wrap(op, l.key, err) }

func noLease(op string) error { return fmt.Errorf("locker: %s: no lease: %w", op, ErrNotHeld) }
