package memory

import (
	"math"
	"sync"
	"time"
)

// A sweep looks at sweepSize locks, and one in sweepEvery operations sweeps. That is two locks
// for each operation, which adds no more than one, so sweeping keeps up. Every shard has a turn
// in 2*shardCount*sweepEvery operations.
const (
	shardCount = 64
	sweepEvery = 16
	sweepSize  = 32
)

// A shard that has had more than keepSize keys gives up its map when it is empty, since a map never
// shrinks.
const keepSize = 1024

// Times before and after all others: the expiry of a lock that was released, and the alarm of a
// timer that does not run.
const (
	released time.Duration = math.MinInt64
	idle     time.Duration = math.MaxInt64 // also the expiry of a lock with the longest ttl, which needs no timer
)

// shard holds the locks of some keys. mu guards all of it, entries included.
type shard struct {
	mu    sync.Mutex
	locks map[string]*entry
	slots []slot // one for each entry, in no order
	hand  int    // the slot that a sweep looks at next
	spare *entry // a removed entry, to be used again
	ops   uint32
	peak  int      // the most keys that locks has had
	_     [56]byte // shards do not share a cache line
}

// slot lets a sweep, which mostly meets locks that have not expired, read memory in order.
type slot struct {
	expires time.Duration // that of e
	e       *entry
}

// entry is a lock with its waiters and watchers. It exists while the lock is held, waited for or
// watched, or has expired unnoticed.
//
// A lock that others wait for is always held, or has just expired: a call that frees it or sees it
// expired grants it to the next in the queue before letting go of the mutex.
type entry struct {
	key     string
	token   string
	expires time.Duration // the lock is held by token before this moment; or released
	pos     int           // in shard.slots

	head, tail *waiter       // the queue
	timer      *time.Timer   // passes an expired lock on; runs only while there is a queue
	alarm      time.Duration // when timer goes off, never after expires while there is a queue; or idle

	watchers []*watcher
}

// waiter is a place in a queue.
type waiter struct {
	token      string
	ttl        time.Duration
	owners     *owners
	prev, next *waiter
	granted    chan struct{} // closed when the lock is granted
	served     bool          // the lock has been granted
	expires    time.Duration // of the grant
}

type watcher struct {
	c   chan struct{}
	pos int // in entry.watchers
}

// heldBy reports whether token holds the lock. A nil entry is a free lock.
func (e *entry) heldBy(token string, now time.Duration) bool {
	return e != nil && e.expires > now && e.token == token
}

// find returns the entry of key, or nil if there is none. It passes an expired lock to the next in
// the queue, so a lock that is not held has no queue.
func (s *shard) find(key string, now time.Duration) *entry {
	e := s.locks[key]
	if e != nil {
		s.grant(e, now)
	}
	return e
}

// take makes token the holder if no other token holds the lock of key, and reports whether it did.
func (s *shard) take(key, token string, ttl, now time.Duration) (*entry, bool) {
	e := s.find(key, now)
	switch {
	case e == nil:
		e = s.add(key)
	case e.expires > now && e.token != token:
		return e, false
	}
	s.hold(e, token, ttl, now)
	return e, true
}

// hold makes token the holder for ttl from now.
func (s *shard) hold(e *entry, token string, ttl, now time.Duration) {
	s.set(e, token, after(now, ttl))
	s.arm(e, now)
}

func (s *shard) set(e *entry, token string, expires time.Duration) {
	e.token, e.expires = token, expires
	s.slots[e.pos].expires = expires
}

// release frees the lock of e, which is held, for the next in the queue or the first to come.
func (s *shard) release(e *entry, now time.Duration) {
	s.set(e, "", released)
	s.grant(e, now)
	e.wake()
	s.tidy(e, now)
}

// grant gives the lock to the next in the queue unless it is held.
func (s *shard) grant(e *entry, now time.Duration) {
	w := e.head
	if w == nil || e.expires > now {
		return
	}
	e.remove(w)
	s.hold(e, w.token, w.ttl, now)
	w.served, w.expires = true, e.expires
	close(w.granted)
	if e.head != nil {
		w.owners.tell(e.key, w.token)
	}
}

