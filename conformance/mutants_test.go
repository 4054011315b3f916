package conformance

import (
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/golockers/locker/conformance/internal/harness"
	"github.com/golockers/locker/conformance/internal/mutants"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// testMutants runs checks against each of the mutants, many of them at the same time, since checks
// mostly wait. Races need a processor at the right moment, and what a broken Locker does on a busy
// machine is not always foreseeable. So results that differ from the mutant's lists are repeated
// when the others are done, and must be right once. Correct Lockers get no second chance: see
// TestNoFalseAlarm….
func testMutants(t *testing.T, list []mutants.Mutant) {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b mutants.Mutant) int { return failsSlowly(b) - failsSlowly(a) })
	var all sync.WaitGroup
	room := make(chan struct{}, 24)
	wrong := make([]map[string]string, len(list))
	for i, m := range list {
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			t.Run(m.Name, func(t *testing.T) { wrong[i] = judge(t, m, checks()) })
		})
	}
	all.Wait()
	// Again, a few at a time.
	room = make(chan struct{}, 4)
	for i, m := range list {
		if len(wrong[i]) == 0 {
			continue
		}
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			t.Run(m.Name+" again", func(t *testing.T) { again(t, m, wrong[i]) })
		})
	}
	all.Wait()
}

// allChecks is the environment variable that, set to 1, runs all checks against each mutant.
const allChecks = "LOCKER_LONG"

// slow are the checks that take more than half a second, or much of a processor, on a quick
// backend. A mutant is run with those that it must fail, and with all that are not slow. With
// LOCKER_LONG=1 it is run with the others as well.
var slow = []string{
	"context/no-late-success", "exclusion/contender-no-effect", "exclusion/race-for-expired-key", "expiry/*",
	"extend/after-takeover", "extend/atomic", "extend/keep-alive", "extend/longer", "extend/owner-only", "extend/replaces", "extend/shorter",
	"fault/abandoned-waiter", "fault/delayed-grant", "fault/extend-after-lost-reply", "fault/extend-after-lost-reply-queued",
	"fault/extend-paused", "fault/extend-expired", "fault/hang-cancel", "fault/hang-leak", "fault/hang-waiter", "fault/late-acquire", "fault/late-acquire-released", "fault/late-wait", "fault/push-*",
	"fault/reconnect-keeps-place", "fault/slow-link", "fault/takeover-paused", "fault/wait-disconnect", "fault/wait-reply-lost",
	"fault/waiter-crash", "fault/watch-backoff", "fence/no-side-effects", "fence/stale-holder", "inspect/expiry",
	"inspect/no-side-effects", "list/concurrent", "list/many", "names/hash-collisions", "release/atomic", "sametoken/ttl-restarts",
	"wait/cancel", "wait/cancel-stress", "wait/deadline", "wait/fifo", "wait/head-leaves", "wait/holder-vanishes", "wait/keeps-place",
	"wait/own-ttl", "wait/queued-token", "wait/uncontended", "watch/handoff",
}

// failsSlowly returns how many of the checks that m must fail are slow. Those with many begin first.
func failsSlowly(m mutants.Mutant) (n int) {
	for _, name := range m.Must {
		if anyMatches(slow, name) {
			n++
		}
	}
	return n
}

// judge runs the checks of list against m, except those that m may fail, whose results prove
// nothing, and slow ones that it need not fail. It returns, by the name of the check, which results
// are wrong.
func judge(t *testing.T, m mutants.Mutant, list []harness.Check) map[string]string {
	t.Helper()
	every := os.Getenv(allChecks) == "1"
	list = slices.DeleteFunc(slices.Clone(list), func(ck harness.Check) bool {
		if slices.Contains(m.Must, ck.Name) {
			return false
		}
		return m.Only != nil && !anyMatches(m.Only, ck.Name) || anyMatches(m.May, ck.Name) || !every && anyMatches(slow, ck.Name)
	})
	config := m.Config
	if config == nil {
		config = func(testing.TB) harness.Config { return mutants.Fakes(m.Alter) }
	}
	wrong := make(map[string]string)
	s, err := harness.NewSuite(t, config(t), list)
	if err != nil { // on a busy machine a mutant may not get as far as the checks
		for _, ck := range list {
			wrong[ck.Name] = "was not judged by " + ck.Name + ": " + err.Error()
		}
		return wrong
	}
	for name, r := range s.RunAll(t) {
		must := slices.Contains(m.Must, name)
		switch {
		case must && !r.Failed():
			wrong[name] = "passed " + name + " " + r.Why() + "\n" + r.Printed()
		case r.Failed() && !must:
			wrong[name] = "failed " + name + ", which it should pass:\n" + r.Printed()
		}
	}
	return wrong
}

