package conformance

import (
	"testing"

	"github.com/golockers/locker/conformance/internal/harness"
	"github.com/golockers/locker/conformance/internal/mutants"
	"github.com/stretchr/testify/assert"
)

func BenchmarkReference(b *testing.B) { Benchmark(b, Config(mutants.Fakes(func(*mutants.Fake) {}))) }

// Every scenario makes the number of cycles that it was asked for.
func TestBenchmarkScenarios(t *testing.T) {
	t.Parallel()
	for _, sc := range scenarios {
		s, err := harness.NewSuite(t, mutants.Fakes(func(*mutants.Fake) {}), nil)
		if !assert.NoError(t, err) {
			return
		}
		lockers := append(s.Lockers[:], s.Config.New(t, ""))
		const cycles = 50
		m := sc.run(t, lockers[:sc.lockers], cycles)
		total := 0
		for _, n := range m.served {
			total += n
		}
		assert.Equal(t, cycles, total, sc.name)
		assert.Len(t, m.served, sc.goroutines, sc.name)
		share := m.leastShare(cycles)
		assert.True(t, share >= 0 && share <= 1, "%s: %v", sc.name, share)
		if sc.hold > 0 {
			assert.Len(t, m.handoffs, cycles-1, sc.name)
		}
	}
}
