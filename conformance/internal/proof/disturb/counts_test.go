package disturb

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/proof"
	"github.com/golockers/locker/window"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// counting is callers that count during a disturbance, in a window that does not end.
type counting struct {
	counters     []window.Enforcer
	key, limited string
	cancel       context.CancelFunc
	all          sync.WaitGroup
	eternal      int // counts that were seen without an expiry

	counted, unknown atomic.Int64 // calls of Count without an error, and with one
	allowed, denied  atomic.Int64 // answers of CountUnder
}

// callsAllowed is the limit for CountUnder. It is reached soon.
const callsAllowed = 5

var rule = window.Rule{Limit: callsAllowed, Per: window.MaxPer, Fixed: true}

// count begins to count. It returns nil if the Lockers are no Counters.
func count(lockers []locker.Locker, name string) *counting {
	ctx, cancel := context.WithCancel(context.Background())
	c := &counting{key: "counted " + name, limited: "limited " + name, cancel: cancel}
	for _, l := range lockers {
		counter, ok := l.(window.Enforcer)
		if !ok {
			cancel()
			return nil
		}
		c.counters = append(c.counters, counter)
	}
	for _, counter := range c.counters {
		c.all.Go(func() {
			for ctx.Err() == nil {
				// A caller leaves, too, which is one more unknown outcome.
				short, cancel := context.WithTimeout(ctx, time.Second-rand.N(900*time.Millisecond))
				c.turn(short, counter)
				cancel()
				time.Sleep(rand.N(10 * time.Millisecond))
			}
		})
	}
	return c
}

func (c *counting) turn(ctx context.Context, counter window.Enforcer) {
	if _, err := counter.Count(ctx, c.key, 1, rule.Per); err != nil {
		c.unknown.Add(1)
	} else {
		c.counted.Add(1)
	}
	switch _, ok, err := counter.CountUnder(ctx, c.limited, 1, rule); {
	case err != nil:
	case ok:
		c.allowed.Add(1)
	default:
		c.denied.Add(1)
	}
}

func (c *counting) stop() {
	if c != nil {
		c.cancel()
		c.all.Wait()
	}
}

// sum is what was counted with one adapter.
type sum struct {
	disturbances, counted, unknown, lost, twice, allowed, denied, beyond, eternal int64
}

// judge compares what the server counted with the answers.
func (c *counting) judge(t *testing.T, b backend, d disturbance) sum {
	t.Helper()
	var got window.Counts
	require.Eventually(t, func() (ok bool) {
		var err error
		got, err = c.counters[0].Count(context.Background(), c.key, 0, rule.Per)
		return err == nil
	}, time.Minute, 10*time.Millisecond, "nothing can be counted after the disturbance")
	s := sum{disturbances: 1, counted: c.counted.Load(), unknown: c.unknown.Load(), allowed: c.allowed.Load(),
		denied: c.denied.Load(), eternal: int64(c.eternal)}
	total := got.Current + got.Previous // in case the window has ended
	s.lost, s.twice = max(0, s.counted-total), max(0, total-s.counted-s.unknown)
	if b.repeats { // a call may be counted twice, but not more often
		s.twice = max(0, total-2*(s.counted+s.unknown))
	}
	s.beyond = max(0, s.allowed-callsAllowed)
	assert.NotZero(t, s.counted)
	assert.Zero(t, s.twice, "calls were counted more than once")
	assert.Zero(t, s.eternal, "counts without an expiry")
	if d.loses || d.losesCounts {
		s.lost, s.beyond = 0, 0 // which may be
		return s
	}
	assert.Zero(t, s.lost, "calls that were counted are forgotten")
	assert.Zero(t, s.beyond, "calls beyond the limit were allowed")
	return s
}

// watchEternal looks again and again for counts without an expiry. The function that it returns ends
// that, and returns the most that it has seen.
func (b backend) watchEternal(t *testing.T, s *system) (end func() (most int)) {
	t.Helper()
	if b.eternal == nil {
		return func() int { return 0 }
	}
	eternal := b.eternal(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan int, 1)
	go func() {
		most := 0
		for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
			short, cancel := context.WithTimeout(ctx, time.Second)
			if n, err := eternal(short); err == nil {
				most = max(most, n)
			}
			cancel()
		}
		result <- most
	}()
	return func() int {
		cancel()
		return <-result
	}
}

// sums are those of all disturbances, by adapter.
type sums struct {
	mu sync.Mutex
	by map[string]*sum
}

func (all *sums) add(t *testing.T, adapter string, s sum) {
	if t.Failed() {
		return
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.by == nil {
		all.by = make(map[string]*sum)
	}
	to := all.by[adapter]
	if to == nil {
		to = new(sum)
		all.by[adapter] = to
	}
	to.disturbances++
	to.counted += s.counted
	to.unknown += s.unknown
	to.lost += s.lost
	to.twice += s.twice
	to.allowed += s.allowed
	to.denied += s.denied
	to.beyond += s.beyond
	to.eternal += s.eternal
}

func (all *sums) record(t *testing.T) {
	t.Helper()
	for adapter, s := range all.by {
		assert.NotZero(t, s.denied, "%s: the limit was never reached", adapter)
		proof.Record(t, "Counts", adapter, proof.Of("disturbances", s.disturbances), proof.Of("counted", s.counted),
			proof.Of("of unknown outcome", s.unknown), proof.Of("forgotten", s.lost), proof.Of("counted twice", s.twice),
			proof.Of("allowed", s.allowed), proof.Of("denied", s.denied), proof.Of("allowed beyond the limit", s.beyond),
			proof.Of("without expiry", s.eternal))
	}
}
