package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/golockers/locker"
	"github.com/golockers/locker/cmd/locker/internal/backend"
)

// benchTTL outlasts any wait of a measurement that works.
const benchTTL = time.Minute

// measurement is one run of bench.
type measurement struct {
	backend *backend.Backend
	flags   benchFlags
	prefix  string
	tick    func() // moves the progress bar
}

// result is what was measured of one kind of operation.
type result struct {
	Name   string
	Took   time.Duration
	Counts *hdrhistogram.Histogram // of nanoseconds
}

func (r *result) perSecond() float64 { return float64(r.Counts.TotalCount()) / r.Took.Seconds() }

func (r *result) percentile(p float64) time.Duration {
	return time.Duration(r.Counts.ValueAtPercentile(p))
}

// newCounts makes a histogram for up to a minute with three significant digits.
func newCounts() *hdrhistogram.Histogram { return hdrhistogram.New(1, int64(time.Minute), 3) }

func (m *measurement) measure(ctx context.Context) ([]*result, error) {
	m.prefix = "bench/" + rand.Text() + "/"
	ticking, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		for ticker := time.NewTicker(100 * time.Millisecond); ticking.Err() == nil; <-ticker.C {
			m.tick()
		}
	}()
	// What is done once for a connection or a queue is not measured.
	if err := m.cycle(ctx, 0, func(time.Duration) {}); err != nil {
		return nil, err
	}
	released := make([]atomic.Int64, m.flags.keys)
	start := time.Now()
	var results []*result
	for _, part := range []struct {
		name       string
		goroutines int
		once       func(ctx context.Context, i int, add func(time.Duration)) error
	}{
		{"round trip", 1, m.roundTrip},
		{"cycle", m.flags.goroutines, m.cycle},
		{"hand-off", m.flags.goroutines, func(ctx context.Context, i int, add func(time.Duration)) error {
			return m.handOff(ctx, i%m.flags.keys, start, &released[i%m.flags.keys], add)
		}},
	} {
		r, err := m.repeat(ctx, part.name, part.goroutines, part.once)
		if err != nil {
			return nil, err
		}
		results = append(results, r)
	}
	return results, nil
}

// repeat calls once in goroutines, again and again for a third of the duration, until an error or the
// end of ctx. The latter does not end a call that has begun, so that no lock is left behind. Each
// goroutine calls it at least once: otherwise a slow backend would show nothing.
func (m *measurement) repeat(ctx context.Context, name string, goroutines int,
	once func(ctx context.Context, i int, add func(time.Duration)) error) (*result, error) {
	start := time.Now()
	end := start.Add(m.flags.duration / 3)
	calls, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	var all sync.WaitGroup
	counts := make([]*hdrhistogram.Histogram, goroutines)
	for i := range goroutines {
		counts[i] = newCounts()
		all.Go(func() {
			add := func(d time.Duration) { _ = counts[i].RecordValue(min(max(int64(d), 1), int64(time.Minute))) }
			for called := false; ctx.Err() == nil && calls.Err() == nil; called = true {
				if called && !time.Now().Before(end) {
					return
				}
				if err := once(calls, i, add); err != nil {
					cancel(err) // the first one counts: the others may only follow from it
				}
			}
		})
	}
	all.Wait()
	if err := cmp.Or(context.Cause(calls), ctx.Err()); err != nil {
		return nil, err
	}
	for _, c := range counts[1:] {
		counts[0].Merge(c)
	}
	return &result{Name: name, Took: time.Since(start), Counts: counts[0]}, nil
}

func (m *measurement) roundTrip(ctx context.Context, _ int, add func(time.Duration)) error {
	inspector, ok := m.backend.Locker.(locker.Inspector)
	if !ok {
		return fmt.Errorf("%T: %w", m.backend.Locker, errors.ErrUnsupported)
	}
	start := time.Now()
	_, err := inspector.Inspect(ctx, m.prefix+"free")
	add(time.Since(start))
	return err
}

func (m *measurement) cycle(ctx context.Context, i int, add func(time.Duration)) error {
	start := time.Now()
	lease, err := locker.TryLock(ctx, m.backend.Locker, fmt.Sprint(m.prefix, "own/", i), benchTTL)
	if err != nil {
		return err
	}
	err = lease.Unlock(ctx)
	add(time.Since(start))
	return err
}

// handOff takes and releases a lock that others wait for. released is when its last holder began to
// release it, since start; only the holder reads and writes it.
func (m *measurement) handOff(ctx context.Context, key int, start time.Time, released *atomic.Int64,
	add func(time.Duration)) error {
	lease, err := locker.Lock(ctx, m.backend.Locker, fmt.Sprint(m.prefix, "shared/", key), benchTTL)
	if err != nil {
		return err
	}
	now := time.Since(start)
	if last := released.Load(); last != 0 {
		add(now - time.Duration(last))
	}
	released.Store(int64(time.Since(start)))
	return lease.Unlock(ctx)
}
