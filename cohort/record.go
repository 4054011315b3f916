package cohort

import (
	"container/list"
	"context"
	"errors"
	"hash/maphash"
	"maps"
	"sync"
	"time"
)

const (
	shardCount = 32
	maxDoubts  = 256 // requests without an answer that a shard remembers
	sweepEvery = 5 * time.Second
	minPeak    = 64 // below this a map is not worth replacing
)

// shard has the records of a part of the keys. Its mutex guards everything in them and is never
// held during a request: a function that releases it in between has a name that ends in Locked.
type shard struct {
	mu       sync.Mutex
	records  map[string]*record
	peak     int  // the most records that the map has had: it does not shrink by itself
	sweeping bool // a timer for the next sweep is set
	lingers  lingers
	doubts   list.List // of *tenure, the oldest first
	forgot   time.Time // until then a tenure that was dropped from doubts may hold a lock

	_ [16]byte // keeps two shards' mutexes out of the same cache line
}

// record is what this process does for a key. It exists as long as any of that lasts, and as long
// as it exists the queue is served: by the holder of the tenure, by a drive, or by an Acquire
// under way, each of which calls settle when it ends.
type record struct {
	locker *Locker
	shard  *shard
	key    string

	queue
	tenure     *tenure // the lock is held and handed on under this one
	claims     *tenure // a list: they may hold the lock; see tenure.doubt
	acquiring  int     // Acquires of claims under way
	requesting int     // these, and all other Acquires and Extends under way
	givingUp   int     // Releases of tenures under way

	gaveUp chan struct{} // closed when givingUp is 0 again; nil if no caller waits for that

	wanted  bool     // another process wants the lock: see Wanted
	parting *parting // a lock that has lingered is being given up

	driving   bool               // a drive is under way
	abandon   context.CancelFunc // ends it; nil if a caller drives
	abandoned bool               // it was ended because no caller is waiting

	turns
}

func (l *Locker) shard(key string) *shard {
	return &l.shards[maphash.String(l.seed, key)%shardCount]
}

// record returns the record of key, creating it if necessary.
func (s *shard) record(l *Locker, key string) *record {
	r := s.records[key]
	if r != nil && r.tenure != nil && r.tenure.holder != "" && r.first == nil {
		r.expire(time.Now())
		r = s.records[key]
	}
	if r == nil {
		if s.records == nil {
			s.records = make(map[string]*record)
		}
		r = &record{locker: l, shard: s, key: key}
		s.records[key] = r
		s.peak = max(s.peak, len(s.records))
	}
	return r
}

// drop removes r, and replaces the map when little is left of what it once had.
func (s *shard) drop(r *record) {
	if s.records[r.key] != r {
		return
	}
	delete(s.records, r.key)
	if n := len(s.records); s.peak > minPeak && n < s.peak/8 {
		left := make(map[string]*record, n)
		maps.Copy(left, s.records)
		s.records, s.peak = left, n
	}
}

// find returns what token holds, or may hold.
func (s *shard) find(key, token string, now time.Time) *tenure {
	if r := s.records[key]; r != nil {
		return r.find(token, now)
	}
	return nil
}

// unknown is the error for a token that find does not know: nil, unless it may have been forgotten.
func (s *shard) unknown(now time.Time) error {
	if now.Before(s.forgot) {
		return errForgotten
	}
	return nil
}

// sweep drops the tenures that have expired and have no timer of their own.
func (s *shard) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweeping = false
	now := time.Now()
	for _, r := range s.records {
		r.expire(now)
		if t := r.lingering(); t != nil && !now.Before(t.until) {
			r.locker.partLater(t, "")
		}
		if t := r.tenure; t != nil && (t.timer == nil || t.lingering) { // the timer is for a holder
			s.sweepLater()
		}
	}
}

func (s *shard) sweepLater() {
	if !s.sweeping {
		s.sweeping = true
		time.AfterFunc(sweepEvery, s.sweep)
	}
}

func (r *record) find(token string, now time.Time) *tenure {
	if t := r.tenure; t != nil && t.heldBy(token, now) {
		return t
	}
	for t := r.claims; t != nil; t = t.next {
		if t.holder == token {
			return t
		}
	}
	return nil
}

// busy reports whether a caller of this process has the lock, waits for it, or hands it on.
func (r *record) busy() bool {
	return r.first != nil || r.tenure != nil || r.driving && !r.abandoned
}

