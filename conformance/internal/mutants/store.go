package mutants

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/golockers/locker"
)

// store is a backend in this process: atomic commands like those of a server, and correct locks
// made of them.
type store struct {
	mu       sync.Mutex
	items    map[string]item
	watchers []*watcher
	queues   map[string][]*waiter
	counter  uint64

	countsFromOne bool // when the counter is lost

	// Ways in which the queue may be broken.
	lastFirst, staysQueued, losesGrants, onlyReleases, races, drops, gap, firstWatches bool
	rotates                                                                            func(why string) bool // the head of the queue goes to its end
	next                                                                               func(vanished bool, queue []*waiter) *waiter
	grants                                                                             func(held time.Duration, w *waiter, queue []*waiter) time.Duration // for how long

	revision int                      // counts changes
	lastTTL  map[string]time.Duration // of the holder
}

type item struct {
	token   string
	expires time.Time
}

type watcher struct {
	key   string
	owner *Fake
	ch    chan struct{}
	from  int // the first revision that it sees
}

type waiter struct {
	token   string
	ttl     time.Duration
	granted bool
	expires time.Time
	changed chan struct{} // room for one
}

func NewStore() *store {
	return &store{items: make(map[string]item), queues: make(map[string][]*waiter), lastTTL: make(map[string]time.Duration)}
}

// The commands. Each is one atomic step.

func (s *store) get(key string) (item, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live(key)
}

func (s *store) set(key, token string, ttl time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.items[key] = item{token, time.Now().Add(ttl)}
}

func (s *store) setNX(key, token string, ttl time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.live(key); ok {
		return false
	}
	s.items[key] = item{token, time.Now().Add(ttl)}
	return true
}

// expire sets the remaining time of what is there.
func (s *store) expire(key string, ttl time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	it, ok := s.live(key)
	if ok {
		s.items[key] = item{it.token, time.Now().Add(ttl)}
	}
	return ok
}

func (s *store) Del(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.live(key)
	s.free(key)
	return ok
}

// live returns the item of key if it has not expired. The store is locked, as for the methods that
// follow.
func (s *store) live(key string) (item, bool) {
	it, ok := s.items[key]
	return it, ok && time.Now().Before(it.expires)
}

// free empties key, hands it to the head of the queue, and wakes its watchers.
func (s *store) free(key string) {
	s.revision++
	delete(s.items, key)
	s.advance(key)
	s.wake(key)
}

func (s *store) wake(key string) {
	for _, w := range s.watchers {
		if w.key == key && w.from <= s.revision {
			poke(w.ch)
		}
	}
}

func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// advance grants key to the head of the queue if it is free.
func (s *store) advance(key string) {
	queue := s.queues[key]
	if len(queue) == 0 {
		return
	}
	it, ok := s.items[key]
	if ok && (s.onlyReleases || time.Now().Before(it.expires)) {
		return
	}
	if ok && s.rotates != nil && s.rotates("vanished") {
		s.rotate(key)
	}
	if s.next != nil {
		s.grant(key, s.next(ok, s.queues[key]))
		return
	}
	if s.races {
		for _, w := range queue {
			poke(w.changed)
		}
		return
	}
	if s.gap {
		poke(queue[0].changed)
		return
	}
	n := 0
	if s.lastFirst {
		n = len(queue) - 1
	}
	s.grant(key, s.queues[key][n])
}

func (s *store) grant(key string, w *waiter) {
	ttl := w.ttl
	if s.grants != nil {
		ttl = s.grants(s.lastTTL[key], w, s.queues[key])
	}
	s.leave(key, w)
	s.revision++
	now := time.Now()
	w.granted, w.expires, s.lastTTL[key] = true, now.Add(w.ttl), ttl
	s.items[key] = item{w.token, now.Add(ttl)}
	poke(w.changed)
	if s.firstWatches && len(s.queues[key]) > 0 {
		poke(s.queues[key][0].changed)
	}
}

// rotate moves the head of the queue to its end.
func (s *store) rotate(key string) {
	if queue := s.queues[key]; len(queue) > 1 {
		s.queues[key] = append(slices.Clone(queue[1:]), queue[0])
	}
}

func (s *store) leave(key string, w *waiter) {
	s.queues[key] = slices.DeleteFunc(s.queues[key], func(o *waiter) bool { return o == w })
	if len(s.queues[key]) == 0 {
		delete(s.queues, key)
	}
}

