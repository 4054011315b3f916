package conformance

import (
	"context"
	"fmt"
	"runtime/pprof"
	"slices"
	"testing"
	"time"
)

// check is one thing that every Locker has to get right.
type check struct {
	name   string // group/what-must-hold
	rule   string // the sentence of the contract that it enforces
	causes string // what commonly breaks it
	needs  needs  // what must be there for it to be run at all
	run    func(e *env)
}

// needs is a set of things without which a check is skipped by name.
type needs uint

const (
	needsNetwork needs = 1 << iota // Config.Addr
	needsWatch                     // a locker.Watcher
	needsWait                      // a locker.Waiter
	needsFence                     // a locker.Fencer
	needsNoWait                    // a locker.Waiter that says errors.ErrUnsupported
)

// checks returns the table of all checks. Each file contributes the list of its group.
func checks() []check {
	return slices.Concat(
		exclusionChecks(),
		expiryChecks(),
		extendChecks(),
		releaseChecks(),
		sameTokenChecks(),
		contextChecks(),
		watchChecks(),
		waitChecks(),
		fenceChecks(),
		faultChecks(),
	)
}

// checkLimit is how long a check may take before it counts as hung. None comes near it on a Locker that
// returns from its methods.
const checkLimit = 5 * time.Minute

// runAll runs every check at the same time and returns what each came to, by name.
func (s *suite) runAll(tb testing.TB) map[string]*recorder {
	results := make(map[string]*recorder, len(s.checks))
	for _, ck := range s.checks {
		results[ck.name] = s.start(tb, ck)
	}
	for _, r := range results {
		r.wait(checkLimit)
	}
	return results
}

// run runs one check and returns when it is done.
func (s *suite) run(tb testing.TB, ck check) *recorder {
	r := s.start(tb, ck)
	r.wait(checkLimit)
	return r
}

// start starts a check in a goroutine of its own, whose profiler labels tell it and all that it starts from
// every other.
func (s *suite) start(tb testing.TB, ck check) *recorder {
	r := newRecorder(tb, ck.name)
	e := newEnv(s, ck, r)
	r.explain = func() string { return e.explain("") }
	reason, skip := s.skips(ck)
	r.start(func() {
		if skip {
			r.Skipf("%s is skipped: %s", ck.name, reason)
		}
		pprof.Do(context.Background(), pprof.Labels(leakLabel, e.id), func(context.Context) { e.guard(func() { ck.run(e) }) })
	})
	return r
}

// skips says why a check is not to be run, if so.
func (s *suite) skips(ck check) (reason string, skip bool) {
	if reason, skip = s.config.Skip[ck.name]; skip {
		return reason, true
	}
	for lack := needsNetwork; lack <= needsNoWait; lack <<= 1 {
		if reason, skip = s.lacks[lack]; skip && ck.needs&lack != 0 {
			return reason, true
		}
	}
	return "", false
}

func (ck check) String() string { return fmt.Sprintf("check %s", ck.name) }
