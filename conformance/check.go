package conformance

import (
	"context"
	"fmt"
	"runtime/pprof"
	"slices"
	"sync"
	"testing"
	"time"
)

// check is one thing that every Locker has to get right.
type check struct {
	name   string // group/what-must-hold
	rule   string // the sentence of the contract that it enforces
	causes string // what commonly breaks it
	needs  needs  // what must be there for it to be run at all
	alone  bool   // run when no other check of this run uses the backend
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

// tries is how often a check is run that could not check, the first time included.
const tries = 4

// turns lets the checks run at the same time at first, and after that those that have to be alone, or were
// inconclusive beside the others, one by one.
type turns struct {
	together sync.WaitGroup // the checks that have not been run yet
	alone    sync.Mutex
}

// judge runs a check and, while it is inconclusive, again when it has the backend to itself. First is called
// when it is no longer one of those that run together.
func (s *suite) judge(tb testing.TB, ck check, t *turns, first func()) *recorder {
	var r *recorder
	runs := 0
	if !ck.alone {
		r = s.run(tb, ck)
		runs++
	}
	first()
	if r != nil && !r.Inconclusive() {
		return r
	}
	t.together.Wait()
	t.alone.Lock()
	defer t.alone.Unlock()
	for ; runs < tries && (r == nil || r.Inconclusive()); runs++ {
		r = s.run(tb, ck)
	}
	return r
}

// runAll runs all checks and returns what each came to, by name.
func (s *suite) runAll(tb testing.TB) map[string]*recorder {
	results := make(map[string]*recorder, len(s.checks))
	var t turns
	var all sync.WaitGroup
	var mu sync.Mutex
	t.together.Add(len(s.checks))
	for _, ck := range s.checks {
		all.Go(func() {
			r := s.judge(tb, ck, &t, t.together.Done)
			mu.Lock()
			defer mu.Unlock()
			results[ck.name] = r
		})
	}
	all.Wait()
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
			r.skipFor(reason)
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