// join puts w at the end of the queue of e, which is held.
func (s *shard) join(e *entry, w *waiter, now time.Duration) {
	w.prev = e.tail
	if e.tail == nil {
		e.head = w
	} else {
		e.tail.next = w
	}
	e.tail = w
	s.arm(e, now)
}

// leave takes back what w was given: its place in the queue, or the lock. A lock that has been
// extended since the grant is left alone, since another caller holds it by the same token.
func (s *shard) leave(key string, w *waiter, now time.Duration) {
	e := s.find(key, now)
	switch {
	case !w.served: // so it is in the queue, and another holds the lock
		e.remove(w)
	case e.heldBy(w.token, now) && e.expires == w.expires:
		s.release(e, now)
	}
}

// remove takes w out of the queue.
func (e *entry) remove(w *waiter) {
	if w.prev == nil {
		e.head = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		e.tail = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.prev, w.next = nil, nil
	if e.head == nil && e.timer != nil {
		e.timer.Stop()
		e.alarm = idle
	}
}

// arm makes sure that a lock with a queue is passed on when it expires. A timer that goes off too
// early is left alone, since it sets itself again: handing a busy lock on costs no timer.
func (s *shard) arm(e *entry, now time.Duration) {
	if e.head == nil || e.alarm <= e.expires {
		return
	}
	e.alarm = e.expires
	if d := e.expires - now; e.timer != nil {
		e.timer.Reset(d)
	} else {
		// It may run late, when the queue is gone, and even when the entry has another key. That is
		// harmless, since it does only what any operation might do.
		e.timer = time.AfterFunc(d, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if e.head != nil {
				e.alarm = idle
				now := clock()
				s.grant(e, now)
				s.arm(e, now)
			}
		})
	}
}

func (e *entry) watch(w *watcher) {
	w.pos = len(e.watchers)
	e.watchers = append(e.watchers, w)
}

func (e *entry) unwatch(w *watcher) {
	last := len(e.watchers) - 1
	e.watchers[w.pos] = e.watchers[last]
	e.watchers[w.pos].pos = w.pos
	e.watchers[last] = nil
	e.watchers = e.watchers[:last]
}

// wake wakes all watchers.
func (e *entry) wake() {
	for _, w := range e.watchers {
		select {
		case w.c <- struct{}{}:
		default: // it has one to read already
		}
	}
}

// add makes an entry for key, which has none: a free lock.
func (s *shard) add(key string) *entry {
	e := s.spare
	s.spare = nil
	if e == nil {
		e = new(entry)
	}
	e.key, e.expires, e.pos, e.alarm = key, released, len(s.slots), idle
	s.slots = append(s.slots, slot{released, e})
	if s.locks == nil {
		s.locks = make(map[string]*entry)
	}
	s.locks[key] = e
	s.peak = max(s.peak, len(s.locks))
	return e
}

// tidy removes e if it is no longer used, and reports whether it did. The last entry takes its
// slot, which a sweep may have passed already. An entry only ever moves toward the first slot, so
// a later sweep meets it.
func (s *shard) tidy(e *entry, now time.Duration) (removed bool) {
	if e.expires > now || e.head != nil || len(e.watchers) > 0 {
		return false
	}
	delete(s.locks, e.key)
	last := len(s.slots) - 1
	s.slots[e.pos] = s.slots[last]
	s.slots[e.pos].e.pos = e.pos
	s.slots[last] = slot{}
	s.slots = s.slots[:last]
	if last == 0 && s.peak > keepSize {
		s.locks, s.slots, s.peak = nil, nil, 0
	}
	*e = entry{}
	s.spare = e
	return true
}

// sweep looks at the next few entries and removes those that have expired.
func (s *shard) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.slots) == 0 {
		return
	}
	now := clock()
	for range min(sweepSize, len(s.slots)) {
		if s.hand >= len(s.slots) {
			s.hand = 0
		}
		next := s.slots[s.hand]
		if next.expires > now || !s.expire(next.e, now) {
			s.hand++ // otherwise another is in that slot now
		}
	}
}

// expire passes on or frees the lock of e, which is free or has expired, and reports whether it has
// removed e.
func (s *shard) expire(e *entry, now time.Duration) (removed bool) {
	s.grant(e, now)
	if e.expires != released && e.expires <= now {
		s.set(e, "", released)
		e.wake()
	}
	return s.tidy(e, now)
}
