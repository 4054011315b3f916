package disturb

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/proof"
	"github.com/golockers/locker/conformance/internal/proof/load"
	"github.com/golockers/locker/internal/leaktest"
	_ "github.com/golockers/locker/internal/quiet"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// backend is a kind of server, the adapters that use it, and what can happen to it.
type backend struct {
	start        func(t *testing.T, args []string) *system
	adapters     map[string][]load.Open // by name; those of one entry share locks
	base         load.Open              // that mutants are made of
	slow         bool                   // to start, so mutants run only with LOCKER_PROVE
	variant      bool                   // runs only with all tests
	repeats      bool                   // its clients repeat a request without an answer, which may count twice
	disturbances map[string]disturbance
	// eternal returns a function that returns how many counts of package window have no expiry, or an
	// error if the server does not answer just now. It is nil if that cannot be asked.
	eternal func(t *testing.T, s *system) func(ctx context.Context) (int, error)
}

// disturbance is something that happens to a server.
type disturbance struct {
	args []string // of the server
	// loses means that the server may forget locks. Then two callers may hold one, which is counted.
	loses bool
	// losesCounts means that the server may forget counts of package window, but no locks.
	losesCounts bool
	// fails means that too many requests fail, or for too long, for package locker to release all
	// locks of unknown outcome: it tries only for 5 seconds. A lock that it cannot release ends
	// with its ttl.
	fails bool
	slow  bool // only with LOCKER_PROVE
	// do disturbs the server, and leaves it as it was.
	do func(e *env)
	// finds names the mutants that the checks must find.
	finds []string
}

// system is what runs.
type system struct {
	addr   string             // for clients
	server *testserver.Server // what clients connect to, if it is one server
	behind *testserver.Server // of a pooler: the server
	nodes  []*testserver.Server
	tag    string // of a Cluster: a hash tag for all keys
}

func (s *system) key(name string) string {
	if s.tag == "" {
		return name
	}
	return name + "{" + s.tag + "}"
}

// one is a system of one server.
func one(start func(tb testing.TB, args ...string) *testserver.Server) func(t *testing.T, args []string) *system {
	return func(t *testing.T, args []string) *system {
		s := start(t, args...)
		return &system{addr: s.Addr, server: s}
	}
}

// env is what a disturbance acts on.
type env struct {
	testing.TB
	ctx context.Context
	*system
}

// limits are what callers must keep to.
type limits struct {
	returns time.Duration // how long after its context's end a caller returns
	stops   time.Duration // how long it takes until all callers have returned
	serves  time.Duration // how long it takes after the disturbance until all are served
}

const ttl = 30 * time.Second

// usual is for any machine. A lock that is left behind is noticed, since its ttl is longer than
// serves.
var usual = limits{returns: time.Minute, stops: 2 * time.Minute, serves: ttl * 2 / 3}

// backends is in reverse order: the parts of a test wait for each other, and the last one begins
// first. The parts with Redis leave connections that take long to end.
var backends = []backend{onEtcd, onPgBouncer, onPostgres, onMemcached, onReplicatedCluster, onCluster, onRedis}

// While a server is disturbed no two callers hold a lock, unless the server forgets locks; no caller
// hangs; and afterwards all are served again. Counts of package window are exact as well.
func TestDisturbances(t *testing.T) {
	sums := new(sums)
	t.Run("all", func(t *testing.T) {
		for _, b := range backends {
			for what, d := range b.disturbances {
				t.Run(what, func(t *testing.T) {
					if d.slow && os.Getenv("LOCKER_PROVE") == "" {
						t.Skip("only in make prove")
					}
					if b.variant {
						testserver.Variant(t, proof.ShortForm)
					}
					t.Parallel()
					b.disturb(t, what, d, sums)
				})
			}
		}
	})
	sums.record(t)
}

// running is the callers that use one entry of the adapters.
type running struct {
	adapters string
	lockers  []locker.Locker
	keys     []string
	load     *load.Load
	counting *counting
	report   load.Report
	stopped  error // nil, or that a caller has not returned
}

