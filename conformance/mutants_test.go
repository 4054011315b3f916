package conformance

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// testMutants runs the whole suite against each of the mutants, some of them at the same time: a suite mostly
// waits. Races need a processor at the right moment, and what a broken Locker does on a busy machine is not
// always foreseen. So what a mutant got away with, or was accused of, against the table, is checked again when
// the machine has nothing else to do, and then it has to come out rightly once. That a correct Locker is
// accused of nothing is tested without a second chance.
func testMutants(t *testing.T, mutants []mutant) {
	var all sync.WaitGroup
	room := make(chan struct{}, 8)
	wrong := make([]map[string]string, len(mutants))
	for i, m := range mutants {
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			t.Run(m.name, func(t *testing.T) { wrong[i] = m.judge(t, checks()) })
		})
	}
	all.Wait()
	for i, m := range mutants {
		if len(wrong[i]) > 0 {
			t.Run(m.name+" again", func(t *testing.T) { m.again(t, wrong[i]) })
		}
	}
}

// judge runs list against m, and says by name of check what did not come out as the table says.
func (m mutant) judge(t *testing.T, list []check) map[string]string {
	if m.only != nil {
		list = slices.DeleteFunc(slices.Clone(list), func(ck check) bool {
			return !slices.ContainsFunc(m.only, func(p string) bool { return matches(p, ck.name) })
		})
	}
	config := m.config
	if config == nil {
		config = func(testing.TB) Config { return fakes(m.alter) }
	}
	wrong := make(map[string]string)
	s, err := newSuite(t, config(t), list)
	if err != nil { // one that cannot bear a busy machine, and did not get as far as the checks
		for _, ck := range list {
			wrong[ck.name] = "was not judged by " + ck.name + ": " + err.Error()
		}
		return wrong
	}
	for name, r := range s.runAll(t) {
		must, may := slices.Contains(m.must, name), slices.ContainsFunc(m.may, func(p string) bool { return matches(p, name) })
		switch {
		case must && !r.Failed():
			wrong[name] = "got away with " + name + "\n" + r.output()
		case r.Failed() && !must && !may:
			wrong[name] = "is accused of " + name + ", which it has not done:\n" + r.output()
		}
	}
	return wrong
}

// again runs the checks that were wrong.
func (m mutant) again(t *testing.T, wrong map[string]string) {
	const tries = 4
	for try := 1; len(wrong) > 0; try++ {
		said := strings.Join(slices.Sorted(maps.Values(wrong)), "\nand ")
		if try > tries {
			assert.Fail(t, "the mutant was not judged rightly", "in %d tries: it %s", try, said)
			return
		}
		t.Logf("try %d: the mutant %s", try, said)
		list := slices.DeleteFunc(checks(), func(ck check) bool { return wrong[ck.name] == "" })
		wrong = m.judge(t, list)
	}
}

// matches says whether name is the check of that name, or one of the group in group/*.
func matches(pattern, name string) bool {
	group, ok := strings.CutSuffix(pattern, "*")
	return name == pattern || ok && strings.HasPrefix(name, group)
}

// Not beside other tests, which would have the processor that a race needs.
func TestMutants(t *testing.T) { testMutants(t, localMutants) }

func TestEveryCheckCanFail(t *testing.T) {
	caught := make(map[string]bool)
	known := make(map[string]bool)
	for _, ck := range checks() {
		known[ck.name] = true
	}
	for _, m := range allMutants() {
		require.NotEmpty(t, m.must, "%s fails nothing", m.name)
		for _, name := range m.must {
			assert.True(t, known[name], "%s is to fail %s, and there is no such check", m.name, name)
		}
		for _, pattern := range m.may {
			assert.True(t, slices.ContainsFunc(checks(), func(ck check) bool { return matches(pattern, ck.name) }),
				"%s may fail %s, and there is no such check", m.name, pattern)
		}
		for _, name := range m.must {
			caught[name] = true
		}
	}
	for _, ck := range checks() {
		assert.True(t, caught[ck.name], "no mutant must fail %s", ck.name)
	}
}

func TestCheckTable(t *testing.T) {
	seen := make(map[string]bool)
	for _, ck := range checks() {
		group, rest, ok := strings.Cut(ck.name, "/")
		assert.True(t, ok && group != "" && rest != "" && !strings.Contains(rest, "/"), "name %q", ck.name)
		assert.False(t, seen[ck.name], "%s is there twice", ck.name)
		seen[ck.name] = true
		assert.NotEmpty(t, ck.rule, ck.name)
		assert.NotEmpty(t, ck.causes, ck.name)
		assert.NotNil(t, ck.run, ck.name)
	}
}

// Not beside other tests: each of these has a server and a network to wait for.
func TestRedisMutants(t *testing.T) { testMutants(t, redisMutants) }

// A Locker that lets everybody in is not taken for one on another backend, and its three are not on
// different ones.
func TestBrokenIsNotBadConfig(t *testing.T) {
	t.Parallel()
	for _, m := range localMutants {
		config := fakes(m.alter)
		if m.config != nil {
			config = m.config(t)
		}
		_, err := newSuite(t, config, checks())
		assert.NoError(t, err, m.name)
	}
}
