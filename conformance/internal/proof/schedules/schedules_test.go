package schedules

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/golockers/locker/conformance/internal/proof"
	"github.com/golockers/locker/internal/leaktest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// seeds returns those of the schedules to run: 10,000 in the long form, or the one of LOCKER_SEED.
func seeds(t *testing.T) []uint64 {
	t.Helper()
	if text := os.Getenv("LOCKER_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		return []uint64{seed}
	}
	n := 200
	if os.Getenv("LOCKER_PROVE") != "" {
		n = 10_000
	}
	all := make([]uint64, n)
	for i := range all {
		all[i] = rand.Uint64()
	}
	return all
}

// In random schedules of the whole API there are never two holders, no lease promises more than the
// backend keeps, patient waiters are served, and no lock, event or goroutine is left. A failure prints
// its seed.
func TestSchedules(t *testing.T) {
	var counts Counts
	var ran, wrong int
	for _, seed := range seeds(t) {
		c, violations := inBubble(t, seed, correct)
		counts.Add(c)
		ran++
		wrong += len(violations)
		if !assert.Emptyf(t, violations, "LOCKER_SEED=%d", seed) {
			break
		}
	}
	assert.NotZero(t, counts.Errors)
	proof.Record(t, "Schedules", "package locker", proof.Of("schedules", ran), proof.Of("leases", counts.Leases),
		proof.Of("refused", counts.Refused), proof.Of("errors", counts.Errors), proof.Of("lost leases", counts.Lost),
		proof.Of("resumed", counts.Resumed), proof.Of("fencing numbers", counts.Fences), proof.Of("violations", wrong))
}

// Each broken backend is found out.
func TestMutants(t *testing.T) {
	for name, wrong := range mutants {
		t.Run(name, func(t *testing.T) {
			for tries := 1; ; tries++ {
				_, violations := inBubble(t, rand.Uint64(), wrong)
				if len(violations) > 0 {
					t.Logf("found by schedule %d: %s", tries, violations[0])
					return
				}
				require.Less(t, tries, 100, "not found")
			}
		})
	}
}

// inBubble runs a schedule. A bubble that cannot go on, or from which a goroutine does not return,
// panics.
func inBubble(t *testing.T, seed uint64, wrong mutant) (counts Counts, violations []string) {
	t.Helper()
	defer func() {
		if v := recover(); v != nil {
			violations = append(violations, strings.SplitN(fmt.Sprint(v), "\n", 2)[0])
		}
	}()
	synctest.Test(t, func(*testing.T) { counts, violations = run(seed, wrong) })
	return counts, violations
}
