// Package line keeps the callers of one process that wait for the same key in the order in which
// they came. Only the first of them contends at the backend, or the first n if the key stands for
// so many permits. The others wait for a turn to end, with no request, no goroutine and no timer,
// and leave without one.
package line

import (
	"sync"
	"sync/atomic"

	"github.com/golockers/locker/internal/table"
)

// Lines are the lines of one Locker, one for each key that somebody waits for. S is what the first
// of a line hands on to its successor, such as the place in the backend's queue. The zero Lines is
// ready for use.
type Lines[K comparable, S any] struct {
	mu    sync.Mutex
	lines table.Table[K, *line[K, S]]
}

// line is a doubly linked list of places, and is in the map while it has any.
type line[K comparable, S any] struct {
	key         K
	first, last *Place[K, S]
	next        *Place[K, S] // the first that has no turn yet
	turns       int          // how many have one
	refused     atomic.Bool
}

// Place is a caller's place in a line.
type Place[K comparable, S any] struct {
	lines        *Lines[K, S]
	line         *line[K, S]
	isIn         bool // it has not left, and the line has not failed
	state        *S   // nil until it has its turn, and from its end on
	last         *S   // the state, if it has ended with this place
	ahead, after *Place[K, S]
	turn         chan struct{}
	err          error // set before turn is closed
}

// Join takes the last place in the line of key. The caller has to Leave it.
func (l *Lines[K, S]) Join(key K) *Place[K, S] { return l.JoinN(key, 1) }

// JoinN is Join for a key of which n may be held at a time: the first n of the line have a turn.
// It must be the same n for all places in a line.
func (l *Lines[K, S]) JoinN(key K, n int) *Place[K, S] {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.joinLocked(key, n)
}

// Begin is Join if nobody is in the line of key. Otherwise it returns nil.
func (l *Lines[K, S]) Begin(key K) *Place[K, S] {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.lines.Get(key); ok {
		return nil
	}
	return l.joinLocked(key, 1)
}

func (l *Lines[K, S]) joinLocked(key K, n int) *Place[K, S] {
	in, ok := l.lines.Get(key)
	if !ok {
		in = &line[K, S]{key: key}
		l.lines.Set(key, in)
	}
	p := &Place[K, S]{lines: l, line: in, isIn: true, ahead: in.last}
	if in.last == nil {
		in.first = p
	} else {
		in.last.after = p
	}
	in.last = p
	if in.turns < n {
		in.turns++
		p.turn, p.state = now, new(S)
	} else {
		p.turn = make(chan struct{})
		if in.next == nil {
			in.next = p
		}
	}
	return p
}

// now is the turn of a place that is among the first from the beginning.
var now = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Turn returns a channel that is closed when the place is the first of its line, or when the line
// has failed: see [Place.Err].
func (p *Place[K, S]) Turn() <-chan struct{} { return p.turn }

// Err returns the error with which the line failed. It may be called once Turn is closed.
func (p *Place[K, S]) Err() error { return p.err }

// State returns what the first of the line hands on. It is nil until the place has its turn, and
// only its caller may use it until it leaves. A line that begins has the zero S. With [Lines.JoinN]
// each of the first has an S of its own. Once Leave has returned true, State returns what has ended
// with the place, even if that got its turn while it was leaving.
func (p *Place[K, S]) State() *S {
	p.lines.mu.Lock()
	defer p.lines.mu.Unlock()
	if p.last != nil {
		return p.last
	}
	return p.state
}

// HasNext reports whether another place is behind this one that has no turn yet.
func (p *Place[K, S]) HasNext() bool {
	p.lines.mu.Lock()
	defer p.lines.mu.Unlock()
	return p.isIn && p.line.next != nil && (p.state != nil || p.after != nil)
}

// Refuse records that the backend has answered one of the first, and that it has to wait.
func (p *Place[K, S]) Refuse() { p.line.refused.Store(true) }

// Refused reports whether any place of the line has called Refuse. Until then those behind the first
// know nothing about the lock.
func (p *Place[K, S]) Refused() bool { return p.line.refused.Load() }

// Leave gives up the place, wherever it is. If it had its turn, the next one has it now. Leave
// reports whether there was none: then nobody will use its State any more. A place that had no turn
// has no State, and Leave returns false. It does so a second time as well, and after the line has
// failed for a place that had no turn.
func (p *Place[K, S]) Leave() (ended bool) {
	p.lines.mu.Lock()
	defer p.lines.mu.Unlock()
	if !p.isIn {
		p.last, p.state = p.state, nil
		return p.last != nil
	}
	in := p.line
	p.isIn = false
	if p.after != nil {
		p.after.ahead = p.ahead
	} else {
		in.last = p.ahead
	}
	if p.ahead != nil {
		p.ahead.after = p.after
	} else {
		in.first = p.after
	}
	if in.first == nil {
		p.lines.drop(in)
	}
	if p.state == nil {
		if in.next == p {
			in.next = p.after
		}
		return false
	}
	q := in.next
	if q == nil {
		in.turns--
		p.last, p.state = p.state, nil
		return true
	}
	q.state, p.state = p.state, nil
	in.next = q.after
	close(q.turn)
	return false
}

// Fail ends the line with an error of the backend: it is the error of everyone who waits for a
// turn, at once, since each of them would meet it in turn. Only one that has its turn may call it,
// in place of Leave; its State ends with it. Others of the first n go on, and have to Leave.
// Callers that come later form a line of their own.
func (p *Place[K, S]) Fail(err error) {
	p.lines.mu.Lock()
	defer p.lines.mu.Unlock()
	if p.state == nil {
		panic("line: Fail by a place that has no turn")
	}
	in := p.line
	p.state = nil
	if !p.isIn { // another one was quicker
		return
	}
	p.lines.drop(in)
	for q := in.first; q != nil; q = q.after {
		q.isIn = false
		if q.state == nil && q != p {
			q.err = err
			close(q.turn)
		}
	}
}

// drop removes a line, unless another one of its key has begun since it failed.
func (l *Lines[K, S]) drop(in *line[K, S]) {
	if now, _ := l.lines.Get(in.key); now == in {
		l.lines.Delete(in.key)
	}
}

// Waiting returns how many lines there are.
func (l *Lines[K, S]) Waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.Len()
}
