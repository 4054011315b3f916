package singleflight

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/golockers/locker"
)

var (
	_ locker.Watcher = (*Locker)(nil)
	_ locker.Waiter  = (*Locker)(nil)
	_ locker.Fencer  = (*Locker)(nil)
)

const (
	defaultMaxPasses = 100_000
	defaultMaxTenure = 50 * time.Millisecond
)

// Locker lines up this process's contenders for a key, lets only the first reach the wrapped Locker, and
// hands the held lock on inside the process. With many goroutines of a process after the same lock that
// saves most of the requests to the backend. It is first come, first served among this process's waiters
// ([locker.Lock] and [locker.Do]; each process has its turn, too, see [WithMaxTenure]), and it works over
// every Locker, be it a Waiter, a Watcher or neither. The idea is lock cohorting (Dice, Marathe and Shavit,
// PPoPP 2012).
//
// A caller that finds nobody else waiting for the key holds the wrapped lock itself, under its own token
// and for exactly its ttl. When several wait, the Locker takes the wrapped lock under a private token, for
// their ttl and MaxTenure more, and grants it to one after the other; that is a cohort tenure. A lease that was
// granted in one can be extended and released through this Locker alone: elsewhere its token holds nothing,
// so [locker.Resume] in another process says [locker.ErrNotHeld]. A process that dies in a cohort tenure
// blocks others for up to ttl + MaxTenure.
//
// An attempt that does not wait ([locker.TryLock]) is refused without a request while others of this
// process wait for the key or hand its lock on.
type Locker struct {
	inner  locker.Locker
	probed locker.Locker // inner, for the drivers
	lockerOptions

	mu    sync.Mutex
	lines map[string]*line  // a key has one while somebody waits or drives, or a cohort tenure lasts
	own   map[owner]ownHold // what is, or may be, held on the backend other than by a cohort tenure
}

// owner is a token that was given to the Locker for a key.
type owner struct{ key, token string }

// ownHold is what an owner may hold on the backend: under its own token, in a solo tenure, or under the
// private token of a cohort tenure whose release had an unknown outcome.
type ownHold struct {
	expires time.Time
	private string // empty in a solo tenure
}

// LockerOption adjusts [NewLocker].
type LockerOption func(*lockerOptions)

type lockerOptions struct {
	maxPasses int
	maxTenure time.Duration
}

// WithMaxPasses limits how many times in a row the lock is handed on inside this process before other
// processes get their turn; the default is 100,000, which leaves it to [WithMaxTenure]. With 0 or less it
// is never handed on.
func WithMaxPasses(n int) LockerOption { return func(o *lockerOptions) { o.maxPasses = max(n, 0) } }

// WithMaxTenure limits for how long after taking the lock this process hands it on inside; the last holder
// keeps it for as long as its ttl allows. Other processes then get their turn. The default is 50 ms. Longer
// saves requests and costs other processes latency; a process that dies may block others for this long
// more than its ttl. With 0 or less the lock is never handed on.
func WithMaxTenure(d time.Duration) LockerOption {
	return func(o *lockerOptions) { o.maxTenure = max(d, 0) }
}

// NewLocker returns a Locker over l. It needs no closing. With a nil l every operation fails.
func NewLocker(l locker.Locker, opts ...LockerOption) *Locker {
	s := &Locker{
		inner:         l,
		lockerOptions: lockerOptions{maxPasses: defaultMaxPasses, maxTenure: defaultMaxTenure},
		lines:         make(map[string]*line),
		own:           make(map[owner]ownHold),
	}
	s.probed = probe{l, s}
	for _, opt := range opts {
		opt(&s.lockerOptions)
	}
	return s
}

// Acquire makes one attempt, on the backend if nobody of this process waits for key or hands its lock on,
// and otherwise it is refused without a request. Errors are the wrapped Locker's.
func (l *Locker) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if err := l.check(ctx, "acquire", key); err != nil {
		return false, err
	}
	o := owner{key, token}
	l.mu.Lock()
	ln := l.lines[key]
	held, mine := l.owned(o)
	switch {
	case ln.heldBy(token, time.Now()):
		defer l.mu.Unlock()
		return l.extendHolder(ctx, ln, token, ttl)
	case held.private != "":
		l.mu.Unlock()
		return false, l.fail("acquire", key, errors.New("the token's release is still to be confirmed"))
	case ln.busy() && !mine:
		l.mu.Unlock()
		return false, nil
	}
	l.remember(o, ttl)
	l.mu.Unlock()

	acquired, err := l.inner.Acquire(ctx, key, token, ttl)
	if err == nil && !acquired {
		l.forget(o)
	}
	return acquired, err
}

// Extend replaces the remaining time of a lock that token holds. In a cohort tenure that takes a request
// only when the backend's lock would end sooner. Errors are the wrapped Locker's.
func (l *Locker) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if err := l.check(ctx, "extend", key); err != nil {
		return false, err
	}
	l.mu.Lock()
	ln := l.lines[key]
	if ln.heldBy(token, time.Now()) {
		defer l.mu.Unlock()
		return l.extendHolder(ctx, ln, token, ttl)
	}
	o := owner{key, token}
	switch held, mine := l.owned(o); {
	case held.private != "":
		l.mu.Unlock()
		return false, nil
	case mine:
		l.remember(o, ttl)
	}
	l.mu.Unlock()

	extended, err := l.inner.Extend(ctx, key, token, ttl)
	if err == nil && !extended {
		l.forget(o)
	}
	return extended, err
}

