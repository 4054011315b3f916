package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/faultproxy"
	"github.com/golockers/locker/conformance/internal/harness"
)

// Benchmark measures the backend that c describes, through [locker.Lock] and [locker.Lease.Unlock],
// in these scenarios, each of which is a sub-benchmark:
//
//   - uncontended: one goroutine with its own lock;
//   - uncontended-parallel: 32 goroutines on one Locker, each with its own lock;
//   - one-locker: 32 goroutines on one Locker want the same lock;
//   - four-lockers: 8 goroutines on each of four Lockers want the same lock;
//   - handoff: one goroutine on each of four Lockers, which want the same lock, hold it for 5 ms and
//     rest for 5 ms.
//
// An operation is a cycle of lock and unlock. If Config.Addr is set, requests/op is how many
// requests a cycle makes, counted in a separate run, since counting takes time. If several
// goroutines want one lock, least-share is the share of the cycles that the goroutine served
// least got, relative to its fair share; in handoff, handoff-p50-ms and handoff-p99-ms are the
// times from the beginning of an Unlock to the end of the next Lock.
func Benchmark(b *testing.B, c Config) {
	b.Helper()
	s, err := harness.NewSuite(b, harness.Config(c), checks())
	if err != nil {
		b.Fatalf("conformance: %v", err)
	}
	lockers := append(s.Lockers[:], c.New(b, c.Addr))
	for _, sc := range scenarios {
		requests := -1.0
		b.Run(sc.name, func(b *testing.B) {
			if c.Addr != "" && requests < 0 {
				requests = sc.requests(b, c)
			}
			b.ReportAllocs()
			b.ResetTimer()
			m := sc.run(b, lockers[:sc.lockers], b.N)
			b.StopTimer()
			if requests >= 0 {
				b.ReportMetric(requests, "requests/op")
			}
			if !sc.ownKeys {
				b.ReportMetric(m.leastShare(b.N), "least-share")
			}
			if sc.hold > 0 && len(m.handoffs) > 0 {
				slices.Sort(m.handoffs)
				for _, p := range []int{50, 99} {
					d := m.handoffs[(len(m.handoffs)-1)*p/100]
					b.ReportMetric(float64(d.Microseconds())/1000, fmt.Sprintf("handoff-p%d-ms", p))
				}
			}
		})
	}
}

// scenario is a pattern of contention.
type scenario struct {
	name                string
	lockers, goroutines int // goroutines in all
	ownKeys             bool
	hold, rest          time.Duration
}

var scenarios = []scenario{
	{name: "uncontended", lockers: 1, goroutines: 1, ownKeys: true},
	{name: "uncontended-parallel", lockers: 1, goroutines: 32, ownKeys: true},
	{name: "one-locker", lockers: 1, goroutines: 32},
	{name: "four-lockers", lockers: 4, goroutines: 32},
	{name: "handoff", lockers: 4, goroutines: 4, hold: 5 * time.Millisecond, rest: 5 * time.Millisecond},
}

// measured is the outcome of a scenario.
type measured struct {
	served   []int           // cycles, by goroutine
	handoffs []time.Duration // from one's Unlock to another's Lock
}

func (m measured) leastShare(cycles int) float64 {
	return float64(slices.Min(m.served)) * float64(len(m.served)) / float64(cycles)
}

// run makes n cycles in all.
func (sc scenario) run(tb testing.TB, lockers []locker.Locker, n int) measured {
	const ttl = time.Minute
	m := measured{served: make([]int, sc.goroutines)}
	shared := harness.RandomKey()
	var begun atomic.Int64
	var mu sync.Mutex // for what follows
	var released time.Time
	var inside int
	var failed atomic.Pointer[error]
	var all sync.WaitGroup
	for g := range sc.goroutines {
		l, key := lockers[g%len(lockers)], shared
		if sc.ownKeys {
			key = harness.RandomKey()
		}
		all.Go(func() {
			ctx := context.Background()
			for begun.Add(1) <= int64(n) && failed.Load() == nil {
				lease, err := locker.Lock(ctx, l, key, ttl)
				if err != nil {
					failed.Store(&err)
					return
				}
				m.served[g]++
				if sc.hold > 0 {
					mu.Lock()
					if inside++; inside != 1 {
						err := errors.New("two hold the lock at the same time")
						failed.Store(&err)
					} else if !released.IsZero() {
						m.handoffs = append(m.handoffs, time.Since(released))
					}
					mu.Unlock()
					time.Sleep(sc.hold)
					mu.Lock()
					released = time.Now()
					inside--
					mu.Unlock()
				}
				if err := lease.Unlock(ctx); err != nil {
					failed.Store(&err)
					return
				}
				if sc.rest > 0 {
					time.Sleep(sc.rest)
				}
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		tb.Fatalf("conformance: %s: %v", sc.name, *err)
	}
	return m
}

// requests returns how many requests a cycle makes.
func (sc scenario) requests(tb testing.TB, c Config) float64 {
	p := faultproxy.New(tb, c.Addr)
	var lockers []locker.Locker
	for range sc.lockers {
		lockers = append(lockers, c.New(tb, p.Addr))
	}
	cycles := 20 * sc.goroutines
	sc.run(tb, lockers, cycles) // this opens the connections
	before, _ := p.Count()
	sc.run(tb, lockers, cycles)
	after, _ := p.Count()
	return float64(after-before) / float64(cycles)
}
