package postgres

import (
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/golockers/locker/internal/pubsub"
	"github.com/golockers/locker/internal/table"
)

// place is that of a process in the queue of a lock, as far as the process knows. It belongs to the
// line: the first waiter hands it on, with what it has heard. In the table it has the token and the
// ttl of the waiter that last asked for it. If that one has gone when the lock is handed to the
// place, the next one takes the lock over.
type place struct {
	key  string
	told chan struct{} // there is news
	sub  *pubsub.Subscription

	joinedAs *listener // in whose name the place was last asked for; nil is the request's own connection
	due      time.Time // when the first looks, unless there is news before that

	mu   sync.Mutex
	left time.Duration // of the holder's time, as the last message says; 0: there was none
	look bool          // the lock may be the process's, or messages were missed
	// heard is the nonce of the last message that the lock was handed over.
	heard string

	// A nonce is that of a request for a place. The table has it until the lock is handed over, so
	// who tells it, tells the truth.
	last  string    // of the last request that had an answer, if that was a place
	token string    // in whose name
	asked time.Time // before that request
	late  []string  // of requests without an answer so far, the latest maxLate
}

const maxLate = 16

// nonce returns a new nonce: the Locker's name, which is its channel, and a number.
func (l *Locker) nonce() string { return l.name + "/" + strconv.FormatInt(l.nonces.Add(1), 10) }

// asks notes that a request for a place is about to be made: a message may be faster than its answer.
func (p *place) asks(nonce string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.late = append(p.late[max(0, len(p.late)-maxLate+1):], nonce)
}

// answered notes that a request for a place was answered, or was not made. isPlace reports whether
// it got one.
func (p *place) answered(nonce, token string, asked time.Time, isPlace bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.late = slices.DeleteFunc(p.late, func(late string) bool { return late == nonce })
	if isPlace {
		p.last, p.token, p.asked = nonce, token, asked
	}
}

// nonces returns those with which the process may have a place, or be handed the lock.
func (p *place) nonces() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.noncesLocked()
}

// Message and Missed implement [pubsub.Listener].
func (p *place) Message(string) {}
func (p *place) Missed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tellLocked()
}

func (p *place) tellLocked() {
	p.look = true
	p.wakeLocked()
}

func (p *place) wakeLocked() {
	select {
	case p.told <- struct{}{}:
	default:
	}
}

// granted says that the lock was handed to a nonce. It reports whether that is the place's.
func (p *place) granted(nonce string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if nonce != p.last && !slices.Contains(p.late, nonce) {
		return false
	}
	p.heard = nonce
	p.tellLocked()
	return true
}

// head says that the place is the first, and how long the holder's time lasts.
func (p *place) head(left time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = left
	p.wakeLocked()
}

// news returns the holder's time of the last message, if there was one since the last call, and
// whether to look at the lock. That stays until looked is called.
func (p *place) news() (left time.Duration, look bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	left, p.left = p.left, 0
	return left, p.look
}

// looking forgets the hints so far, since the request that follows comes after them.
func (p *place) looking() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.look = false
}

// served returns a time before the lock was handed to the token, if a message has proved that and
// nothing else may have happened since. A deadline that counts from there may be early, so this is
// only for a request that was made at most that long ago.
func (p *place) served(token string, within time.Duration) (asked time.Time, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ok = p.last != "" && p.heard == p.last && p.token == token && len(p.late) == 0 && time.Since(p.asked) < within
	return p.asked, ok
}

// isHeard reports whether a message told of the hand-over to that nonce, and no request is without
// an answer. Otherwise a message may yet arrive when the waiter has gone, and would be taken for one
// of a lock that nobody has.
func (p *place) isHeard(nonce string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return nonce != "" && nonce == p.heard && len(p.late) == 0
}

// places are those of a Locker that hear of messages, by key.
type places struct {
	mu sync.Mutex
	t  table.Table[string, *place]
}

func (ps *places) add(p *place) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.t.Set(p.key, p)
}

// remove removes a place, unless that of a later line has replaced it.
func (ps *places) remove(p *place) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if now, _ := ps.t.Get(p.key); now == p {
		ps.t.Delete(p.key)
	}
}

func (ps *places) get(key string) *place {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p, _ := ps.t.Get(key)
	return p
}
