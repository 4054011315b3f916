package harness

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Lag measures how slow the machine, the network and the backend are.
type Lag struct{ slowest atomic.Int64 }

// Measure observes how late timers are until ctx ends.
func (l *Lag) Measure(ctx context.Context) { measure(ctx, l.saw) }

func measure(ctx context.Context, saw func(late time.Duration)) {
	const every = 20 * time.Millisecond
	for ctx.Err() == nil {
		begun := time.Now()
		time.Sleep(every)
		saw(time.Since(begun) - every)
	}
}

// saw records the duration of something that takes no time on an idle machine.
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

// lagMemory is the least time for which a delay counts: a machine that was slow may be quick
// again.
const lagMemory = 20 * time.Second

// recentLag is the Lag of the last lagMemory, or up to twice as long.
type recentLag struct {
	mu        sync.Mutex
	now, past *Lag
	begun     time.Time // of now
}

func (r *recentLag) lag() (now, past *Lag) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if age := time.Since(r.begun); r.now == nil || age > lagMemory {
		r.past, r.now, r.begun = r.now, new(Lag), time.Now()
		if r.past == nil || age > 2*lagMemory {
			r.past = new(Lag)
		}
	}
	return r.now, r.past
}

func (r *recentLag) saw(d time.Duration) {
	now, _ := r.lag()
	now.saw(d)
}

// Worst returns the longest delay recorded recently.
func (r *recentLag) Worst() time.Duration {
	now, past := r.lag()
	return max(now.Worst(), past.Worst())
}

// allowance is how late an event may be.
func (r *recentLag) allowance() time.Duration {
	return min(3*time.Second+20*r.Worst(), 45*time.Second)
}
