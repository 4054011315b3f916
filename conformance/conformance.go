package conformance

import (
	"testing"
)

// Run checks the backend that c describes. Each check is a subtest with its name, and all of them
// run at the same time. Run returns when they are done. If c itself is invalid, Run fails the test
// and runs no check.
//
// A failed check prints the rule of the contract that was broken, what was done, what was expected, what
// happened, and what commonly causes it. A check that could not decide is inconclusive, which
// counts as skipped, or as failed with LOCKER_CONFORMANCE=strict in the environment.
func Run(t *testing.T, c Config) {
	t.Helper()
	runSuite(t, c, checks())
}
