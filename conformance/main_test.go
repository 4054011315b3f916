package conformance

import (
	"testing"

	"github.com/golockers/locker/internal/leaktest"
)

func TestMain(m *testing.M) {
	leaktest.Main(m, "github.com/golockers/locker/conformance/internal/mutants.listMutants.") // one leaves goroutines behind
}
