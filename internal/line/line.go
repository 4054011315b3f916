// Package line keeps the callers of one process that wait for the same key in the order in which
// they came. Only the first of them contends at the backend. The others wait for its turn to end,
// with no request, no goroutine and no timer, and leave without one.
package line

import (
	"sync"

	"github.com/golockers/locker/internal/table"
)

// Lines are the lines of one Locker, one for each key that somebody waits for. S is what the first
// of a line hands on to its successor, such as the place in the backend's queue. The zero Lines is
// ready for use.
type Lines[K comparable, S any] struct {
	mu    sync.Mutex
	lines table.Table[K, *line[K, S]]
}

// line is a doubly linked list of places, and is in the table while it has any.
type line[K comparable, S any] struct {
	key         K
	first, last *Place[K, S]
	state       S
	begun       Place[K, S] // the one with which it began, here to save an allocation
}

// Place is a caller's place in a line.
type Place[K comparable, S any] struct {
	lines        *Lines[K, S]
	line         *line[K, S] // nil once it has left, or the line has failed
	state        *S
	ahead, after *Place[K, S]
	turn         chan struct{}
	err          error // set before turn is closed
}

// Join takes the last place in the line of key. The caller has to Leave it.
func (l *Lines[K, S]) Join(key K) *Place[K, S] {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, ok := l.lines.Get(key)
	if !ok {
		return l.beginLocked(key)
	}
	p := &Place[K, S]{lines: l, line: n, state: &n.state, ahead: n.last, turn: make(chan struct{})}
	n.last.after, n.last = p, p
	return p
}

// Begin takes the first place in the line of key, as Join does, if nobody is in it. Otherwise it
// returns nil.
func (l *Lines[K, S]) Begin(key K) *Place[K, S] {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.lines.Get(key); ok {
		return nil
	}
	return l.beginLocked(key)
}

func (l *Lines[K, S]) beginLocked(key K) *Place[K, S] {
	n := &line[K, S]{key: key}
	p := &n.begun
	*p = Place[K, S]{lines: l, line: n, state: &n.state, turn: now}
	n.first, n.last = p, p
	l.lines.Set(key, n)
	return p
}

// now is the turn of a place that is the first from the beginning.
var now = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Turn returns a channel that is closed when the place is the first of its line, or when the line
// has failed: see [Place.Err].
func (p *Place[K, S]) Turn() <-chan struct{} { return p.turn }

// Err returns the error with which the line failed. It may be called once Turn is closed.
func (p *Place[K, S]) Err() error { return p.err }

// State returns what the first of the line hands on. Only the first may use it, until it leaves.
// A line that begins has the zero S.
func (p *Place[K, S]) State() *S { return p.state }

// HasNext reports whether another place is behind this one.
func (p *Place[K, S]) HasNext() bool {
	p.lines.mu.Lock()
	defer p.lines.mu.Unlock()
	return p.line != nil && p.after != nil
}

// Leave gives up the place, wherever it is. If it was the first, the next one has its turn. Leave
// reports whether the line has ended with it: then nobody will use its State any more. After the
// line has failed, or a second time, Leave does nothing and returns false.
func (p *Place[K, S]) Leave() (ended bool) {
	p.lines.mu.Lock()
	defer p.lines.mu.Unlock()
	n := p.line
	if n == nil {
		return false
	}
	p.line = nil
	if p.after != nil {
		p.after.ahead = p.ahead
	} else {
		n.last = p.ahead
	}
	if p.ahead != nil {
		p.ahead.after = p.after
		return false
	}
	n.first = p.after
	if n.first == nil {
		p.lines.lines.Delete(n.key)
		return true
	}
	close(n.first.turn)
	return false
}

// Fail ends the line with an error of the backend: it is the error of everyone behind the first,
// at once, since each of them would meet it in turn. Only the first may call it, in place of Leave.
// Callers that come later form a line of their own.
func (p *Place[K, S]) Fail(err error) {
	p.lines.mu.Lock()
	defer p.lines.mu.Unlock()
	n := p.line
	if n == nil || n.first != p {
		panic("line: Fail by a place that is not the first")
	}
	p.lines.lines.Delete(n.key)
	p.line = nil
	for q := p.after; q != nil; q = q.after {
		q.line, q.err = nil, err
		close(q.turn)
	}
}

// Waiting returns how many lines there are.
func (l *Lines[K, S]) Waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.Len()
}
