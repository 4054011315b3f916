package locker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// unlockTimeout bounds an Unlock whatever its context says: a dead backend delays a caller this long.
const unlockTimeout = 5 * time.Second

// Lease is a lock that is held, until [Lease.Unlock], [Lease.Detach] or its loss. It is safe for
// concurrent use. A nil or zero Lease holds nothing, and its methods say so.
//
// A lease is lost when its deadline passes or when the backend says that another, or nobody, holds the
// lock. A lost lease stays lost.
type Lease struct {
	locker Locker
	key    string
	token  string
	keep   *keepAlive // nil without keep-alive; set once, by newLease

	mu       sync.Mutex
	state    leaseState
	isLost   bool
	ttl      time.Duration // what keep-alive extends by: the last one that the user asked for
	unsure   time.Duration // the shortest ttl of an extension without an answer, which may yet arrive; 0: none
	deadline time.Time     // from then on the lock must be assumed gone
	lost     chan struct{} // made by the first Lost
	onLost   func()        // called once, when the lease is lost
	timer    *time.Timer   // notices the deadline; only once somebody wants to know
	turn     chan struct{} // holds a value while an Extend is under way: they go one at a time
}

type leaseState uint8

const (
	zeroLease leaseState = iota
	held
	expired   // lost: the deadline passed; the backend may still keep the lock
	refused   // lost: the backend said that the token does not hold the lock
	releasing // an Unlock is under way
	unknown   // an Unlock ended with an error: released or not
	done      // unlocked, detached, or an Unlock said that it was lost
)

