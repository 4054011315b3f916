package names_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/golockers/locker/conformance/internal/harness"
	"github.com/golockers/locker/conformance/internal/mutants"
	"github.com/golockers/locker/conformance/internal/names"
	"github.com/stretchr/testify/assert"
)

func base() string { return strings.ToLower(harness.RandomKey()) + "x" }

func TestPairs(t *testing.T) {
	t.Parallel()
	pairs := names.Pairs(base())
	seen := make(map[string]bool)
	for _, p := range pairs {
		assert.NotEmpty(t, p.Rule)
		assert.NotEqual(t, p.A, p.B, p.Rule)
		for _, name := range []string{p.A, p.B} {
			assert.NotEmpty(t, name)
			assert.LessOrEqual(t, len(name), names.Limit, p.Rule)
			seen[name] = true
		}
	}
	all := names.All(pairs)
	assert.Len(t, all, len(seen))
	t.Logf("%d pairs, %d names", len(pairs), len(all))
	for _, name := range names.All(names.Pairs(base())) {
		assert.False(t, seen[name], "%q is not of its base alone", name)
	}
}

// Each of the transformations makes a pair equal, so that whoever keeps all pairs apart does not apply
// it.
func TestFolds(t *testing.T) {
	t.Parallel()
	pairs := names.Pairs(base())
	folds := mutants.Folds()
	for _, name := range slices.Sorted(maps.Keys(folds)) {
		fold := folds[name]
		assert.True(t, slices.ContainsFunc(pairs, func(p names.Pair) bool { return fold(p.A) == fold(p.B) }),
			"no pair is equal %s", name)
	}
}
