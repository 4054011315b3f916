package conformance

import (
	"testing"

	"github.com/golockers/locker/conformance/internal/mutants"
)

// Correct Lockers that keep their locks until another process wants them pass all checks.
func TestKeeperReference(t *testing.T) {
	t.Parallel()
	passes(t, mutants.NewKeepers())
}
