package conformance

import (
	"context"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/harness"
)

// Config describes the backend under test.
type Config struct {
	// New returns a Locker with its own connections to the backend at addr, as another process
	// would have, and closes them in tb.Cleanup. It is called a few times for the suite and once
	// for each fault check, always on a link that works. An in-process backend may return the same
	// Locker each time.
	New func(tb testing.TB, addr string) locker.Locker

	// Addr is the backend's TCP address. If it is empty, New ignores addr, and the checks that need
	// a network in between are skipped by name.
	Addr string

	// Granularity is how long past its ttl the backend may keep a lock: 0 for a backend that counts
	// milliseconds, about two seconds for one that counts seconds, and no less than the backend's
	// minimum ttl.
	Granularity time.Duration

	// LoseData, if not nil, makes the backend lose all that it keeps, as a restart without data
	// does. It is called while no other check of this run runs, and lets the suite check that
	// later fencing numbers are greater than those from before.
	LoseData func(ctx context.Context) error

	// Skip names checks that cannot pass on this backend, each with the reason, which is printed.
	Skip map[string]string
}

// Run checks the backend that c describes. Each check is a subtest with its name, and all of them
// run at the same time. Run returns when they are done. If c itself is invalid, Run fails the test
// and runs no check.
//
// A failed check prints the rules of the contract that it enforces, its history, what it wanted and
// got, and the common cause. A check that could not decide is inconclusive, which counts as
// skipped, or as failed with LOCKER_CONFORMANCE=strict in the environment.
func Run(t *testing.T, c Config) {
	t.Helper()
	harness.Run(t, harness.Config(c), checks())
}