// Release frees a lock that token holds: in a cohort tenure it passes to the next of this process's
// waiters, usually without a request. Errors are the wrapped Locker's; after one Release may be repeated.
func (l *Locker) Release(ctx context.Context, key, token string) (bool, error) {
	if err := l.check(ctx, "release", key); err != nil {
		return false, err
	}
	l.mu.Lock()
	ln := l.lines[key]
	if ln.heldBy(token, time.Now()) {
		defer l.mu.Unlock()
		return l.handOn(ctx, ln, token)
	}
	o := owner{key, token}
	held := l.own[o]
	l.mu.Unlock()

	if held.private != "" {
		token = held.private
	}
	released, err := l.inner.Release(ctx, key, token)
	if err == nil {
		l.forget(o)
	}
	return released, err
}

// Wait takes the lock of key, in line behind this process's earlier waiters; the first of them waits on the
// wrapped Locker by the best way that it has. When the backend fails, everybody in line has its error.
func (l *Locker) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	if err := l.check(ctx, "wait", key); err != nil {
		return time.Time{}, err
	}
	o := owner{key, token}
	l.mu.Lock()
	ln := l.lines[key]
	_, mine := l.owned(o)
	if mine || ln.heldBy(token, time.Now()) { // it may hold the lock already
		l.mu.Unlock()
		start := time.Now()
		acquired, err := l.Acquire(ctx, key, token, ttl)
		if err != nil {
			return time.Time{}, err
		}
		if acquired {
			return start.Add(ttl), nil
		}
		l.mu.Lock()
		ln = l.lines[key]
	}
	if ln == nil {
		ln = &line{key: key}
		l.lines[key] = ln
		l.mu.Unlock()
		return l.driveSolo(ctx, ln, token, ttl)
	}
	w := &waiter{token: token, ttl: ttl, verdict: make(chan verdict, 1)}
	ln.push(w)
	l.mu.Unlock()

	select {
	case v := <-w.verdict:
		switch {
		case v == failed:
			return time.Time{}, w.err
		case ctx.Err() != nil: // a cancelled waiter takes nothing
		case v == granted:
			return w.deadline, nil
		case v == drive:
			return l.driveSolo(ctx, ln, token, ttl)
		}
	case <-ctx.Done():
	}
	l.leave(ln, w)
	return time.Time{}, l.fail("wait", key, fmt.Errorf("%w: %w", ctx.Err(), locker.ErrHeld))
}

// Watch is the wrapped Locker's. The lock being handed on inside this process wakes nobody: it does not
// become free.
func (l *Locker) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	if err := l.check(ctx, "watch", key); err != nil {
		return nil, err
	}
	if w, ok := l.inner.(locker.Watcher); ok {
		return w.Watch(ctx, key)
	}
	return nil, l.fail("watch", key, errors.ErrUnsupported)
}

// Fence is the wrapped Locker's.
func (l *Locker) Fence(ctx context.Context, key, token string) (uint64, bool, error) {
	if err := l.check(ctx, "fence", key); err != nil {
		return 0, false, err
	}
	f, ok := l.inner.(locker.Fencer)
	if !ok {
		return 0, false, l.fail("fence", key, errors.ErrUnsupported)
	}
	l.mu.Lock()
	ln := l.lines[key]
	if !ln.heldBy(token, time.Now()) {
		l.mu.Unlock()
		return f.Fence(ctx, key, token)
	}
	t := ln.tenure
	l.mu.Unlock()
	n, ok, err := f.Fence(ctx, key, t.lease.Token())
	l.mu.Lock()
	defer l.mu.Unlock()
	// The number counts only if the token still holds the lock now: a later holder mints later.
	if err == nil && (ln.tenure != t || !ln.heldBy(token, time.Now())) {
		return 0, false, nil
	}
	if err == nil && !ok {
		l.lost(ln, t)
	}
	return n, ok, err
}

// owned is what o holds, or may hold, on the backend. It needs l.mu.
func (l *Locker) owned(o owner) (held ownHold, ok bool) {
	held, ok = l.own[o]
	if ok && !time.Now().Before(held.expires) {
		delete(l.own, o)
		return ownHold{}, false
	}
	return held, ok
}

// remember notes, before the request, what o may come to hold on the backend. It needs l.mu. It also looks
// at two entries at random and drops what has expired, so that holders who vanish leave nothing for long.
func (l *Locker) remember(o owner, ttl time.Duration) {
	now := time.Now()
	looked := 0
	for other, h := range l.own {
		if !now.Before(h.expires) {
			delete(l.own, other)
		}
		if looked++; looked == 2 {
			break
		}
	}
	l.own[o] = ownHold{expires: now.Add(ttl)}
}

func (l *Locker) forget(o owner) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.own, o)
}

func (l *Locker) check(ctx context.Context, op, key string) error {
	switch {
	case l == nil || l.inner == nil:
		return l.fail(op, key, errors.New("nil Locker"))
	case ctx.Err() != nil:
		return l.fail(op, key, ctx.Err())
	}
	return nil
}

func (l *Locker) fail(op, key string, err error) error {
	return fmt.Errorf("singleflight: %s %q: %w", op, key, err)
}

// addCapped is a + b, or the largest Duration.
func addCapped(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
