// Package cohort lets the goroutines of a process share one place among the contenders for a lock.
//
// A [Locker] wraps any other locker. It keeps a queue for each key, sends one contender to the
// backend for all the waiters of this process, and hands the lock from one to the next without a
// request. Many goroutines that contend for a lock then cost the backend hardly more than one.
// The idea is lock cohorting (Dice, Marathe and Shavit, PPoPP 2012).
//
//	locks := cohort.New(redisv9.New(client))
//	err := locker.Do(ctx, locks, "invoice/42", 30*time.Second, work)
//
// Use it where many goroutines of each process contend for the same keys, or with [WithLinger]
// where a process takes the same locks again and again. Where each caller could use the result of
// another, package singleflight saves the work itself.
//
// To observe the locks of the callers, observe the Locker that New returns; [locker.Observed] under
// it sees only the locks of the process on the backend:
//
//	locks := cohort.New(redisv9.New(client), cohort.WithLinger(100*time.Millisecond))
//	defer locks.Close()
//	l := locker.Observed(locks, observer) // for locker.Do and the others
package cohort

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/maphash"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/lazyctx"
	"github.com/golockers/locker/internal/misuse"
	"github.com/golockers/locker/internal/owner"
	"github.com/golockers/locker/internal/waithook"
)

var (
	_ locker.Watcher   = (*Locker)(nil)
	_ locker.Waiter    = (*Locker)(nil)
	_ locker.Fencer    = (*Locker)(nil)
	_ locker.Inspector = (*Locker)(nil)
	_ locker.Lister    = (*Locker)(nil)
)

// Locker is a [locker.Locker] over another one. It is first come, first served among the waiters
// of this process, and each process gets its turn: see [WithMaxTenure]. It works over every
// Locker: a Waiter, a Watcher or neither.
//
// The wrapped lock is always held under a private token. A lease can therefore be extended,
// released and resumed only through the Locker that granted it: [locker.Resume] in another
// process returns [locker.ErrNotHeld]. A caller that finds no others waiting takes the wrapped
// lock for exactly its ttl. If others wait, the lock is taken for MaxTenure longer, so a process
// that dies blocks others for up to ttl + MaxTenure.
//
// While another goroutine of this process holds the lock or waits for it, [locker.TryLock] returns
// [locker.ErrHeld] without a request.
//
// A key costs memory while its lock is held, is waited for or lingers, and for up to five seconds
// longer if its holder vanishes. After a request without an answer the Locker remembers the
// caller's token until the lock must have expired, so that a Release with it reaches the backend.
// It remembers at least 256 such tokens and at most 8,192. Beyond that it forgets the oldest. As
// long as a forgotten lock may last, operations with unknown tokens return an error.
type Locker struct {
	inner  locker.Locker
	behind locker.Locker // inner, or what it observes: see observed
	options
	invalid error // of the options: every operation returns it

	id      string        // part of every private token, and no other Locker's
	tenures atomic.Uint64 // numbers the private tokens
	ears    ears
	closed  atomic.Bool // locks no longer linger

	unreleased unreleased

	seed   maphash.Seed
	shards [shardCount]shard
}

// New returns a Locker over l. Only a Locker with [WithLinger] has to be closed. If l is nil, every
// operation fails.
func New(l locker.Locker, opts ...Option) *Locker {
	c := &Locker{
		inner:   l,
		behind:  l,
		options: options{maxHandoffs: defaultMaxHandoffs, maxTenure: defaultMaxTenure},
		id:      rand.Text(),
		seed:    maphash.MakeSeed(),
	}
	if o, ok := l.(observed); ok && o.Behind() != nil {
		c.behind = o.Behind()
	}
	for _, opt := range opts {
		opt(&c.options)
	}
	if err := owner.Check(c.owner); err != nil {
		c.invalid = fmt.Errorf("%w: %w", locker.ErrInvalidToken, err)
	}
	return c
}

// Acquire makes one attempt. It is refused without a request while another caller of this process
// holds the lock or waits for it. While the lock is being released, it waits for the reply first.
func (l *Locker) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if err := l.check(ctx); err != nil {
		return false, err
	}
	_, acquired, err := l.acquire(ctx, key, token, ttl)
	return acquired, err
}

