package clocks

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/proof"
	"github.com/golockers/locker/conformance/internal/proof/load"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// backend is a server whose clock is set.
type backend struct {
	start func(c *testserver.Clock) *testserver.Server
	opens []load.Open
	// byWall means that its locks end by the wall clock, so they end early if it is set forward, and
	// late if it is set back.
	byWall bool
	// late means that they may also end late if the clock is set back, and otherwise when they should.
	late bool
}

func onRedis(opens ...load.Open) backend {
	return backend{func(c *testserver.Clock) *testserver.Server { return c.Redis() }, opens, true, false}
}

var backends = map[string]backend{
	"redisv9 and rueidis": onRedis(load.Redisv9(), load.Rueidis),
	"redisv9+batching":    onRedis(load.Redisv9(redisv9.WithBatching(1))),
	"redigo":              onRedis(load.Redigo),
	"memcache": {func(c *testserver.Clock) *testserver.Server { return c.Memcached() },
		[]load.Open{load.Memcache}, false, false},
	"postgres": {func(c *testserver.Clock) *testserver.Server { return c.Postgres() },
		[]load.Open{load.Postgres()}, true, false},
	// The leader of etcd 3.4 looks for leases that have ended by the wall clock, and then decides by
	// the monotonic clock whether they have: https://github.com/etcd-io/etcd/issues/12291.
	"etcd": {func(c *testserver.Clock) *testserver.Server { return c.Etcd() }, []load.Open{load.Etcd}, false, true},
}

// keys are few, so there are always waiters.
var keys = []string{"a", "b"}

const ttl = 10 * time.Second

// While the server's clock is set by an hour and back, and wobbles, no two callers hold a lock,
// unless the clock was set forward in between; callers are served all the time, and none hangs.
func TestServerClocks(t *testing.T) {
	t.Parallel()
	for name, b := range backends {
		t.Run(name, func(t *testing.T) {
			if name != "redisv9 and rueidis" {
				testserver.Variant(t, proof.ShortForm)
			}
			t.Parallel()
			clock := testserver.NewClock(t)
			lockers := b.open(t, b.start(clock).Addr)
			l := load.Start(load.Config{Lockers: lockers, Workers: 4, Keys: keys, TTL: ttl,
				Hold: 5 * time.Millisecond, Wait: 5 * time.Second, Fence: true})
			steps := disturb(clock, proof.Duration(t, 4*time.Second))
			report := l.Stop(t)
			again := load.Serves(t, lockers, keys, ttl)
			early := 0
			for _, o := range report.Overlaps {
				if b.byWall && steps.explain(o) {
					early++
					continue
				}
				assert.Fail(t, "two holders, and the clock was not set forward", "%+v", o)
			}
			assert.Less(t, report.Overrun, time.Minute, "a caller did not return when its context ended")
			assert.Positive(t, report.Leases)
			assert.Zero(t, report.Backward, "fencing numbers")
			if t.Failed() {
				t.Log(report.Messages)
			}
			proof.Record(t, "Clocks", name, proof.Of("steps", len(steps)), proof.Of("leases", report.Leases),
				proof.Of("errors", report.Errors), proof.Of("lost leases", report.Lost),
				proof.Of("overlaps after a step forward", early), proof.Of("other overlaps", len(report.Overlaps)-early),
				proof.Of("fencing numbers", report.Fences),
				proof.Of("longest wait", report.LongestWait.Round(time.Millisecond)),
				proof.Of("all served again after", again.Round(time.Millisecond)))
		})
	}
}

