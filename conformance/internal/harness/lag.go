package harness

import (
	"context"
	"sync/atomic"
	"time"
)

// Lag measures how slow the machine, the network and the backend are.
type Lag struct{ slowest atomic.Int64 }

// Measure observes how late timers are until ctx ends.
func (l *Lag) Measure(ctx context.Context) {
	const every = 20 * time.Millisecond
	for ctx.Err() == nil {
		begun := time.Now()
		time.Sleep(every)
		l.saw(time.Since(begun) - every)
	}
}

// saw records how long something took that takes no time on an idle machine.
func (l *Lag) saw(d time.Duration) {
	for {
		old := l.slowest.Load()
		if int64(d) <= old || l.slowest.CompareAndSwap(old, int64(d)) {
			return
		}
	}
}

// Worst returns the longest delay recorded.
func (l *Lag) Worst() time.Duration { return time.Duration(l.slowest.Load()) }

// allowance is how late an event may be on this machine.
func (l *Lag) allowance() time.Duration {
	return min(3*time.Second+20*l.Worst(), 45*time.Second)
}
