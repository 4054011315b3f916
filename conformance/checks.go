package conformance

import (
	"slices"

	"github.com/golockers/locker/conformance/internal/harness"
)

// checks returns the table of all checks. Each file contributes the list of its group.
func checks() []harness.Check {
	return slices.Concat(
		nameChecks(),
		exclusionChecks(),
		expiryChecks(),
		extendChecks(),
		releaseChecks(),
		sameTokenChecks(),
		edgeChecks(),
		contextChecks(),
		watchChecks(),
		waitChecks(),
		fenceChecks(),
		demandChecks(),
		inspectChecks(),
		listChecks(),
		faultChecks(),
	)
}
