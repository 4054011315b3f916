package harness

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// How slow the machine and the backend are is measured all the while: how late timers fire, and how
// long the backend's plainest request takes, a Release that finds nothing. A broken Locker cannot
// excuse itself, since the calls of checks do not count.

// Lag is the longest delay that was measured during some time.
type Lag struct{ slowest atomic.Int64 }

func (l *Lag) saw(d time.Duration) {
	for {
		old := l.slowest.Load()
		if int64(d) <= old || l.slowest.CompareAndSwap(old, int64(d)) {
			return
		}
	}
}

// Worst returns the longest delay.
func (l *Lag) Worst() time.Duration { return time.Duration(l.slowest.Load()) }

// pace is the measurement of a suite.
type pace struct {
	mu      sync.Mutex
	windows map[*Lag]struct{} // those whose time has not ended
}

// begin returns a Lag that counts until end is called.
func (p *pace) begin() (l *Lag, end func()) {
	l = new(Lag)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.windows == nil {
		p.windows = make(map[*Lag]struct{})
	}
	p.windows[l] = struct{}{}
	return l, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.windows, l)
	}
}

// saw records the duration of something that takes no time on an idle machine.
func (p *pace) saw(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.windows {
		l.saw(d)
	}
}

// measure measures until ctx ends.
func (p *pace) measure(ctx context.Context, request func(ctx context.Context)) {
	const everyTimer, everyRequest = 20 * time.Millisecond, 100 * time.Millisecond
	var ends sync.WaitGroup
	ends.Go(func() {
		for ; ctx.Err() == nil; rest(ctx, everyRequest) {
			p.timed(func() { request(ctx) })
		}
	})
	for ctx.Err() == nil {
		begun := time.Now()
		rest(ctx, everyTimer)
		p.saw(time.Since(begun) - everyTimer)
	}
	ends.Wait()
}

// rest sleeps for d, or until ctx ends.
func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// timed records how long do takes, and that it takes long before it has ended.
func (p *pace) timed(do func()) {
	begun := time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	for every := time.NewTicker(50 * time.Millisecond); ; {
		select {
		case <-done:
			every.Stop()
			p.saw(time.Since(begun))
			return
		case <-every.C:
			p.saw(time.Since(begun))
		}
	}
}