func newLease(ctx context.Context, l Locker, key, token string, ttl time.Duration, deadline time.Time,
	o options) *Lease {
	lease := &Lease{locker: l, key: key, token: token, state: held, ttl: ttl, deadline: deadline}
	if o.keepAlive {
		lease.startKeepAlive(ctx, o.maxHold)
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

// Token returns the token that proves ownership; with it another process can [Resume] the lock.
func (l *Lease) Token() string {
	if l == nil {
		return ""
	}
	return l.token
}

// Deadline returns the moment, on this process's monotonic clock, at which the lock must be assumed gone.
// It is never after the real expiry. Each extension that succeeds moves it; while an extension is under
// way, and after one of unknown outcome, it is the earlier of the old and the new one. One of unknown outcome
// may take effect at any time later: from then on the Deadline is never further off than that one's ttl.
func (l *Lease) Deadline() time.Time {
	if l == nil {
		return time.Time{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deadline
}

// Lost returns a channel that is closed when the lease is lost: its deadline passed, or an extension or a
// fencing number was refused. It is closed on time when the backend cannot be reached. It stays open after an Unlock of a
// lease that was not lost before, and after Detach.
func (l *Lease) Lost() <-chan struct{} {
	if l == nil || l.locker == nil {
		return closedChannel
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isHeld() // notices a deadline that has just passed, so that who polls is told at once
	if l.lost == nil {
		l.lost = make(chan struct{})
		if l.isLost {
			close(l.lost)
		} else {
			l.watchDeadline()
		}
	}
	return l.lost
}

var closedChannel = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Extend replaces the remaining time of the lock by ttl, at least a millisecond, longer or shorter; a
// keep-alive goes on with that ttl. It returns ErrNotHeld when the lease was lost, which it then stays, and
// ErrInvalidTTL for a ttl that is too short, or too long for the backend. After any other error the lock
// may or may not have been extended, or be yet: the lease is still held until its Deadline, and Extend may be
// repeated. It waits for an extension that is under way, a keep-alive's for instance, as long as ctx lasts.
func (l *Lease) Extend(ctx context.Context, ttl time.Duration) error {
	if l == nil || l.locker == nil {
		return noLease("extend")
	}
	if err := checkTTL(ttl); err != nil {
		return l.wrap("extend", err)
	}
	before := l.Deadline()
	err := l.extend(ctx, ttl)
	// One that failed may have moved the deadline nearer: then keep-alive must try in time.
	if err == nil || l.Deadline().Before(before) {
		l.reschedule()
	}
	return err
}

// extend is one extension, by ttl. If that is 0 it is the keep-alive's, by the ttl in force when its turn comes.
func (l *Lease) extend(ctx context.Context, ttl time.Duration) error {
	l.mu.Lock()
	if l.turn == nil {
		l.turn = make(chan struct{}, 1)
	}
	l.mu.Unlock()
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return l.wrap("extend", ctx.Err())
	}
	if err := ctx.Err(); err != nil {
		return l.wrap("extend", err)
	}

	l.mu.Lock()
	if !l.isHeld() {
		l.mu.Unlock()
		return l.wrap("extend", ErrNotHeld)
	}
	if ttl == 0 {
		ttl = l.ttl
		// It takes half of the time that is left at most, so that there is time for another one.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, max(time.Until(l.deadline)/2, time.Millisecond))
		defer cancel()
	}
	next := time.Now().Add(ttl)
	if next.Before(l.deadline) {
		l.setDeadline(next)
	}
	l.mu.Unlock()

	extended, err := l.locker.Extend(ctx, l.key, l.token, ttl)

	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err != nil:
		if !errors.Is(err, ErrInvalidTTL) && (l.unsure == 0 || ttl < l.unsure) {
			l.unsure = ttl
		}
		return l.wrap("extend", err)
	case !extended:
		if l.state == held {
			l.lose(refused)
		}
		return l.wrap("extend", ErrNotHeld)
	case !l.isHeld(): // the reply came after the deadline, or after an Unlock
		return l.wrap("extend", ErrNotHeld)
	}
	if l.unsure > 0 && l.unsure < ttl {
		next = next.Add(l.unsure - ttl)
	}
	l.setDeadline(next)
	l.ttl = ttl
	return nil
}

// Unlock releases the lock. It works when ctx has ended, so that it can be deferred: it keeps ctx's values
// but not its cancellation, and takes 5 seconds at most; where the client takes longer to give up a request,
// one I/O timeout of the client more.
//
// Unlock of a lost lease returns ErrNotHeld, joined by the backend's error if what may be left of the lock
// could not be released either; so does every Unlock after the first one that got an answer. An error that
// is not ErrNotHeld means that the lock may or may not have been released: Unlock may be repeated, and
// otherwise the lock ends with its ttl.
func (l *Lease) Unlock(ctx context.Context) error {
	if l == nil || l.locker == nil {
		return noLease("unlock")
	}
	l.mu.Lock()
	l.isHeld() // notices a deadline that has just passed
	before := l.state
	switch before {
	case releasing, done:
		l.mu.Unlock()
		return l.wrap("unlock", ErrNotHeld)
	case refused:
		l.state = done
	default:
		l.state = releasing
	}
	l.stopTimers()
	var extending chan struct{}
	if l.keep != nil && l.keep.ended != nil {
		extending = l.keep.ended
		l.keep.cancel()
	}
	l.mu.Unlock()

	g := newGrace(ctx, unlockTimeout)
	defer g.cancel()
	if extending != nil {
		select {
		case <-extending:
		case <-g.Done():
		}
	}
	if before == refused {
		return l.wrap("unlock", ErrNotHeld)
	}
	released, err := l.locker.Release(g, l.key, l.token)

	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = done
	switch {
	case before == expired: // the caller must know, even where the backend kept the lock that long
		if err != nil {
			return l.wrap("unlock", fmt.Errorf("%w; %w", ErrNotHeld, err))
		}
		return l.wrap("unlock", ErrNotHeld)
	case err != nil:
		l.state = unknown
		return l.wrap("unlock", err)
	case !released && before == held:
		return l.wrap("unlock", ErrNotHeld)
	}
	return nil // released now, or by an earlier Unlock whose reply was lost
}

// Fence returns a fencing number: greater than every number minted for this key before, by anyone. Give it
// to the resource that the lock protects, and let that refuse a number smaller than it has seen. It is a
// request of its own and every call mints another number, so one call a lease is what most need. The order
// lasts as long as the backend's data: see the adapter's documentation for what a restart does to it.
//
// The error is ErrNotHeld when the lease was lost, which it then stays, [errors.ErrUnsupported] where the
// backend mints none, or what the backend or ctx says.
func (l *Lease) Fence(ctx context.Context) (uint64, error) {
	if l == nil || l.locker == nil {
		return 0, noLease("fence")
	}
	f, ok := l.locker.(Fencer)
	if !ok {
		return 0, l.wrap("fence", errors.ErrUnsupported)
	}
	l.mu.Lock()
	isHeld := l.isHeld()
	l.mu.Unlock()
	if !isHeld {
		return 0, l.wrap("fence", ErrNotHeld)
	}
	n, ok, err := f.Fence(ctx, l.key, l.token)
	switch {
	case err != nil:
		return 0, l.wrap("fence", err)
	case !ok:
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.state == held {
			l.lose(refused)
		}
		return 0, l.wrap("fence", ErrNotHeld)
	}
	return n, nil
}

// Detach stops the keep-alive and lets go of the lock without releasing it: from now on it belongs to
// whoever has the token, who takes it over with [Resume] before the deadline. An extension that is under
// way, a keep-alive's or an Extend of another goroutine, is waited for, so that it cannot arrive after the
// new owner's. The lease holds nothing any more.
func (l *Lease) Detach() {
	if l == nil || l.locker == nil {
		return
	}
	l.mu.Lock()
	l.state = done
	l.stopTimers()
	turn := l.turn
	l.mu.Unlock()
	if turn != nil { // none begins any more, so this is the end of the last one
		turn <- struct{}{}
		<-turn
	}
}

// isHeld says whether the lease is held, and notices a deadline that has passed. It needs l.mu.
func (l *Lease) isHeld() bool {
	if l.state == held && !time.Now().Before(l.deadline) {
		l.lose(expired)
	}
	return l.state == held
}

// lose marks a held lease as lost and tells whoever wants to know. It needs l.mu.
func (l *Lease) lose(how leaseState) {
	l.state, l.isLost = how, true
	l.stopTimers()
	if l.lost != nil {
		close(l.lost)
	}
	if l.onLost != nil {
		l.onLost()
	}
}

// callWhenLost calls f, which must not block, when the lease is lost.
func (l *Lease) callWhenLost(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.onLost = f
	if l.isLost {
		f()
	} else {
		l.watchDeadline()
	}
}

// watchDeadline has the deadline noticed when it passes. It needs l.mu.
func (l *Lease) watchDeadline() {
	if l.timer != nil || l.state != held {
		return
	}
	l.timer = time.AfterFunc(time.Until(l.deadline), func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.isHeld() { // the deadline was moved while this was about to run
			l.timer.Reset(time.Until(l.deadline))
		}
	})
}

// stopTimers is for a lease that is no longer held. It needs l.mu.
func (l *Lease) stopTimers() {
	if l.timer != nil {
		l.timer.Stop()
	}
	if l.keep != nil {
		l.keep.timer.Stop()
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
