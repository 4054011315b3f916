package memory_test

import (
	"testing"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance"
	"github.com/golockers/locker/memory"
)

// One process is one backend, so every client of the suite has the same Locker.
func TestConformance(t *testing.T) {
	t.Parallel()
	l := memory.New()
	conformance.Run(t, conformance.Config{
		New:         func(testing.TB, string) locker.Locker { return l },
		Granularity: 0,
	})
}
