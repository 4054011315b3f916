package conformance

import (
	"context"
	"sync/atomic"
	"time"
)

// lag is what the suite knows about how slow the machine, the network and the backend are.
type lag struct{ slowest atomic.Int64 }

// measure takes note of how late timers are until ctx ends.
func (l *lag) measure(ctx context.Context) {
	const every = 20 * time.Millisecond
	for ctx.Err() == nil {
		begun := time.Now()
		time.Sleep(every)
		l.saw(time.Since(begun) - every)
	}
}

// saw takes note of how long something took that takes no time on an idle machine.
func (l *lag) saw(d time.Duration) {
	for {
		old := l.slowest.Load()
		if int64(d) <= old || l.slowest.CompareAndSwap(old, int64(d)) {
			return
		}
	}
}

func (l *lag) allowance() time.Duration {
	return min(3*time.Second+20*time.Duration(l.slowest.Load()), 45*time.Second)
}

// worst is the slowest thing seen so far.
func (l *lag) worst() time.Duration { return time.Duration(l.slowest.Load()) }
