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

// mutant is a locker that is broken in one way. The suite has to fail the checks in must on it, may fail
// those in may, since races are not exact, and has to pass all others.
type mutant struct {
	name      string
	config    func(tb testing.TB) Config
	alter     func(f *fake) // in place of config: what is wrong with an otherwise correct Locker of the tests
	must, may []string      // a may that ends in * is for all of a group
}

var localMutants = slices.Concat(exclusionMutants, nameMutants, expiryMutants, ownerMutants, contextMutants, watchMutants,
	waitMutants, fenceMutants)

// allMutants is what the checks are measured against. A check that is in nobody's must cannot fail.
func allMutants() []mutant { return slices.Concat(localMutants, redisMutants) }

// testMutants runs the whole suite against each of the mutants, some of them at the same time: a suite
// mostly waits.
func testMutants(t *testing.T, mutants []mutant) {
	var all sync.WaitGroup
	room := make(chan struct{}, 8)
	for _, m := range mutants {
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			t.Run(m.name, func(t *testing.T) { m.test(t) })
		})
	}
	all.Wait()
}

func (m mutant) test(t *testing.T) {
	config := m.config
	if config == nil {
		config = func(testing.TB) Config { return fakes(m.alter) }
	}
	// Races need a processor at the right moment, and what a broken Locker does on a busy machine is not always
	// foreseen. So a mutant that gets away, or is accused of something else, is tried again: it has to be
	// judged rightly once. That a correct Locker is accused of nothing is tested without a second chance.
	const tries = 3
	for try := 1; try <= tries; try++ {
		s, err := newSuite(t, config(t), checks())
		require.NoError(t, err)
		results := s.runAll(t)
		var wrong []string
		for _, name := range slices.Sorted(maps.Keys(results)) {
			r := results[name]
			must, may := slices.Contains(m.must, name), slices.ContainsFunc(m.may, func(p string) bool { return matches(p, name) })
			switch {
			case must && !r.Failed():
				wrong = append(wrong, "got away with "+name)
			case r.Failed() && !must && !may:
				wrong = append(wrong, "is accused of what it has not done:\n"+r.output())
			}
		}
		if len(wrong) == 0 {
			return
		}
		t.Logf("try %d: the mutant %s", try, strings.Join(wrong, "\nand "))
	}
	assert.Fail(t, "the mutant was not judged rightly", "in %d tries", tries)
}

// matches says whether name is the check of that name, or one of the group in group/*.
func matches(pattern, name string) bool {
	group, ok := strings.CutSuffix(pattern, "*")
	return name == pattern || ok && strings.HasPrefix(name, group)
}

func TestMutants(t *testing.T) {
	t.Parallel()
	testMutants(t, localMutants)
}

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