func (l *Locker) acquire(ctx context.Context, key, token string, ttl time.Duration) (time.Time, bool, error) {
	s := l.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		r := s.record(l, key)
		t := r.find(token, time.Now())
		switch {
		case t == nil && r.lingering() != nil:
			deadline, ok, err := l.resumeLocked(ctx, r.tenure, token, ttl, false)
			if ok || err != nil {
				return deadline, ok, err
			}
			continue
		case t == nil && r.parting != nil:
			if err := s.awaitPartingLocked(ctx, r.parting); err != nil {
				return time.Time{}, false, err
			}
			continue
		case t == nil && r.onlyGivesUp():
			if err := r.awaitGiveUpLocked(ctx); err != nil {
				return time.Time{}, false, err
			}
			continue
		case t == nil && r.busy():
			return time.Time{}, false, nil
		case t == nil:
			t = l.newTenure(ctx, r, token)
			t.holder = token
			r.claim(t)
		case t.requesting:
			if err := s.awaitTurnLocked(ctx, t); err != nil {
				return time.Time{}, false, err
			}
			continue
		case t.releasing:
			return time.Time{}, false, errReleasing
		}
		acquired, err := l.requestLocked(ctx, t, true, ttl)
		if err != nil || !acquired {
			return time.Time{}, false, err
		}
		return t.expires, true, nil
	}
}

// Extend replaces the remaining time of a lock that token holds. It takes no request when the
// backend's lock lasts long enough already. After an extension without an answer a longer one is
// an error until the lock is released: the first may yet arrive and shorten the lock.
func (l *Locker) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if err := l.check(ctx); err != nil {
		return false, err
	}
	s := l.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		now := time.Now()
		t := s.find(key, token, now)
		switch {
		case t == nil:
			return false, s.unknown(now)
		case t.lasts(now, ttl, l.slack()):
			t.expires = now.Add(ttl)
			l.watch(t, now)
			return true, nil
		case t.requesting:
			if err := s.awaitTurnLocked(ctx, t); err != nil {
				return false, err
			}
			continue
		}
		return l.requestLocked(ctx, t, false, ttl)
	}
}

// Release frees a lock that token holds, or passes it to the next of this process's waiters,
// usually without a request. After an error Release may be repeated. The token may also be one
// that Inspect has reported for a lock of another process, which is how [locker.Break] works.
func (l *Locker) Release(ctx context.Context, key, token string) (bool, error) {
	if err := l.isUsable(); err != nil {
		return false, err
	}
	now := time.Now() // the only reading: what is granted may end a little earlier, but not later
	if err := lazyctx.ErrAt(ctx, now); err != nil {
		return false, err
	}
	s := l.shard(key)
	s.mu.Lock()
	t := s.find(key, token, now)
	switch {
	case t == nil && l.isOthers(token):
		s.mu.Unlock()
		return l.inner.Release(ctx, key, token)
	case t == nil:
		defer s.mu.Unlock()
		return false, s.unknown(now)
	case t == t.record.tenure:
		defer s.mu.Unlock()
		return l.handoffLocked(ctx, t, token, now)
	}
	s.mu.Unlock()

	released, err := l.inner.Release(ctx, key, t.token)

	s.mu.Lock()
	defer s.mu.Unlock()
	// An Acquire without an answer may yet arrive and take the lock, so it has to be released
	// again then.
	if err == nil && (released || t.releasing) {
		t.record.forget(t)
	}
	return released, err
}

