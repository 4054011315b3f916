package conformance

import (
	"math/rand/v2"
	"sync"
	"time"
)

// race does attempt n times at the same time, as near as goroutines can.
func (e *env) race(n int, attempt func(i int) call) []call {
	calls := make([]call, n)
	var ready sync.WaitGroup
	ready.Add(n)
	start := make(chan struct{})
	go func() {
		ready.Wait()
		close(start)
	}()
	e.each(n, func(i int) {
		ready.Done()
		<-start
		calls[i] = attempt(i)
	})
	return calls
}

// until does rounds until there were enough of them or they took long enough; there is always one.
func (e *env) until(rounds int, budget time.Duration, round func()) {
	begun := time.Now()
	done := 0
	for ; done == 0 || done < rounds && time.Since(begun) < budget; done++ {
		round()
	}
}

// near rests between two attempts at what should come about at a moment: hardly about then, and longer when it
// is late.
func (e *env) near(moment time.Time) {
	rest := 50 * time.Microsecond
	if late := time.Since(moment); late > 5*time.Millisecond {
		rest = min(late/4, 15*time.Millisecond)
	}
	e.sleep(rest + rand.N(rest))
}

// lanes does rounds in some goroutines, in more of them when the backend's granularity is coarse: then a
// round mostly waits.
func (e *env) lanes(rounds int, budget time.Duration, round func()) {
	lanes := 2
	if e.suite.config.Granularity > 50*time.Millisecond {
		lanes = 6
	}
	e.each(lanes, func(int) { e.until(rounds/lanes, budget, round) })
}
