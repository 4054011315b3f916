package singleflight

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/golockers/locker"
	"github.com/golockers/locker/singleflight/slots"
)

// This file has what the loads of one LoadMany do together.

// batch has the loads that a LoadMany has begun, its members. Each has a flight of its own. There are
// points at which they meet: a member that comes to one waits until each of the others has come, has
// gone past it, or has left the batch, and then one of them makes one request for all. None waits for
// anything else than backends before that, so the batch always goes on.
type batch[V any] struct {
	starts  meeting[struct{}]       // of members that are to try their locks: at once, for Lockers that share requests
	looks   meeting[*slots.Slot[V]] // of members that have tried their locks
	sources meeting[*sourced[V]]    // of members that are to call the source
	puts    meeting[*slots.Slot[V]] // of members that have a value or a failure to store
}

func newBatch[V any](members int) *batch[V] {
	b := new(batch[V])
	for _, p := range b.points() {
		p.expect(members)
	}
	return b
}

type point interface {
	expect(members int)
	skip()
}

// points returns the points in the order in which a load comes to them.
func (b *batch[V]) points() [4]point { return [...]point{&b.starts, &b.looks, &b.sources, &b.puts} }

// member is one load of a batch. A nil member is a load that is in none.
type member[V any] struct {
	batch *batch[V]
	index int // of its key

	mu      sync.Mutex
	next    int  // the first point that it has not come to
	started bool // its flight has
	kept    bool // what follows its flight takes it to the last point
}

// start notes that the flight of the member has begun: from now on it leaves by itself.
func (m *member[V]) start() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.started = true
}

// leaveUnstarted is leave if the flight has not begun.
func (m *member[V]) leaveUnstarted() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.started {
		m.advanceLocked(len(m.batch.points()))
	}
}

// leave takes the member out of the batch: it goes on alone. Nothing happens the second time.
func (m *member[V]) leave() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.advanceLocked(len(m.batch.points()))
}

// leaveFlight is leave at the end of the member's flight.
func (m *member[V]) leaveFlight() {
	m.mu.Lock()
	defer m.mu.Unlock()
	last := len(m.batch.points())
	if m.kept {
		last--
	}
	m.advanceLocked(last)
}

// keep makes the member stay for the last point after its flight. The caller calls leave.
func (m *member[V]) keep() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kept = true
}

// advanceLocked skips the points up to one.
func (m *member[V]) advanceLocked(to int) {
	points := m.batch.points()
	for ; m.next < to; m.next++ {
		points[m.next].skip()
	}
}

// comesTo reports whether the member is still to come to a point, which it then has to.
func (m *member[V]) comesTo(point int) bool {
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.advanceLocked(point)
	if m.next > point {
		return false
	}
	m.next++
	return true
}

// awaitStart waits until the other members are to try their locks too.
func (m *member[V]) awaitStart() {
	if m.comesTo(0) {
		_ = m.batch.starts.meet(m.index, struct{}{}, func([]struct{}) error { return nil })
	}
}

// look looks at a slot together with the other members of its batch.
func (m *member[V]) look(s *slots.Slot[V], look func(...*slots.Slot[V]) error) error {
	if !m.comesTo(1) {
		return look(s)
	}
	return m.batch.looks.meet(m.index, s, func(all []*slots.Slot[V]) error { return look(all...) })
}

// put does that with a slot that is to be stored.
func (m *member[V]) put(s *slots.Slot[V], put func(...*slots.Slot[V]) error) error {
	if !m.comesTo(3) {
		return put(s)
	}
	return m.batch.puts.meet(m.index, s, func(all []*slots.Slot[V]) error { return put(all...) })
}

// sourced is what the source of a batch returned for a key.
type sourced[V any] struct {
	ctx context.Context
	key string
	v   V
	err error
}

