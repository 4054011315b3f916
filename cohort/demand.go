package cohort

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/golockers/locker/internal/demand"
)

// ears listens for demands of other processes for a Locker's locks, from the Locker's first request
// until some time after the last.
type ears struct {
	mu      sync.Mutex
	current *ear
}

// ear is one registration with the backend.
type ear struct {
	demand.Listener
	tenures atomic.Int64 // tenures with its mark; it must stay open while there are any
	used    time.Time    // when a mark was last requested
}

// earRest is how long the Locker listens after the last tenure.
const earRest = 10 * time.Second

// mark returns the mark for a token that will hold the lock of key, and the ear that it belongs to.
// If there is none, it returns "" and nil, and the lock does not linger.
func (l *Locker) mark(key string) (string, *ear) {
	if l.linger == 0 || l.closed.Load() {
		return "", nil
	}
	d, ok := l.behind.(demand.Demander)
	if !ok {
		return "", nil
	}
	e := l.ears.open(d, l)
	if e == nil {
		return "", nil
	}
	mark := e.Mark(key)
	if mark == "" {
		return "", nil
	}
	return mark, e
}

func (es *ears) open(d demand.Demander, l *Locker) *ear {
	es.mu.Lock()
	defer es.mu.Unlock()
	if es.current == nil {
		listener := d.Listen((*heard)(l))
		if listener == nil {
			return nil
		}
		es.current = &ear{Listener: listener}
		es.restLater(es.current, earRest)
	}
	es.current.used = time.Now()
	return es.current
}

// restLater closes e once it has not been used for earRest.
func (es *ears) restLater(e *ear, after time.Duration) {
	time.AfterFunc(after, func() {
		es.mu.Lock()
		defer es.mu.Unlock()
		switch left := time.Until(e.used.Add(earRest)); {
		case es.current != e:
		case left > 0:
			es.restLater(e, left)
		case e.tenures.Load() > 0:
			es.restLater(e, earRest)
		default:
			es.closeLocked()
		}
	})
}

func (es *ears) close() {
	es.mu.Lock()
	defer es.mu.Unlock()
	es.closeLocked()
}

func (es *ears) closeLocked() {
	if es.current != nil {
		es.current.Close()
		es.current = nil
	}
}

// heard is a Locker as a [demand.Owner].
type heard Locker

var _ demand.Owner = (*heard)(nil)

// Wanted implements [demand.Owner]. It gives up a lock that lingers, and marks a lock in use as
// wanted, so that it does not linger and its tenure ends in time.
func (h *heard) Wanted(key string, answer func(isFree bool)) {
	l := (*Locker)(h)
	if answer == nil {
		answer = func(bool) {}
	}
	s := l.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.records[key]
	switch {
	case r == nil: // the lock has been given up
		answer(true)
	case r.parting != nil:
		r.parting.answerLater(answer)
	case r.lingering() != nil:
		l.partLater(r.tenure, "")
		r.parting.answerLater(answer)
	default:
		r.wanted = true
		answer(false)
	}
}

// Missed implements [demand.Owner]. Since any lock may be wanted, it treats all of them as wanted.
func (h *heard) Missed() {
	l := (*Locker)(h)
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		for _, r := range s.records {
			r.wanted = true // one that lingers may be taken again before it is given up
		}
		now := time.Now()
		for t := s.lingers.first; t != nil; t = t.newer {
			t.expires = now
		}
		any := s.lingers.first != nil
		s.mu.Unlock()
		if any {
			go l.sweepLingering(s)
		}
	}
}
