package cohort_test

import (
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/golockers/locker/memory"
)

// A lock that this process takes again and again, with and without lingering. The backend's own time
// is small, so the rest is what the cohort costs.
func BenchmarkSameKey(b *testing.B) {
	m := memory.New()
	for name, l := range map[string]locker.Locker{
		"memory":    m,
		"cohort":    cohort.New(m),
		"lingering": cohort.New(m, cohort.WithLinger(100*time.Millisecond)),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				lease, err := locker.Lock(b.Context(), l, "k", time.Minute)
				if err != nil {
					b.Fatal(err)
				}
				if err := lease.Unlock(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
