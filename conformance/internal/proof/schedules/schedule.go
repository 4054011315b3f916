package schedules

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/golockers/locker/memory"
)

// detachedKey is the only key whose leases are detached and resumed.
const detachedKey = "detached"

var keys = []string{"a", "b", "c", detachedKey}

// schedule is one run of a few goroutines that use two Lockers of one backend, with their beliefs.
type schedule struct {
	*dice
	backend *backend
	lockers []locker.Locker
	keyed   []*locker.Keyed
	direct  bool        // the backend knows a lock by the token of its lease
	left    chan string // tokens of detachedKey that were detached

	mu         sync.Mutex
	violations []string
	counts     Counts
	beliefs    map[string][]*locker.Lease
	fences     map[string]uint64
	insides    map[string]int // by Keyed and key
	waiters    int            // the sum over all events
	leases     int
}

// Counts counts the events of schedules.
type Counts struct {
	Leases, Refused, Errors, Lost, Resumed, Fences int
}

func (c *Counts) Add(more Counts) {
	c.Leases += more.Leases
	c.Refused += more.Refused
	c.Errors += more.Errors
	c.Lost += more.Lost
	c.Resumed += more.Resumed
	c.Fences += more.Fences
}

// Run runs the schedule of a seed, inside a bubble, and returns the violations.
func run(seed uint64, wrong mutant) (Counts, []string) {
	d := newDice(seed)
	b := &backend{locks: memory.New(), dice: d, wrong: wrong, faults: d.n(5)}
	s := &schedule{dice: d, backend: b, left: make(chan string, 100), beliefs: make(map[string][]*locker.Lease),
		fences: make(map[string]uint64), insides: make(map[string]int), direct: true}
	kind := d.n(3)
	if wrong == losesGrants || wrong == promisesTooLong {
		kind = 1
	}
	overCohort := wrong == correct && d.chance(1, 3)
	for range 2 {
		var l locker.Locker = fenced{b}
		switch kind {
		case 1:
			l = queued{fenced{b}}
		case 2:
			l = watched{fenced{b}}
		}
		if overCohort {
			l = cohort.New(l)
			s.direct = false
		}
		l = locker.Observed(l, s)
		s.lockers = append(s.lockers, l)
		s.keyed = append(s.keyed, locker.NewKeyed(l, 2*time.Second))
	}
	end := time.Now().Add(2 * time.Second)
	var workers sync.WaitGroup
	for i := range 8 {
		workers.Go(func() {
			for time.Now().Before(end) {
				s.turn(s.lockers[i%2], s.keyed[i%2], i < 2)
			}
		})
	}
	workers.Wait()
	b.heal()
	time.Sleep(time.Minute) // longer than any ttl and any cleanup
	s.settled()
	return s.counts, s.violations
}

func (s *schedule) violated(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.violations = append(s.violations, fmt.Sprintf(format, args...))
}

func (s *schedule) count(add func(c *Counts)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	add(&s.counts)
}

// Observe implements [locker.Observer].
func (s *schedule) Observe(_ context.Context, e locker.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiters += e.Waiters
	s.leases += e.Leases
}

// settled checks that nothing is left when all callers have returned.
func (s *schedule) settled() {
	for _, key := range keys {
		if info, _ := s.backend.locks.Inspect(context.Background(), key); info.Token != "" || info.Waiters > 0 {
			s.violated("%s is left: %+v", key, info)
		}
	}
	for i, l := range s.lockers {
		for _, key := range keys {
			lease, err := locker.TryLock(context.Background(), l, key, time.Second)
			if err == nil {
				err = lease.Unlock(context.Background())
			}
			if err != nil {
				s.violated("%s is not free in the end, by Locker %d: %v", key, i, err)
			}
		}
	}
	s.mu.Lock()
	waiters, leases := s.waiters, s.leases
	s.mu.Unlock()
	if waiters != 0 || leases != 0 {
		s.violated("the events add up to %d waiters and %d leases", waiters, leases)
	}
}

// granted notes that a caller believes that it holds a lock.
func (s *schedule) granted(lease *locker.Lease) {
	s.count(func(c *Counts) { c.Leases++ })
	key := lease.Key()
	s.mu.Lock()
	others := slices.Clone(s.beliefs[key])
	s.beliefs[key] = append(s.beliefs[key], lease)
	s.mu.Unlock()
	s.compare(lease)
	for _, other := range others {
		if other.Token() != lease.Token() && isBelieved(other) && isBelieved(lease) {
			s.violated("two hold %s", key)
		}
	}
}

// ended notes that a caller no longer believes that it holds a lock.
func (s *schedule) ended(lease *locker.Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := lease.Key()
	s.beliefs[key] = slices.DeleteFunc(s.beliefs[key], func(l *locker.Lease) bool { return l == lease })
}

func isBelieved(l *locker.Lease) bool { return l.Err() == nil && time.Now().Before(l.Deadline()) }

// compare checks that a lease does not outlast the backend's lock. Another goroutine may extend the
// lock at the same time, longer or shorter, so compare reads the lease before and after the
// backend.
func (s *schedule) compare(lease *locker.Lease) {
	if !s.direct {
		return
	}
	believed, promised := isBelieved(lease), time.Until(lease.Deadline())
	info, err := s.backend.locks.Inspect(context.Background(), lease.Key())
	believed, promised = believed && isBelieved(lease), min(promised, time.Until(lease.Deadline()))
	if believed && (err != nil || info.Token != lease.Token() || info.TTL < promised) {
		s.violated("a lease of %s promises %v, and the backend keeps %+v, %v", lease.Key(), promised, info, err)
	}
}

// unlock unlocks a lease, and tries again after an error.
func (s *schedule) unlock(ctx context.Context, lease *locker.Lease, unlock func(context.Context) error) {
	s.compare(lease)
	believed := isBelieved(lease)
	s.ended(lease)
	err := unlock(ctx)
	if believed && errors.Is(err, locker.ErrNotHeld) && time.Now().Before(lease.Deadline()) {
		s.violated("the lock of %s was lost before its Deadline: %v", lease.Key(), err)
	}
	if err == nil && s.direct {
		if info, _ := s.backend.locks.Inspect(context.Background(), lease.Key()); info.Token == lease.Token() {
			s.violated("%s is not released", lease.Key())
		}
	}
	s.failed(err)
}

// failed counts an error.
func (s *schedule) failed(err error) {
	switch {
	case err == nil:
	case errors.Is(err, locker.ErrNotHeld):
		s.count(func(c *Counts) { c.Lost++ })
	case errors.Is(err, locker.ErrHeld):
		s.count(func(c *Counts) { c.Refused++ })
	default:
		s.count(func(c *Counts) { c.Errors++ })
		if !errors.Is(err, errInjected) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) &&
			!isConsequence(err) {
			s.violated("an error that nothing has caused: %v", err)
		}
	}
}
