package singleflight

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/golockers/locker"
)

// This file has the step that gives a value to who comes while it is being stored, and decides whether
// and how it is.

// store is what follows a load. While it is in progress, it belongs to its key's work.
type store[V any] struct {
	terms
	key    string
	member *member[V]
	work   *work[V]
	v      V

	failure  string      // to publish in place of v
	forgets  int         // of the work, when the source was called
	outdated uint64      // see outdated.when: a value that is stored makes its key up to date
	reported atomic.Bool // the observer knows that it failed

	done chan struct{} // closed at the end

	served bool // whether callers that come now are given v. Guarded by Loader.mu
}

// newStore returns what is to follow a load whose source is about to be called.
func (l *Loader[V]) newStore(key string, m *member[V], t terms) *store[V] {
	s := &store[V]{terms: t, key: key, member: m, outdated: l.outdated.when(key)}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.work = l.beginLocked(key)
	s.forgets = s.work.forgets
	return s
}

// give takes what the source returned: v, if hasValue is true, and otherwise err. It starts what is
// left to do.
func (l *Loader[V]) give(ctx context.Context, s *store[V], v V, hasValue bool, err error) {
	held := s.lease == nil || isHeld(s.lease)
	s.v, s.how = v, l.storingNow(s.how, held)
	if s.version != 0 {
		s.how = put
	}
	lost := hasValue && s.lease != nil && s.how == dont
	if f, _ := ctx.(*flight[V]); f != nil && !hasValue && s.lease != nil && s.version != 0 { // nobody waits for a refresh
		s.failure = l.failureOf(ctx, err)
	}
	l.mu.Lock()
	switch {
	case s.work.forgets != s.forgets || s.work.store != nil || l.lifetime.cut.Load():
		s.how = dont
	case s.failure != "":
		s.how = fail
		l.willPublish(s.key)
	case !hasValue:
		s.how = dont
	}
	if s.how == dont || s.how == fail {
		l.endLocked(s.key, s.work)
	} else { // from now on Forget waits for s, and callers get its value without a load if it is served
		s.served, s.done, s.work.store = held, make(chan struct{}), s
		l.stores.Add(1)
	}
	l.mu.Unlock()
	if lost {
		l.observeWork(ctx, StoreFailed, s.key, time.Now(), locker.ErrNotHeld)
	}
	if s.how == put || s.how == fail {
		s.member.keep()
	} else {
		s.member = nil
	}
	if s.how != dont || s.lease != nil {
		l.lifetime.follow()
		go l.conclude(ctx, s)
		runtime.Gosched() // so that the request to store goes out before the callers wake and compete with it
	}
}

// beingStored returns the value of key that was just loaded and is being stored, if there is one.
func (l *Loader[V]) beingStored(key string) (v V, ok bool) {
	if l.stores.Load() == 0 {
		return v, false
	}
	s := l.servedStore(key)
	if s == nil || s.lease != nil && !isHeld(s.lease) { // there may have been an Update elsewhere
		return v, false
	}
	return s.v, true
}

func (l *Loader[V]) servedStore(key string) *store[V] {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.work.get(key); w != nil && w.store != nil && w.store.served {
		return w.store
	}
	return nil
}