func (b backend) disturb(t *testing.T, what string, d disturbance, sums *sums) {
	t.Helper()
	s := b.start(t, d.args)
	l := usual
	if d.fails {
		l.serves += ttl
	}
	times, all := b.run(t, s, d, b.adapters, l, proof.Duration(t, 0)/10)
	for _, r := range all {
		again, problems := r.judge(d, l)
		for _, problem := range problems {
			assert.Fail(t, problem, "%s: %v", r.adapters, r.report.Messages)
		}
		if r.counting != nil {
			sums.add(t, r.adapters, r.counting.judge(t, b, d))
		}
		proof.Record(t, "Disturbances", what+", "+r.adapters, proof.Of("times", times),
			proof.Of("leases", r.report.Leases), proof.Of("errors", r.report.Errors),
			proof.Of("lost leases", r.report.Lost),
			proof.Of("overlaps", len(r.report.Overlaps)),
			proof.Of("fencing numbers", r.report.Fences),
			proof.Of("longest wait", r.report.LongestWait.Round(time.Millisecond)),
			proof.Of("all served again after", again.Round(time.Millisecond)))
	}
}

// run disturbs a system, once or for some time, while callers use it.
func (b backend) run(t *testing.T, s *system, d disturbance, adapters map[string][]load.Open, l limits,
	atLeast time.Duration) (times int, all []*running) {
	t.Helper()
	for name, opens := range adapters {
		r := &running{adapters: name, keys: []string{s.key("a of " + name), s.key("b of " + name)}}
		for i := range 2 {
			r.lockers = append(r.lockers, opens[i%len(opens)](t, s.addr))
		}
		r.load = load.Start(load.Config{Lockers: r.lockers, Workers: 4, Keys: r.keys, TTL: ttl,
			Hold: 3 * time.Millisecond, Wait: 2 * time.Second, Fence: true})
		r.counting = count(r.lockers, s.key("of "+name))
		all = append(all, r)
	}
	e := &env{t, t.Context(), s}
	eternal := b.watchEternal(t, s)
	for _, r := range all {
		r.awaitUse(l.serves)
	}
	time.Sleep(200 * time.Millisecond)
	for end := time.Now().Add(atLeast); times == 0 || time.Now().Before(end); times++ {
		d.do(e)
		time.Sleep(200 * time.Millisecond)
	}
	for _, r := range all {
		r.report, r.stopped = r.load.End(l.stops)
		r.counting.stop()
	}
	found := eternal()
	for _, r := range all {
		if r.counting != nil {
			r.counting.eternal = found
		}
	}
	return times, all
}

// awaitUse waits until the callers have taken a lock and counted, so that there is something to disturb.
func (r *running) awaitUse(atMost time.Duration) {
	for end := time.Now().Add(atMost); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if r.load.Leases() > 0 && (r.counting == nil || r.counting.counted.Load() > 0) {
			return
		}
	}
}

// judge returns what is wrong, and how long it took until all were served.
func (r *running) judge(d disturbance, l limits) (again time.Duration, problems []string) {
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	if r.stopped != nil {
		wrong("%v", r.stopped)
		return 0, problems
	}
	if r.report.Overrun > l.returns {
		wrong("a caller returned %v after its context's end", r.report.Overrun)
	}
	if r.report.Leases == 0 {
		wrong("no lock was taken")
	}
	if r.report.Backward > 0 {
		wrong("%d fencing numbers were not greater than earlier ones", r.report.Backward)
	}
	if len(r.report.Overlaps) > 0 && !d.loses {
		wrong("two holders: %+v", r.report.Overlaps)
	}
	if r.report.Lost > 0 && !d.loses {
		wrong("%d locks were lost", r.report.Lost)
	}
	again, err := load.Served(r.lockers, r.keys, ttl, l.serves)
	if err != nil {
		wrong("%v", err)
	}
	return again, problems
}

// A server that stops answering for a while, without an end to its connections.
func suspend(e *env) { suspendServer(e.server) }

func suspendServer(s *testserver.Server) {
	s.Pause()
	time.Sleep(300 * time.Millisecond)
	s.Continue()
}

func restart(e *env) { e.server.Restart() }
