package conformance

import (
	"testing"

	"github.com/golockers/locker/internal/leaktest"
	_ "github.com/golockers/locker/internal/quiet"
)

// A mutant leaves goroutines behind: that is what is wrong with it.
func TestMain(m *testing.M) {
	const mutants = "github.com/golockers/locker/conformance/internal/mutants."
	leaktest.Main(m, mutants+"leaking.")
}
