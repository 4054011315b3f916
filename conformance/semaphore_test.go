package conformance

import (
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/harness"
	"github.com/golockers/locker/conformance/internal/mutants"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// semaphoreFakes is a configuration without a network.
func semaphoreFakes() SemaphoreConfig {
	return SemaphoreConfig{New: mutants.Fakes(func(*mutants.Fake) {}).New}
}

func semaphoreOnRedis(t *testing.T) SemaphoreConfig {
	t.Helper()
	return SemaphoreConfig{
		Addr: testserver.Redis(t).Addr,
		New: func(tb testing.TB, addr string) locker.Locker {
			client := redis.NewClient(&redis.Options{Addr: addr})
			tb.Cleanup(func() { _ = client.Close() })
			return redisv9.New(client)
		},
	}
}

// judgeSemaphore runs the checks of c that only selects, in a testing/synctest bubble if c has no
// network.
func judgeSemaphore(t *testing.T, c SemaphoreConfig, only func(name string) bool) (results map[string]*harness.Recorder) {
	t.Helper()
	list := slices.DeleteFunc(semaphoreChecks(c.Permits), func(ck harness.Check) bool { return !only(ck.Name) })
	run := func(t *testing.T, prepare func(s *harness.Suite)) {
		s, err := harness.NewSuite(t, c.harness(), list)
		require.NoError(t, err)
		defer s.Close()
		prepare(s)
		results = s.RunAll(t)
	}
	if c.Addr != "" {
		run(t, func(*harness.Suite) {})
		return results
	}
	synctest.Test(t, func(t *testing.T) {
		run(t, func(s *harness.Suite) { bubble(s, 200*time.Microsecond) })
		time.Sleep(time.Minute) // some mutants leave goroutines behind, until then
	})
	return results
}

func TestSemaphoreMutants(t *testing.T) {
	t.Parallel()
	together(t, semaphoreMutants, func(t *testing.T, m semaphoreMutant) {
		results := judgeSemaphore(t, m.config(t), func(check string) bool {
			return slices.Contains(m.must, check) || testserver.All() && !m.network && !isNamed(m.may, check)
		})
		for check, r := range results {
			assert.Equal(t, slices.Contains(m.must, check), r.Failed(), "%s: %s%s", check, r.Why(), r.Printed())
			if r.Failed() {
				for _, part := range []string{check, "rule", "history", "want", "got", "common cause"} {
					assert.Contains(t, r.Printed(), part)
				}
			}
		}
	})
}

// A check that no mutant fails is a check that cannot fail.
func TestSemaphoreChecksHaveMutants(t *testing.T) {
	t.Parallel()
	names := make(map[string]bool)
	for _, ck := range semaphoreChecks(nil) {
		assert.False(t, names[ck.Name], "%s twice", ck.Name)
		names[ck.Name] = true
		found := false
		for _, m := range semaphoreMutants {
			found = found || slices.Contains(m.must, ck.Name)
		}
		assert.True(t, found, "%s is in no mutant's must", ck.Name)
	}
	for mutant, m := range semaphoreMutants {
		for _, name := range m.must {
			assert.True(t, names[name], "%s: there is no check %s", mutant, name)
		}
	}
}

// The rules are sentences of the documentation.
func TestSemaphoreRules(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../semaphore/semaphore.go")
	require.NoError(t, err)
	words := strings.Join(strings.Fields(strings.ReplaceAll(string(text), "//", " ")), " ")
	for _, rule := range []string{s1Limit, s2Owner, s3Apart, s4Order, s5Any, s6Leaves, s7Resize, s8Fence} {
		assert.True(t, strings.Contains(words, rule), rule)
	}
}

// A correct semaphore passes, with a queue and without.
func TestSemaphoreCorrect(t *testing.T) {
	t.Parallel()
	t.Run("own", func(t *testing.T) {
		t.Parallel()
		RunSemaphore(t, semaphoreFakes())
	})
	t.Run("slow", func(t *testing.T) {
		t.Parallel()
		c := SemaphoreConfig{New: mutants.Fakes(func(f *mutants.Fake) {
			mutants.Slowly(f, mutants.Fixed(15*time.Millisecond), mutants.Fixed(15*time.Millisecond))
		}).New}
		for name, r := range judgeSemaphore(t, c, func(string) bool { return true }) {
			assert.False(t, r.Failed() || r.Inconclusive(), "%s: %s%s", name, r.Why(), r.Printed())
		}
	})
	t.Run("without Wait", func(t *testing.T) {
		t.Parallel()
		c := semaphoreFakes()
		c.Permits = counters(false, false)()
		for name, r := range judgeSemaphore(t, c, func(string) bool { return true }) {
			assert.False(t, r.Failed(), "%s", r.Printed())
			assert.Equal(t, isNamed([]string{"permits-wait/*", "permits-fault/*"}, name) || name == "permits/fence", r.Skipped(), name)
		}
	})
}
