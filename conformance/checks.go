package conformance

import "slices"

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
