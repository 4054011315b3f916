package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/golockers/locker/conformance/internal/harness"
	"github.com/golockers/locker/window"
)

// CounterConfig describes a [window.Counter] under test.
type CounterConfig struct {
	// New returns a Counter with its own connections to the backend at addr, as another process
	// would have, and closes them in tb.Cleanup. New is called several times for each check, always
	// on a healthy link, and once in a testing/synctest bubble. For a backend in memory, it returns
	// the same Counter each time.
	New func(tb testing.TB, addr string) window.Counter

	// Addr is the backend's TCP address. If it is empty, New ignores addr, and the checks in which
	// the network fails or the client's clock is wrong are skipped.
	Addr string

	// Eternal returns the number of records without an expiry that the backend has, not counting
	// those that it had before RunCounter. If Eternal is nil, the check that needs it is skipped.
	Eternal func(ctx context.Context) (int, error)

	// Skip names checks that cannot pass on this backend, each with the reason, which is printed.
	Skip map[string]string
}

// RunCounter checks a [window.Counter], and a [window.Enforcer] if it is one.
//
//	func TestCounter(t *testing.T) {
//		conformance.RunCounter(t, conformance.CounterConfig{
//			New: func(tb testing.TB, addr string) window.Counter {
//				…
//			},
//			Addr: "127.0.0.1:6379",
//		})
//	}
//
// Each check is a subtest. All of them run at the same time, and RunCounter returns when they are
// done. If a check cannot decide because a window ended too soon on a slow machine, it is tried
// again with longer windows. If it still cannot decide, it is inconclusive, which counts as
// skipped, or as failed with LOCKER_CONFORMANCE=strict in the environment.
func RunCounter(t *testing.T, c CounterConfig) {
	t.Helper()
	if err := c.complete(); err != nil {
		t.Fatalf("conformance: %v", err)
	}
	var tasks []harness.Task
	for _, check := range counterChecks() {
		tasks = append(tasks, check.task(c))
	}
	harness.Do(t, tasks)
}

// complete returns an error if c is invalid.
func (c *CounterConfig) complete() error {
	if c.New == nil {
		return errors.New("CounterConfig.New is nil: it must return a Counter on the backend under test")
	}
	for name, reason := range c.Skip {
		if !slices.ContainsFunc(counterChecks(), func(ck counterCheck) bool { return ck.name == name }) {
			return fmt.Errorf("CounterConfig.Skip names %q, which is not a check", name)
		}
		if reason == "" {
			return fmt.Errorf("CounterConfig.Skip gives no reason for %q", name)
		}
	}
	return nil
}

// counterCheck is one thing that every Counter must get right.
type counterCheck struct {
	name  string
	rule  string // the sentence that it enforces
	cause string // what commonly breaks it
	needs []counterNeed
	run   func(e *counterEnv)
}

// counterNeed is what a check needs to be run.
type counterNeed string

const (
	needsEnforcer    counterNeed = "the Counter is not a window.Enforcer"
	needsEternal     counterNeed = "CounterConfig.Eternal is nil"
	needsCounterAddr counterNeed = "CounterConfig.Addr is empty"
)

// counterChecks returns all checks of a Counter.
func counterChecks() []counterCheck {
	return slices.Concat(counterBasicChecks(), counterWindowChecks(), counterUnderChecks(), counterFaultChecks())
}

// longWindow is the length of a window that does not end during a check, unless its end is near.
const longWindow = time.Hour
