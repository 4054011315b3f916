// Package belief records when holders believe that they hold a lock, and finds beliefs that
// overlap.
//
// A belief is an interval of time. It begins when the call that took the lock has returned. It
// ends with the deadline of the lease, or just before the call that gives the lock up. So two
// beliefs of a key never overlap if the lock is exclusive, whatever happens to the holders, even
// if they are stopped or killed.
package belief

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Interval is a belief. Its times are those of [Clock].
type Interval struct {
	Key    uint32
	Holder uint32
	From   time.Duration
	Until  time.Duration // not included
}

func (i Interval) String() string {
	return fmt.Sprintf("key %d, holder %d: %v to %v", i.Key, i.Holder, i.From, i.Until)
}

// Overlap is two beliefs of a key that overlap, in the order in which they began.
type Overlap struct{ First, Second Interval }

// For returns how long both holders believed that they held the lock.
func (o Overlap) For() time.Duration { return min(o.First.Until, o.Second.Until) - o.Second.From }

func (o Overlap) String() string { return fmt.Sprintf("%v; %v: %v", o.First, o.Second, o.For()) }

// Overlaps returns each belief that began during an earlier belief of its key, paired with the
// earlier one that lasted longest. It ignores beliefs that ended before they began.
func Overlaps(beliefs []Interval) (all []Overlap) {
	sorted := slices.DeleteFunc(slices.Clone(beliefs), func(i Interval) bool { return i.Until <= i.From })
	slices.SortFunc(sorted, func(a, b Interval) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.From, b.From))
	})
	var last Interval // the interval of the key that ends last
	for n, i := range sorted {
		switch {
		case n == 0 || i.Key != last.Key:
			last = i
			continue
		case i.From < last.Until:
			all = append(all, Overlap{last, i})
		}
		if i.Until > last.Until {
			last = i
		}
	}
	return all
}

// Most returns the greatest number of beliefs in one key at the same time, and the belief that
// began when it was reached. It ignores beliefs that ended before they began.
func Most(beliefs []Interval) (most int, last Interval) {
	type edge struct {
		at    time.Duration
		by    int // 1 for a beginning, -1 for an end
		which Interval
	}
	var edges []edge
	for _, i := range beliefs {
		if i.From < i.Until {
			edges = append(edges, edge{i.From, 1, i}, edge{i.Until, -1, i})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int {
		return cmp.Or(cmp.Compare(a.which.Key, b.which.Key), cmp.Compare(a.at, b.at), cmp.Compare(a.by, b.by))
	})
	now := 0 // each key begins and ends with 0
	for _, e := range edges {
		if now += e.by; now > most {
			most, last = now, e.which
		}
	}
	return most, last
}
