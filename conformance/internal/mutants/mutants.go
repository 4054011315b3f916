// Package mutants has Lockers that are broken in one way each, with the checks that must notice,
// and the correct Lockers that they are made from.
package mutants

import (
	"slices"
	"testing"

	"github.com/golockers/locker/conformance/internal/harness"
)

// Mutant is a Locker that is broken in one way. It must fail the checks in Must, may fail those in
// May, since races are not exact, and must pass all others.
type Mutant struct {
	Name      string
	Config    func(tb testing.TB) harness.Config
	Alter     func(f *Fake) // in place of Config: breaks a correct Fake
	Must, May []string      // in May, group/* is all checks of a group
	Only      []string      // if not nil, the checks that the mutant can affect; like May

	// RealTime mutants cannot be in a testing/synctest bubble: their goroutines never end, or only
	// processors that race show what is wrong.
	RealTime bool
}

// Local returns the mutants that need no server.
func Local() []Mutant {
	return append(mayFailDemand(aside(slices.Concat(exclusionMutants(), nameMutants(), expiryMutants(), ownerMutants(),
		contextMutants(), watchMutants(), waitMutants(), fenceMutants(), edgeMutants()))),
		slices.Concat(mayFailDemand(slices.Concat(inspectMutants(), listMutants())), demandMutants())...)
}

// Redis returns the mutants that need a real backend or a real network.
func Redis() []Mutant {
	return mayFailDemand(slices.Concat(aside(redisMutants()), redisInspectMutants(), lineMutants()))
}

// mayFailDemand lets all mutants fail the checks of demands, which repeat for Lockers that keep
// locks what other checks do for all Lockers.
func mayFailDemand(list []Mutant) []Mutant {
	for i := range list {
		list[i].May = append(slices.Clip(list[i].May), "demand/*")
	}
	return list
}
