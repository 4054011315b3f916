package conformance

import (
	"testing"

	"github.com/golockers/locker/internal/leaktest"
	_ "github.com/golockers/locker/internal/quiet"
)

// Two mutants leave goroutines behind: that is what is wrong with them.
func TestMain(m *testing.M) {
	const mutants = "github.com/golockers/locker/conformance/internal/mutants."
	leaktest.Main(m, mutants+"listMutants.", mutants+"leaking.")
}