// Wait takes the lock of key, behind this process's earlier waiters. The first of them waits on the
// wrapped Locker in the best way that it offers. If the backend fails, all of them get its error.
func (l *Locker) Wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	if err := l.check(ctx); err != nil {
		return time.Time{}, err
	}
	s := l.shard(key)
	s.mu.Lock()
	r := s.record(l, key)
	if r.find(token, time.Time{}) != nil { // it holds the lock, or may hold it, or has held it
		s.mu.Unlock()
		if deadline, acquired, err := l.acquire(ctx, key, token, ttl); acquired || err != nil {
			return deadline, err
		}
		s.mu.Lock()
		r = s.record(l, key)
	}
	for r.lingering() != nil {
		deadline, ok, err := l.resumeOrUnlock(ctx, r.tenure, token, ttl)
		if ok || err != nil {
			s.mu.Unlock()
			return deadline, err
		}
		r = s.record(l, key)
	}
	if r.first == nil && r.idle() {
		r.driving, r.rest = true, r.nextRest()
		s.mu.Unlock()
		return l.driveInline(ctx, r, token, ttl)
	}
	w := r.newWaiter(ctx, token, ttl)
	r.push(w)
	if t := r.tenure; t != nil && t.holder != "" && t.timer == nil {
		l.watch(t, time.Now())
	}
	s.mu.Unlock()
	waithook.Call(ctx)

	if w.awaitTold() {
		deadline, err := w.deadline, w.err
		switch {
		case err != nil:
			return time.Time{}, err
		case ctx.Err() == nil: // a canceled waiter takes nothing
			w.over.Store(true) // from here on another Wait may use it
			return deadline, nil
		}
	}
	l.leave(r, w)
	return time.Time{}, leftQueue(ctx)
}

// Watch calls the wrapped Locker's Watch. A handoff inside this process wakes no watcher, since the
// lock does not become free.
func (l *Locker) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	if err := l.check(ctx); err != nil {
		return nil, err
	}
	if w, ok := l.inner.(locker.Watcher); ok {
		return w.Watch(ctx, key)
	}
	return nil, errors.ErrUnsupported
}

// Fence calls the wrapped Locker's Fence.
func (l *Locker) Fence(ctx context.Context, key, token string) (uint64, bool, error) {
	if err := l.check(ctx); err != nil {
		return 0, false, err
	}
	f, ok := l.inner.(locker.Fencer)
	if !ok {
		return 0, false, errors.ErrUnsupported
	}
	s := l.shard(key)
	s.mu.Lock()
	now := time.Now()
	t := s.find(key, token, now)
	if t == nil {
		defer s.mu.Unlock()
		return 0, false, s.unknown(now)
	}
	held := t == t.record.tenure
	s.mu.Unlock()

	n, ok, err := f.Fence(ctx, key, t.token)
	if err != nil || !held {
		return n, ok, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// The number counts only if token still holds the lock now: a later holder mints later.
	holds := t.record.tenure == t && t.heldBy(token, time.Now())
	if !ok {
		t.record.lose(t)
	}
	return n, ok && holds, nil
}

var (
	errReleasing = errors.New("cohort: a release with this token has not been answered")
	errForgotten = errors.New("cohort: too many unanswered requests to know what this token holds")
	errShortened = errors.New("cohort: an earlier request with a shorter ttl has not been answered and may yet arrive")
	errOvertaken = errors.New("cohort: the lock expired or was released before the answer")
	errNoReturn  = errors.New("cohort: the wrapped Locker did not return")
)

func (l *Locker) check(ctx context.Context) error {
	if err := l.isUsable(); err != nil {
		return err
	}
	return ctx.Err()
}

var errNilLocker = misuse.New("cohort: nil Locker")

func (l *Locker) isUsable() error {
	if l == nil || l.inner == nil {
		return errNilLocker
	}
	return l.invalid
}

// newTenure returns a tenure for caller, whose lock has not been requested yet.
func (l *Locker) newTenure(values context.Context, r *record, caller string) *tenure {
	mark, e := l.mark(r.key)
	return &tenure{record: r, token: l.privateToken(caller, mark), values: values, ear: e}
}

// privateToken returns a token for a tenure that is taken for caller. It begins with the label,
// or with the caller's token, so that the backend's own tools show which caller took the lock. A
// mark shows that the lock may linger: see package demand.
func (l *Locker) privateToken(caller, mark string) string {
	b := make([]byte, 0, 96+len(mark))
	if l.owner != "" {
		b = append(append(b, l.owner...), '/')
	} else {
		b = append(b, caller[:min(len(caller), owner.MaxLabel)]...)
	}
	if mark != "" {
		b = append(append(b, "~@"...), mark...)
	}
	b = append(b, '~')
	b = append(b, l.id...)
	b = strconv.AppendUint(b, l.tenures.Add(1), 36)
	return string(b)
}
