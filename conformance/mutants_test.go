package conformance

import (
	"context"
	"errors"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker/conformance/internal/harness"
	"github.com/golockers/locker/conformance/internal/mutants"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// testMutants runs each of the mutants with the checks that must fail, or with LOCKER_TEST=all with
// all checks, room of them at a time. Races need a processor at the right moment, and what a broken
// Locker does on a busy machine is not always foreseeable. So results that differ from the mutant's
// lists are repeated, and must be right once. Correct Lockers get no second chance: see
// TestNoFalseAlarm….
func testMutants(t *testing.T, list []mutants.Mutant, room int, judge func(t *testing.T, m mutants.Mutant, list []harness.Check) map[string]string) {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b mutants.Mutant) int { return patience(b) - patience(a) })
	var all sync.WaitGroup
	places := make(chan struct{}, room)
	for _, m := range list {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			t.Run(m.Name, func(t *testing.T) { tryMutant(t, m, judge) })
		})
	}
	all.Wait()
}

// together runs a subtest for each entry of list, all at the same time: they mostly wait, and t.Parallel
// would run no more of them than there are processors. The budget bounds them.
func together[M any](t *testing.T, list map[string]M, run func(t *testing.T, m M)) {
	var all sync.WaitGroup
	for name, m := range list {
		all.Go(func() { t.Run(name, func(t *testing.T) { run(t, m) }) })
	}
	all.Wait()
}

// patience returns how many of the checks that m must fail wait for something that hangs. Mutants with
// many begin first.
func patience(m mutants.Mutant) (n int) {
	for _, name := range m.Must {
		if anyMatches([]string{"fault/hang-*", "fault/push-*", "fault/w*"}, name) {
			n++
		}
	}
	return n
}

// excused is said of a check that a mutant has to fail for being late, and passed on a slow machine.
const excused = "on a machine that was too slow: "

// tryMutant judges m, and repeats the checks whose results were wrong.
func tryMutant(t *testing.T, m mutants.Mutant, judge func(t *testing.T, m mutants.Mutant, list []harness.Check) map[string]string) {
	const tries = 5
	list := chosen(m)
	for try := 1; ; try++ {
		wrong := judge(t, m, list)
		if len(wrong) == 0 {
			return
		}
		text := strings.Join(slices.Sorted(maps.Values(wrong)), "\nand ")
		if try == tries && strings.Count(text, excused) == len(wrong) && os.Getenv("LOCKER_CONFORMANCE") != "strict" {
			t.Skipf("the mutant could not be judged in %d tries: it %s", try, text)
		}
		if try == tries {
			assert.Fail(t, "the mutant was not judged correctly", "in %d tries: it %s", try, text)
			return
		}
		t.Logf("try %d: the mutant %s", try, text)
		list = slices.DeleteFunc(list, func(ck harness.Check) bool { return wrong[ck.Name] == "" })
	}
}

// chosen returns the checks to run against m: those that it must fail, and with LOCKER_TEST=all all
// others but those that it may fail, whose results prove nothing.
func chosen(m mutants.Mutant) []harness.Check {
	return slices.DeleteFunc(checks(), func(ck harness.Check) bool {
		if slices.Contains(m.Must, ck.Name) {
			return false
		}
		return !testserver.All() || m.Only != nil && !anyMatches(m.Only, ck.Name) || anyMatches(m.May, ck.Name)
	})
}

// judge runs the checks of list against m. It returns, by the name of the check, which results are
// wrong.
func judge(t *testing.T, m mutants.Mutant, list []harness.Check) map[string]string {
	return judgeAs(t, m, list, func(*harness.Suite) {})
}

// judgeInBubble is judge in a testing/synctest bubble, where waiting takes no time, if m can be in one.
func judgeInBubble(t *testing.T, m mutants.Mutant, list []harness.Check) (wrong map[string]string) {
	if m.RealTime {
		return judge(t, m, list)
	}
	synctest.Test(t, func(t *testing.T) {
		wrong = judgeAs(t, m, list, func(s *harness.Suite) { bubble(s, 20*time.Microsecond) })
		time.Sleep(2 * time.Minute) // some leave goroutines behind, until then
	})
	return wrong
}

// bubble prepares a suite for a testing/synctest bubble: its budget is its own, or the goroutines that
// wait for it would keep the bubble's time from going on, and each call takes a moment.
func bubble(s *harness.Suite, moment time.Duration) {
	s.Budget, s.Moment = harness.NewBudget(runtime.GOMAXPROCS(0)), moment
}

func judgeAs(t *testing.T, m mutants.Mutant, list []harness.Check, prepare func(s *harness.Suite)) map[string]string {
	t.Helper()
	config := m.Config
	if config == nil {
		config = func(testing.TB) harness.Config { return mutants.Fakes(m.Alter) }
	}
	wrong := make(map[string]string)
	s, err := harness.NewSuite(t, config(t), list)
	if err != nil { // on a busy machine a mutant with a time limit may not get as far as the checks
		why := ": "
		if errors.Is(err, context.DeadlineExceeded) {
			why = " " + excused
		}
		for _, ck := range list {
			wrong[ck.Name] = "was not judged by " + ck.Name + why + err.Error()
		}
		return wrong
	}
	defer s.Close()
	prepare(s)
	for name, r := range s.RunAll(t) {
		must := slices.Contains(m.Must, name)
		switch {
		case must && r.Excused():
			wrong[name] = "passed " + name + " " + excused + r.Why() + "\n" + r.Printed()
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

// matches reports whether name is the check of that name, or begins with what is before the * in
// pattern, such as group/*.
func matches(pattern, name string) bool {
	group, ok := strings.CutSuffix(pattern, "*")
	return name == pattern || ok && strings.HasPrefix(name, group)
}

func TestMutants(t *testing.T) { testMutants(t, mutants.Local(), 2, judgeInBubble) }

func TestNetworkMutants(t *testing.T) {
	t.Parallel()
	testMutants(t, slices.Concat(mutants.HTTP2(), mutants.Redis()), 40, judge)
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
