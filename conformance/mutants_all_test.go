package conformance

import (
	"slices"
	"testing"
)

// mutant is a locker that is broken in one way. The suite has to fail the checks in must on it, may fail
// those in may, since races are not exact, and has to pass all others.
type mutant struct {
	name      string
	config    func(tb testing.TB) Config
	alter     func(f *fake) // in place of config: what is wrong with an otherwise correct Locker of the tests
	must, may []string      // a may that ends in * is for all of a group
	only      []string      // the checks that it can concern at all, as in may: the others are not run
}

// allMutants is what the checks are measured against. A check that is in nobody's must cannot fail.
func allMutants() []mutant { return slices.Concat(localMutants, redisMutants) }

var localMutants = slices.Concat(exclusionMutants, nameMutants, expiryMutants, ownerMutants, contextMutants, watchMutants,
	waitMutants, fenceMutants)
