package conformance

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/golockers/locker/conformance/internal/harness"
	"github.com/golockers/locker/conformance/internal/mutants"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// testMutants runs the checks against each of the mutants, several of them at the same time, since
// checks mostly wait. Races need a processor at the right moment, and what a broken Locker does on
// a busy machine is not always foreseeable. So results that differ from the mutant's lists are
// repeated when the others are done, and must be right once. Correct Lockers get no second chance:
// see TestNoFalseAlarm….
func testMutants(t *testing.T, list []mutants.Mutant) {
	var all sync.WaitGroup
	room := make(chan struct{}, 16)
	wrong := make([]map[string]string, len(list))
	for i, m := range list {
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			t.Run(m.Name, func(t *testing.T) { wrong[i] = judge(t, m, checks()) })
		})
	}
	all.Wait()
	for i, m := range list {
		if len(wrong[i]) > 0 {
			t.Run(m.Name+" again", func(t *testing.T) { again(t, m, wrong[i]) })
		}
	}
}

// judge runs the checks of list against m, except those that m may fail, whose results prove
// nothing. It returns, by the name of the check, which results are wrong.
func judge(t *testing.T, m mutants.Mutant, list []harness.Check) map[string]string {
	t.Helper()
	listed := func(patterns []string, name string) bool {
		return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, name) })
	}
	list = slices.DeleteFunc(slices.Clone(list), func(ck harness.Check) bool {
		must := slices.Contains(m.Must, ck.Name)
		return m.Only != nil && !listed(m.Only, ck.Name) || !must && listed(m.May, ck.Name)
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

// matches reports whether name is the check of that name, or of the group if pattern is group/*.
func matches(pattern, name string) bool {
	group, ok := strings.CutSuffix(pattern, "*")
	return name == pattern || ok && strings.HasPrefix(name, group)
}

// The tests of mutants are not parallel to others, which would take the processor that a race
// needs.

func TestMutants(t *testing.T) { testMutants(t, mutants.Local()) }

func TestRedisMutants(t *testing.T) { testMutants(t, mutants.Redis()) }

func TestHTTP2Mutants(t *testing.T) { testMutants(t, mutants.HTTP2()) }

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