// The lock of a holder that has vanished ends when it should, and not when a clock says so that was
// set meanwhile. If it does end by the clock, it does so at once if that is set forward, and not while
// it is set back.
func TestExpiryUnderServerClocks(t *testing.T) {
	t.Parallel()
	for name, b := range backends {
		t.Run(name, func(t *testing.T) {
			if os.Getenv("LOCKER_PROVE") == "" && !(b.byWall && len(b.opens) > 1) {
				t.Skip("only in make prove")
			}
			t.Parallel()
			ttl := 2 * time.Second // etcd and memcached know none that are much shorter
			if b.byWall {
				ttl = 500 * time.Millisecond
			}
			clock := testserver.NewClock(t)
			lockers := b.open(t, b.start(clock).Addr)
			after := func(ahead, ttl time.Duration) time.Duration {
				key := "held when the clock was set by " + ahead.String()
				began := time.Now()
				ok, err := lockers[0].Acquire(t.Context(), key, "vanished", ttl)
				require.NoError(t, err)
				require.True(t, ok)
				clock.Set(ahead)
				defer clock.Set(0)
				for {
					if (b.byWall || b.late) && ahead < 0 && time.Since(began) > 3*ttl {
						clock.Set(ttl) // or it would last for an hour
					}
					ok, err := lockers[1].Acquire(t.Context(), key, "next", ttl)
					require.NoError(t, err)
					if ok {
						return time.Since(began)
					}
					require.Less(t, time.Since(began), patience, "the lock never ends")
					time.Sleep(10 * time.Millisecond)
				}
			}
			unchanged, back := after(0, ttl), after(-time.Hour, ttl)
			assert.GreaterOrEqual(t, unchanged, ttl)
			assert.GreaterOrEqual(t, back, ttl)
			text := func(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
			ifForward, ifBack := "at once", text(back)
			if b.byWall {
				assert.Less(t, after(time.Hour, 30*time.Minute), 30*time.Minute)
				assert.Greater(t, back, 3*ttl)
			} else {
				forward := after(time.Hour, ttl)
				assert.GreaterOrEqual(t, forward, ttl)
				ifForward = text(forward)
			}
			if (b.byWall || b.late) && back > 3*ttl {
				ifBack = "when the clock was right again"
			}
			proof.Record(t, "Expiry", name, proof.Of("ttl", ttl), proof.Of("ended after", text(unchanged)),
				proof.Of("if the clock is set forward", ifForward), proof.Of("if it is set back", ifBack))
		})
	}
}

func (b backend) open(t *testing.T, addr string) (lockers []locker.Locker) {
	t.Helper()
	for i := range 2 {
		lockers = append(lockers, b.opens[i%len(b.opens)](t, addr))
	}
	return lockers
}

// step is a change of the clock.
type step struct {
	began, ended time.Time // by this process's clock
	by           time.Duration
}

type steps []step

// lag is how old the time can be that a server works with, or that a grant carries, on a busy
// machine.
const lag = 500 * time.Millisecond

// explain reports whether the clock was set forward between the two grants, or shortly before. It
// is not known which of them was the first. A clock that wobbles is no reason: the lock's ttl is
// longer.
func (all steps) explain(o load.Overlap) bool {
	from, to := o.First.Asked, o.Second.From // the order is that of From
	if o.Second.Asked.Before(from) {
		from = o.Second.Asked
	}
	return slices.ContainsFunc(all, func(s step) bool {
		return s.by > ttl && s.ended.After(from.Add(-lag)) && s.began.Before(to)
	})
}

// disturb changes the clock for d, and then sets it right.
func disturb(clock *testserver.Clock, d time.Duration) (all steps) {
	var now time.Duration
	set := func(ahead time.Duration) {
		s := step{began: time.Now(), by: ahead - now}
		clock.Set(ahead)
		s.ended = time.Now()
		all = append(all, s)
		now = ahead
	}
	for end := time.Now().Add(d); time.Now().Before(end); {
		for _, ahead := range []time.Duration{time.Hour, 0, -time.Hour, 0} {
			set(ahead)
			time.Sleep(2*lag - rand.N(lag))
		}
		for range 20 { // a clock that wobbles
			set(rand.N(200*time.Millisecond) - 100*time.Millisecond)
			time.Sleep(rand.N(20 * time.Millisecond))
		}
		set(0)
	}
	return all
}

// A backend that sometimes grants a lock that is held is found out, although its clock is set.
func TestServerClocksFindsTwoHolders(t *testing.T) {
	t.Parallel()
	clock := testserver.NewClock(t)
	addr := clock.Redis().Addr
	var lockers []locker.Locker
	for range 2 {
		lockers = append(lockers, &generous{Locker: load.Redisv9()(t, addr)})
	}
	for range 30 {
		l := load.Start(load.Config{Lockers: lockers, Workers: 4, Keys: keys[:1], TTL: ttl,
			Hold: 20 * time.Millisecond, Wait: 5 * time.Second})
		steps := disturb(clock, time.Second)
		for _, o := range l.Stop(t).Overlaps {
			if !steps.explain(o) {
				return
			}
		}
	}
	assert.Fail(t, "not found")
}

// generous grants every twentieth attempt that was refused.
type generous struct {
	locker.Locker
	refused atomic.Int64
}

func (g *generous) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	acquired, err := g.Locker.Acquire(ctx, key, token, ttl)
	return acquired || err == nil && g.refused.Add(1)%20 == 0, err
}
