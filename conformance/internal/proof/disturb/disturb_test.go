package disturb

import (
	"context"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/proof"
	"github.com/golockers/locker/conformance/internal/proof/load"
	"github.com/golockers/locker/internal/leaktest"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// backend is a kind of server, the adapters that use it, and what can happen to it.
type backend struct {
	start        func(tb testing.TB, args ...string) *testserver.Server
	adapters     map[string][]load.Open // by name; those of one entry share locks
	disturbances map[string]disturbance
}

// disturbance is something that happens to a server.
type disturbance struct {
	args []string // of the server
	// loses means that the server may forget locks. Then two callers may hold one, which is counted.
	loses bool
	// do disturbs the server, and leaves it as it was.
	do func(e *env)
}

// env is what a disturbance acts on.
type env struct {
	testing.TB
	ctx    context.Context
	server *testserver.Server
}

const ttl = 10 * time.Second

// While a server is disturbed no two callers hold a lock, unless the server forgets locks; no caller
// hangs; and afterwards all are served again.
func TestDisturbances(t *testing.T) {
	for _, b := range []backend{onRedis, onMemcached, onPostgres, onEtcd} {
		for what, d := range b.disturbances {
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				b.disturb(t, what, d)
			})
		}
	}
}

type running struct {
	adapters string
	lockers  []locker.Locker
	keys     []string
	load     *load.Load
}

func (b backend) disturb(t *testing.T, what string, d disturbance) {
	t.Helper()
	server := b.start(t, d.args...)
	var all []*running
	for name, opens := range b.adapters {
		r := &running{adapters: name, keys: []string{"a of " + name, "b of " + name}}
		for i := range 2 {
			r.lockers = append(r.lockers, opens[i%len(opens)](t, server.Addr))
		}
		r.load = load.Start(load.Config{Lockers: r.lockers, Workers: 4, Keys: r.keys, TTL: ttl,
			Hold: 3 * time.Millisecond, Wait: 2 * time.Second, Fence: true})
		all = append(all, r)
	}
	e := &env{t, t.Context(), server}
	times := 0
	time.Sleep(200 * time.Millisecond)
	for end := time.Now().Add(proof.Duration(t, 0) / 10); times == 0 || time.Now().Before(end); times++ {
		d.do(e)
		time.Sleep(200 * time.Millisecond)
	}
	reports := make([]load.Report, len(all))
	for i, r := range all {
		reports[i] = r.load.Stop(t)
	}
	for i, r := range all {
		report := reports[i]
		again := load.Serves(t, r.lockers, r.keys, ttl)
		assert.Less(t, report.Overrun, time.Minute, "a caller did not return when its context ended")
		assert.Positive(t, report.Leases)
		assert.Zero(t, report.Backward, "fencing numbers")
		if !d.loses {
			assert.Empty(t, report.Overlaps, "two holders")
			assert.Zero(t, report.Lost, "a lock was lost")
		}
		if t.Failed() {
			t.Log(report.Messages)
		}
		proof.Record(t, "Disturbances", what+", "+r.adapters, proof.Of("times", times),
			proof.Of("leases", report.Leases), proof.Of("errors", report.Errors), proof.Of("lost leases", report.Lost),
			proof.Of("overlaps", len(report.Overlaps)),
			proof.Of("fencing numbers", report.Fences),
			proof.Of("longest wait", report.LongestWait.Round(time.Millisecond)),
			proof.Of("all served again after", again.Round(time.Millisecond)))
	}
}

// A server that stops answering for a while, without an end to its connections.
func suspend(e *env) {
	e.server.Pause()
	time.Sleep(300 * time.Millisecond)
	e.server.Continue()
}

func restart(e *env) { e.server.Restart() }
