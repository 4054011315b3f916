//go:build linux

package failover

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/proof"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// system is a backend of which a server is about to fail.
type system struct {
	open func(tb testing.TB) locker.Locker // a client with its own connections
	key  func(key string) string           // the name of a lock that the failure affects
	fail func(l *load)                     // what happens
	heal func()                            // and how it ends; nil: it does not
}

// start makes a system of its own.
type start func(t *testing.T) *system

// scenario is a failure of a system.
type scenario struct {
	name  string
	start start
	keeps bool // nothing is lost
	loses bool // something is lost, or the measure is wrong
	slow  bool // only with LOCKER_PROVE

	// repeats means that fencing numbers go back with the replica: the adapter counts them.
	repeats bool
}

func scenarios() []scenario {
	return slices.Concat(sentinelScenarios, clusterScenarios, ringScenarios, postgresScenarios, etcdScenarios,
		restartScenarios)
}

func plain(key string) string { return key }

// Servers fail while clients take, keep and count on locks. What must be kept is kept, fencing numbers
// never go back, and all clients go on.
func TestFailover(t *testing.T) {
	testserver.Variant(t, "what a Sentinel, a Cluster or a standby keeps hardly depends on a change")
	atLeast := time.Duration(0)
	text, long := os.LookupEnv("LOCKER_PROVE")
	if long {
		var err error
		atLeast, err = time.ParseDuration(text)
		require.NoError(t, err)
	}
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			if s.slow && !long {
				t.Skip("only in make prove")
			}
			t.Parallel()
			var sum result
			for end := time.Now().Add(atLeast); ; {
				sum.add(s.run(t))
				if !time.Now().Before(end) || t.Failed() {
					break
				}
			}
			if s.keeps {
				assert.Zero(t, sum.forgotten, "locks that were forgotten")
				assert.Zero(t, sum.overlaps, "beliefs that overlap")
			}
			if s.loses {
				assert.NotZero(t, sum.forgotten, "locks that were forgotten")
			}
			if !s.repeats {
				assert.Zero(t, sum.back, "fencing numbers that went back")
			}
			sum.record(t, s.name)
		})
	}
}

type result struct {
	times, grants, forgotten, beliefs, overlaps int
	fences, back, failures                      int64
	longest, pause                              time.Duration
}

func (r *result) add(s result) {
	r.times += s.times
	r.grants += s.grants
	r.forgotten += s.forgotten
	r.beliefs += s.beliefs
	r.overlaps += s.overlaps
	r.fences += s.fences
	r.back += s.back
	r.failures += s.failures
	r.longest, r.pause = max(r.longest, s.longest), max(r.pause, s.pause)
}

func (r *result) record(t *testing.T, name string) {
	t.Helper()
	proof.Record(t, "Failover", name, proof.Of("failures", r.times),
		proof.Of("locks", r.grants), proof.Of("forgotten", r.forgotten), proof.Of("beliefs", r.beliefs),
		proof.Of("overlaps", r.overlaps), proof.Of("longest overlap", seconds(r.longest)),
		proof.Of("fencing numbers", r.fences), proof.Of("that went back", r.back),
		proof.Of("errors", r.failures), proof.Of("longest pause", seconds(r.pause)))
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// run makes a system of its own fail once.
func (s scenario) run(t *testing.T) (r result) {
	t.Run("", func(t *testing.T) { // its servers end with it
		sys := s.start(t)
		if sys.key == nil {
			sys.key = plain
		}
		l := run(t, sys)
		l.goesOn()
		sys.fail(l)
		l.goesOn()
		if sys.heal != nil {
			sys.heal()
			l.goesOn()
		}
		l.stop()
		r = result{times: 1, grants: len(l.grants), forgotten: l.forgotten(), beliefs: len(l.beliefs),
			fences: l.fences.Load(), back: l.back.Load(), failures: l.failures.Load(), pause: l.pause}
		r.overlaps, r.longest = l.overlaps()
	})
	return r
}