// onlyGivesUp reports whether nothing but Releases of tenures is under way. Their watchers may have
// been woken already: an attempt that is refused now would miss that wake-up.
func (r *record) onlyGivesUp() bool {
	return r.givingUp > 0 && !r.busy()
}

// awaitGiveUpLocked waits until no Release of a tenure is under way. It releases the shard's mutex
// while it waits.
func (r *record) awaitGiveUpLocked(ctx context.Context) error {
	if r.gaveUp == nil {
		r.gaveUp = make(chan struct{})
	}
	gaveUp := r.gaveUp
	r.shard.mu.Unlock()
	defer r.shard.mu.Lock()
	select {
	case <-gaveUp:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// idle reports whether nothing is under way that will serve the queue.
func (r *record) idle() bool {
	return !r.driving && r.tenure == nil && r.givingUp == 0 && r.acquiring == 0
}

// settle is called whenever something that serves the queue has ended.
func (r *record) settle() {
	switch {
	case !r.idle():
	case r.first != nil:
		r.drive()
	case r.claims == nil && r.requesting == 0:
		r.shard.drop(r)
	}
}

// install makes t, which the backend holds until t.until, the tenure. It needs a t.holder or a
// waiter.
func (r *record) install(t *tenure) {
	if t.claimed {
		r.unclaim(t)
	}
	if r.tenure != nil { // the backend has lost that one, or else it would not have granted t
		r.dropTenure()
	}
	r.tenure = t
	if t.ear != nil {
		t.ear.tenures.Add(1)
	}
	if t.holder == "" {
		return
	}
	if r.first != nil || t.expires.Before(t.until) {
		r.locker.watch(t, time.Now())
	} else {
		r.shard.sweepLater()
	}
}

// dropTenure removes the record's tenure.
func (r *record) dropTenure() {
	t := r.tenure
	t.stopTimer()
	r.shard.lingers.remove(t)
	if t.ear != nil {
		t.ear.tenures.Add(-1)
	}
	r.tenure = nil
	r.dropSpares()
}

// lose ends a tenure that the backend no longer has a lock for, or whose time is up there.
func (r *record) lose(t *tenure) {
	if r.tenure == t {
		r.dropTenure()
		r.settle()
	}
}

// expire ends a tenure whose holder has vanished, and reports whether it did. It ends the tenure
// if no caller waits for the lock, the backend's lock has ended as well, and the holder is not
// extending it.
func (r *record) expire(now time.Time) bool {
	t := r.tenure
	if t == nil || t.holder == "" || t.requesting || r.first != nil || now.Before(t.until) {
		return false
	}
	r.lose(t)
	return true
}

// claim notes a tenure whose first request is about to be sent.
func (r *record) claim(t *tenure) {
	t.claimed = true
	t.next = r.claims
	r.claims = t
}

func (r *record) unclaim(t *tenure) {
	t.claimed = false
	if t.doubt != nil {
		r.shard.doubts.Remove(t.doubt)
		t.doubt = nil
		t.stopTimer()
	}
	for p := &r.claims; *p != nil; p = &(*p).next {
		if *p == t {
			*p, t.next = t.next, nil
			return
		}
	}
}

// remember keeps a claim that a request without an answer has left in doubt, until the lock must
// have expired.
func (r *record) remember(t *tenure) {
	if !t.claimed {
		r.claim(t)
	}
	if t.doubt == nil {
		t.doubt = r.shard.doubts.PushBack(t)
	}
	t.stopTimer()
	t.rings = time.Now().Add(t.longest)
	t.timer = time.AfterFunc(t.longest, func() {
		r.shard.mu.Lock()
		defer r.shard.mu.Unlock()
		switch {
		case t.doubt == nil || time.Now().Before(t.rings):
		case t.requesting: // it may be granted the lock, however long that takes
			t.timer.Reset(max(t.longest, time.Second))
		default:
			r.forget(t)
		}
	})
	if s := r.shard; s.doubts.Len() > maxDoubts {
		oldest := s.doubts.Front().Value.(*tenure)
		if s.forgot.Before(oldest.rings) {
			s.forgot = oldest.rings
		}
		oldest.record.forget(oldest)
	}
}

// forget drops a claim.
func (r *record) forget(t *tenure) {
	if t.claimed {
		r.unclaim(t)
		r.settle()
	}
}

// cause returns err without the prefix of package locker, which adds it again when it returns the
// error.
func cause(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		return inner
	}
	return err
}