// call calls the source for a key together with the other members of its batch.
func (m *member[V]) call(ctx context.Context, key string, source batchSource[V]) (V, error) {
	s := &sourced[V]{ctx: ctx, key: key}
	call := func(all []*sourced[V]) error { source.call(all); return nil }
	var err error
	if m.comesTo(2) {
		err = m.batch.sources.meet(m.index, s, call)
	} else {
		err = call([]*sourced[V]{s})
	}
	if err != nil {
		s.err = err
	}
	return s.v, s.err
}

// batchSource is the source of a batch Loader.
type batchSource[V any] func(ctx context.Context, keys []string) (map[string]V, error)

// call calls the source for several keys. Its context has the values of the first one's and the leases
// of all, and ends when all of theirs have.
func (source batchSource[V]) call(all []*sourced[V]) {
	values := context.WithoutCancel(all[0].ctx)
	if len(all) > 1 {
		values = &together[V]{values, flightsOf(all)}
	}
	var leases locker.Leases
	for _, s := range all[1:] {
		if h, _ := s.ctx.Value(holdingKey{}).(*holding); h != nil {
			leases = append(leases, h.lease)
		}
	}
	held, end := leases.Context(values)
	defer end()
	ctx, cancel := context.WithCancel(values)
	defer cancel()
	ctx = &holding{Context: ctx, carried: held}
	var running atomic.Int64
	running.Store(int64(len(all)))
	keys := make([]string, len(all))
	for i, s := range all {
		keys[i] = s.key
		defer context.AfterFunc(s.ctx, func() {
			if running.Add(-1) == 0 {
				cancel()
			}
		})()
	}
	loaded, err := source(ctx, keys)
	if err == nil {
		err = ErrNotLoaded
	}
	for _, s := range all {
		var ok bool
		if s.v, ok = loaded[s.key]; !ok {
			s.err = err
		}
	}
}

// together is a context whose values are those of the first of several flights, except that it is within
// all of them.
type together[V any] struct {
	context.Context
	flights flights[V]
}

// Value implements [context.Context].
func (t *together[V]) Value(key any) any {
	if key == any(t.flights[0].group) {
		return t.flights
	}
	return t.Context.Value(key)
}

// flights are those of a batch. Their first callers are the same.
type flights[V any] []*flight[V]

func flightsOf[V any](all []*sourced[V]) flights[V] {
	fs := make(flights[V], len(all))
	for i, s := range all {
		fs[i] = s.ctx.(*flight[V])
	}
	return fs
}

// of returns the flight of key, or any other if there is none.
func (fs flights[V]) of(key string) *flight[V] {
	for _, f := range fs {
		if f.key == key {
			return f
		}
	}
	return fs[0]
}

// meeting is a point at which members of a batch meet.
type meeting[T any] struct {
	mu       sync.Mutex
	expected int // members that have not skipped it
	came     []visit[T]
	run      func([]T) error // of the latest to come
	done     chan struct{}
	err      error
}

type visit[T any] struct {
	index int
	item  T
}

func (p *meeting[T]) expect(members int) { p.expected, p.done = members, make(chan struct{}) }

// skip takes back one member that was expected. If it was the last that had not come, the others go on.
func (p *meeting[T]) skip() {
	p.mu.Lock()
	p.expected--
	complete := p.expected == len(p.came) && p.expected > 0
	p.mu.Unlock()
	if complete {
		go p.finish()
	}
}

// meet waits until all have come, for whom one of them then calls run with the items, in the order of
// the indexes. It returns the error of that call.
func (p *meeting[T]) meet(index int, item T, run func([]T) error) error {
	p.mu.Lock()
	p.came = append(p.came, visit[T]{index, item})
	p.run = run
	complete := p.expected == len(p.came)
	p.mu.Unlock()
	if complete {
		p.finish()
	}
	<-p.done
	return p.err
}

// finish is called when all have come, by one of them.
func (p *meeting[T]) finish() {
	defer close(p.done)
	slices.SortFunc(p.came, func(a, b visit[T]) int { return a.index - b.index })
	items := make([]T, len(p.came))
	for i, v := range p.came {
		items[i] = v.item
	}
	p.err = &exitError{"several keys"} // unless run returns
	p.err = recovered("several keys", func() error { return p.run(items) })
}