// The operations are correct.

func (s *store) acquire(key, token string, ttl time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advance(key)
	if it, ok := s.live(key); ok && it.token != token {
		if s.rotates != nil && s.rotates("refused") {
			s.rotate(key)
		}
		return false
	}
	s.revision++
	s.items[key], s.lastTTL[key] = item{token, time.Now().Add(ttl)}, ttl
	return true
}

func (s *store) extend(key, token string, ttl time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if it, ok := s.live(key); !ok || it.token != token {
		return false
	}
	s.items[key], s.lastTTL[key] = item{token, time.Now().Add(ttl)}, ttl
	if s.rotates != nil && s.rotates("extended") {
		s.rotate(key)
	}
	for _, w := range s.queues[key] {
		poke(w.changed)
	}
	return true
}

func (s *store) release(key, token string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if it, ok := s.live(key); !ok || it.token != token {
		return false
	}
	s.free(key)
	return true
}

func (s *store) fence(key, token string) (uint64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	it, ok := s.live(key)
	s.counter++
	return s.counter, ok && it.token == token
}

func (s *store) watch(ctx context.Context, f *Fake, key string) <-chan struct{} {
	w := &watcher{key: key, owner: f, ch: make(chan struct{}, 1)}
	s.mu.Lock()
	s.watchers = append(s.watchers, w)
	s.mu.Unlock()
	context.AfterFunc(ctx, func() { s.unwatch(w) })
	return w.ch
}

func (s *store) unwatch(w *watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchers = slices.DeleteFunc(s.watchers, func(o *watcher) bool { return o == w })
}

func (s *store) wait(ctx context.Context, key, token string, ttl time.Duration) (time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advance(key)
	if it, ok := s.live(key); !ok || it.token == token {
		expires := time.Now().Add(ttl)
		s.items[key] = item{token, expires}
		return expires, nil
	}
	w := &waiter{token: token, ttl: ttl, changed: make(chan struct{}, 1)}
	s.queues[key] = append(s.queues[key], w)
	watches := len(s.queues[key]) == 1
	for !w.granted {
		due := time.Until(s.items[key].expires)
		if s.onlyReleases || s.firstWatches && !watches {
			due = time.Hour
		}
		timer := time.NewTimer(due)
		s.mu.Unlock()
		select {
		case <-w.changed:
			watches = true // the waiter before has the lock
		case <-timer.C:
		case <-ctx.Done():
		}
		switch {
		case s.races:
			time.Sleep(rand.N(time.Millisecond))
		case s.gap:
			time.Sleep(10 * time.Millisecond)
		case s.losesGrants && ctx.Err() != nil:
			pause() // for more grants to cross
		}
		s.mu.Lock()
		timer.Stop()
		first := len(s.queues[key]) > 0 && s.queues[key][0] == w
		if _, ok := s.live(key); !ok && !w.granted && (s.races || s.gap && first) {
			s.grant(key, w)
		}
		s.advance(key)
		if ctx.Err() != nil {
			s.abandon(key, w)
			return time.Time{}, fmt.Errorf("in the queue: %w (%w)", ctx.Err(), locker.ErrHeld)
		}
	}
	return w.expires, nil
}

// abandon makes w leave the queue, or pass on its grant.
func (s *store) abandon(key string, w *waiter) {
	switch {
	case !w.granted && s.drops && len(s.queues[key]) > 0: // another waiter's place
		s.leave(key, s.queues[key][0])
		s.leave(key, w)
	case !w.granted && !s.staysQueued:
		s.leave(key, w)
	case w.granted && !s.losesGrants:
		if s.items[key].token == w.token {
			s.free(key)
		}
	}
}

// lose is a restart without data.
func (s *store) lose(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.items)
	s.counter = 0
	if !s.countsFromOne {
		s.counter = uint64(time.Now().UnixMicro())
	}
	return nil
}

// Left returns what the store keeps for longer than a minute, and the keys of its queues.
func (s *store) Left() (left []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.items {
		if it, ok := s.live(key); ok && time.Until(it.expires) > time.Minute {
			left = append(left, fmt.Sprintf("%q for %v", key, time.Until(it.expires)))
		}
	}
	for key := range s.queues {
		left = append(left, fmt.Sprintf("the queue of %q", key))
	}
	return left
}
