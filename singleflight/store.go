package singleflight

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/lazyctx"
	"github.com/golockers/locker/singleflight/slots"
)

// This file has the step that stores a value, or publishes a failure (outcome.go), and then has the lock released.

// storing is how a value goes into the cache.
type storing uint8

const (
	set           storing = iota // replacing what may be there
	add                          // only if there is none
	addIfPossible                // the same, but a cache that cannot add replaces
	put                          // only if nothing was stored or deleted since the load began, as the cache knows
	fail                         // nothing, but publish the failure
	dont
)

// afterReadError returns how to store a value that was loaded because the cache could not be
// read. If only the entry is damaged, storing repairs it. A cache that does not answer is not
// asked.
func afterReadError(err error) storing {
	if isNoAnswer(err) {
		return dont
	}
	return set
}

// storingNow returns how to store a value, given how it was meant to be stored before the source
// was called. held is false if it was loaded under a lock that is lost.
func (l *Loader[V]) storingNow(how storing, held bool) storing {
	if !held && how == set {
		how = add // a successor may have stored something newer
	}
	_, canAdd := l.cache.(Adder[V])
	switch {
	case how == addIfPossible && canAdd:
		return add
	case how == addIfPossible:
		return set
	case how == add && !canAdd:
		return dont
	}
	return how
}

// conclude stores the value and then releases the lock, so that a process that the release wakes
// finds the value. A request that the cache does not return from in time is left behind: the lock
// is then released, and this process stores nothing more for the key until the request returns or
// MaxHold has passed.
func (l *Loader[V]) conclude(ctx context.Context, s *store[V]) {
	end := sync.OnceFunc(func() { l.lifetime.end(nil) }) // Close does not wait for a request that was left behind
	defer end()
	var released atomic.Bool
	release := func() { // the first of its callers does it; the other does not wait for that
		if s.lease == nil {
			return
		}
		l.lifetime.follow() // before the other one ends
		defer l.lifetime.end(nil)
		if released.CompareAndSwap(false, true) {
			l.unlock(ctx, s.lease)
		}
	}
	defer release()
	defer s.member.leave()
	switch s.how {
	case dont:
		return
	case fail:
		defer time.AfterFunc(l.backendTimeout, func() { release(); end() }).Stop()
		l.publish(ctx, s)
		return
	}
	defer func() {
		l.endStore(s)
		close(s.done)
	}()
	defer time.AfterFunc(max(l.maxHold, l.backendTimeout), func() { l.endStore(s) }).Stop()
	began := time.Now()
	defer time.AfterFunc(l.backendTimeout, func() {
		l.mu.Lock()
		s.served = false
		l.mu.Unlock()
		err := &noAnswerError{"not stored in time", context.DeadlineExceeded}
		l.cacheBreaker.trip(s.key, time.Now(), err)
		l.storeFailed(ctx, s, began, err)
		release()
		end()
	}).Stop()
	l.send(ctx, s, began)
}

// endStore takes s off its key's work, when it has returned or is given up, whichever comes first.
func (l *Loader[V]) endStore(s *store[V]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.work.store != s {
		return
	}
	s.served, s.work.store = false, nil
	l.stores.Add(-1)
	l.endLocked(s.key, s.work)
}

// send calls Set or Add. It begins while the lock is held, and its context ends when the lock may
// end.
func (l *Loader[V]) send(ctx context.Context, s *store[V], began time.Time) {
	deadline, cutOff := began.Add(l.backendTimeout), false
	if s.lease != nil && s.how == set {
		if end := s.lease.Deadline(); end.Before(deadline) {
			deadline, cutOff = end, true
		}
	}
	setCtx := lazyctx.WithoutCancel(ctx, deadline)
	defer setCtx.Cancel()
	if setCtx.Err() != nil {
		l.storeFailed(ctx, s, began, locker.ErrNotHeld)
		return
	}
	stored := true
	err := recovered(s.key, func() (err error) {
		switch s.how {
		case put:
			slot := &slots.Slot[V]{Key: l.name(s.key), Version: s.version, Value: s.v, TTL: l.slotTTL}
			err = l.put(setCtx, s, slot)
			stored = slot.Stored
		case add:
			stored, err = l.cache.(Adder[V]).Add(setCtx, l.name(s.key), s.v)
		default:
			err = l.cache.Set(setCtx, l.name(s.key), s.v)
		}
		return err
	})
	if err == nil {
		l.cacheBreaker.succeeded(s.key, began)
		l.unstored.clear(s.key)
		if stored && s.outdated != 0 {
			l.outdated.remove(s.key, s.outdated)
		}
		return
	}
	l.storeFailed(ctx, s, began, err)
	if cutOff && setCtx.Err() != nil {
		return
	}
	if !isNoAnswer(l.cacheBreaker.failed(setCtx, s.key, began, err)) {
		l.unstored.set(s.key, time.Now().Add(l.outagePause))
	}
}

// put ends the load of s in the cache.
func (l *Loader[V]) put(ctx context.Context, s *store[V], slot *slots.Slot[V]) error {
	return recovered(s.key, func() error {
		err := s.member.put(slot, func(all ...*slots.Slot[V]) error { return l.keeper.Put(ctx, all...) })
		if err != nil {
			return err
		}
		return slot.Err
	})
}

func (l *Loader[V]) storeFailed(ctx context.Context, s *store[V], began time.Time, err error) {
	if s.reported.CompareAndSwap(false, true) {
		l.observeWork(ctx, StoreFailed, s.key, began, err)
	}
}