// anyMatches reports whether one of the patterns matches name.
func anyMatches(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, name) })
}

// again repeats the checks whose results were wrong.
func again(t *testing.T, m mutants.Mutant, wrong map[string]string) {
	t.Helper()
	const tries = 4
	for try := 1; len(wrong) > 0; try++ {
		text := strings.Join(slices.Sorted(maps.Values(wrong)), "\nand ")
		if try > tries {
			assert.Fail(t, "the mutant was not judged correctly", "in %d tries: it %s", try, text)
			return
		}
		t.Logf("try %d: the mutant %s", try, text)
		list := slices.DeleteFunc(checks(), func(ck harness.Check) bool { return wrong[ck.Name] == "" })
		wrong = judge(t, m, list)
	}
}

// matches reports whether name is the check of that name, or begins with what is before the * in
// pattern, such as group/*.
func matches(pattern, name string) bool {
	group, ok := strings.CutSuffix(pattern, "*")
	return name == pattern || ok && strings.HasPrefix(name, group)
}

// The tests of mutants are not parallel to others, which would take the processor that a race
// needs.

func TestMutants(t *testing.T) { testMutants(t, mutants.Local()) }

func TestNetworkMutants(t *testing.T) {
	testMutants(t, slices.Concat(mutants.HTTP2(), mutants.Redis()))
}

func TestEveryCheckCanFail(t *testing.T) {
	t.Parallel()
	caught := make(map[string]bool)
	known := make(map[string]bool)
	for _, ck := range checks() {
		known[ck.Name] = true
	}
	for _, m := range slices.Concat(mutants.Local(), mutants.Redis(), mutants.HTTP2()) {
		require.NotEmpty(t, m.Must, "%s fails nothing", m.Name)
		for _, name := range m.Must {
			assert.True(t, known[name], "%s must fail %s, which is not a check", m.Name, name)
			caught[name] = true
		}
		for _, pattern := range m.May {
			assert.True(t, slices.ContainsFunc(checks(), func(ck harness.Check) bool { return matches(pattern, ck.Name) }),
				"%s may fail %s, which is not a check", m.Name, pattern)
		}
	}
	for _, ck := range checks() {
		assert.True(t, caught[ck.Name], "no mutant must fail %s", ck.Name)
	}
	for _, pattern := range slow {
		assert.True(t, slices.ContainsFunc(checks(), func(ck harness.Check) bool { return matches(pattern, ck.Name) }),
			"%s is slow, but no check", pattern)
	}
}

func TestCheckTable(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for _, ck := range checks() {
		group, rest, ok := strings.Cut(ck.Name, "/")
		assert.True(t, ok && group != "" && rest != "" && !strings.Contains(rest, "/"), "name %q", ck.Name)
		assert.False(t, seen[ck.Name], "%s is there twice", ck.Name)
		seen[ck.Name] = true
		assert.NotEmpty(t, ck.Rules, ck.Name)
		assert.NotEmpty(t, ck.Causes, ck.Name)
		assert.NotNil(t, ck.Run, ck.Name)
	}
}

// A Locker that lets every token in is not reported as one whose Lockers are on different backends.
func TestBrokenIsNotBadConfig(t *testing.T) {
	t.Parallel()
	for _, m := range mutants.Local() {
		config := mutants.Fakes(m.Alter)
		if m.Config != nil {
			config = m.Config(t)
		}
		_, err := harness.NewSuite(t, config, checks())
		assert.NoError(t, err, m.Name)
	}
}
