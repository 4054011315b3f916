package harness

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Race makes n attempts at the same time, as nearly as goroutines can, and returns their calls.
func (e *Env) Race(n int, attempt func(i int) Call) []Call {
	calls := make([]Call, n)
	var ready sync.WaitGroup
	ready.Add(n)
	start := make(chan struct{})
	go func() {
		ready.Wait()
		close(start)
	}()
	e.Each(n, func(i int) {
		ready.Done()
		<-start
		calls[i] = attempt(i)
	})
	return calls
}

// Each runs fn n times at the same time and returns when all calls have. If one of them ended the
// check, Each does not return.
func (e *Env) Each(n int, fn func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { e.Guard(func() { fn(i) }) })
	}
	all.Wait()
	e.GoOn()
}

// Spread is Each with a few of the n calls at a time.
func (e *Env) Spread(n int, fn func(i int)) {
	var next atomic.Int64
	e.Each(min(n, 12), func(int) {
		for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
			fn(int(i))
		}
	})
}

// Until runs rounds, at least one, until there were enough or they took too long.
func (e *Env) Until(rounds int, budget time.Duration, round func()) {
	begun := time.Now()
	for done := 0; done == 0 || done < rounds && time.Since(begun) < budget; done++ {
		round()
	}
}

// Lanes is Until in several goroutines at a time: in more if the backend's granularity is coarse,
// since then rounds mostly wait.
func (e *Env) Lanes(rounds int, budget time.Duration, round func()) {
	lanes := 2
	if e.Granularity() > 50*time.Millisecond {
		lanes = 6
	}
	e.Each(lanes, func(int) { e.Until(rounds/lanes, budget, round) })
}

// Near sleeps between two attempts at what should happen at moment: briefly, and longer the later
// it is.
func (e *Env) Near(moment time.Time) {
	rest := 50 * time.Microsecond
	if late := time.Since(moment); late > 5*time.Millisecond {
		rest = min(late/4, 15*time.Millisecond)
	}
	e.Sleep(rest + rand.N(rest))
}

// Poll calls try until it returns true, and sleeps for rest in between. What it looks for is due since
// the given time. Report returns what was wanted and got if it has not happened.
func (e *Env) Poll(a Allowance, since time.Time, rest time.Duration, try func() bool, report func() (want, got string)) {
	e.TB.Helper()
	for late := time.Duration(0); ; e.Sleep(rest) {
		begun := time.Now()
		if try() {
			want, _ := report()
			e.Happened(a, late, want)
			return
		}
		late = begun.Sub(since)
		if late > e.Allow(a) {
			want, got := report()
			e.Overdue(a, late, e.Check.Causes, "", want, got)
		}
	}
}
