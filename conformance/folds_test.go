package conformance

import (
	"testing"

	"github.com/golockers/locker/conformance/internal/mutants"
	"github.com/golockers/locker/internal/testserver"
)

// A Locker that applies any of the transformations to its keys or its tokens is found. That the table
// of names has a pair for each of them is tested beside it.
func TestFolds(t *testing.T) {
	testserver.Variant(t, "mistakes of each kind are among the mutants")
	testMutants(t, mutants.Folding(), 2, judgeInBubble)
}
