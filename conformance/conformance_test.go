package conformance

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/harness"
	"github.com/golockers/locker/conformance/internal/mutants"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestRunOutput calls Run in child processes, since Run fails the test that calls it.
func TestRunOutput(t *testing.T) {
	t.Parallel()
	run := func(mode, pattern string, env ...string) (string, bool) {
		cmd := exec.Command(os.Args[0], "-test.run", pattern, "-test.v")
		cmd.Env = append(os.Environ(), "LOCKER_CONFORMANCE_RUN="+mode, "LOCKER_CONFORMANCE=")
		cmd.Env = append(cmd.Env, env...)
		out, err := cmd.CombinedOutput()
		return string(out), err == nil
	}

	t.Run("bad", func(t *testing.T) {
		t.Parallel()
		out, ok := run("bad", "^TestRunHelper$")
		assert.False(t, ok)
		assert.Equal(t, 1, strings.Count(out, "--- FAIL"), out)
		assert.Contains(t, out, "conformance: Config.New is nil")
	})
	t.Run("broken", func(t *testing.T) {
		t.Parallel()
		out, ok := run("broken", "^TestRunHelper$/^release$")
		assert.False(t, ok)
		assert.Contains(t, out, "--- FAIL: TestRunHelper/release/owner-only")
		assert.Contains(t, out, "--- PASS: TestRunHelper/release/twice")
		assert.Contains(t, out, "--- SKIP: TestRunHelper/release/atomic")
		assert.Contains(t, out, "release/atomic is skipped: for a reason")
		assert.Contains(t, out, "conformance: 4 checks passed, 2 failed; begin with release/owner-only; 1 skipped: for a reason\n")
		assert.NotContains(t, out, "TestRunHelper/extend", "a pattern chooses checks")
		assert.Regexp(t, regexp.MustCompile(`(?m)^ +release/owner-only
 +rule          C7 Release works only when .*
 +history       \+0\.\d+s  A\.Acquire\(k1, t1, 10m0s\) = true, nil after .*
 +\+\d+\.\d+s  A\.Release\(k1, t2\) = true, nil after .*
 +want          A\.Release = false, nil: t1 holds the lock
 +got           A\.Release = true, nil
 +common cause  releasing by a bare delete`), out)
	})
	t.Run("good", func(t *testing.T) {
		t.Parallel()
		out, ok := run("good", "^TestRunHelper$/^(release|extend)$")
		assert.True(t, ok, out)
		assert.Contains(t, out, "done with Run")
		assert.Contains(t, out, "--- PASS: TestRunHelper/")
	})
	const unsure = "fence/stale-holder is inconclusive: each time A's lock expired before A had minted a number"
	t.Run("inconclusive", func(t *testing.T) {
		t.Parallel()
		out, ok := run("late", "^TestRunHelper$/^fence$/^stale-holder$")
		assert.True(t, ok, out)
		assert.Contains(t, out, unsure)
		assert.Contains(t, out, "--- SKIP: TestRunHelper/fence/stale-holder")
		assert.Contains(t, out, "conformance: 0 checks passed, 0 failed; 1 inconclusive: fence/stale-holder (each time A's lock expired ")
	})
	t.Run("strict", func(t *testing.T) {
		t.Parallel()
		out, ok := run("late", "^TestRunHelper$/^fence$/^stale-holder$", "LOCKER_CONFORMANCE=strict")
		assert.False(t, ok, out)
		assert.Contains(t, out, unsure)
		assert.Contains(t, out, "--- FAIL: TestRunHelper/fence/stale-holder")
	})
}

func TestRunHelper(t *testing.T) {
	c := mutants.Fakes(func(*mutants.Fake) {})
	switch os.Getenv("LOCKER_CONFORMANCE_RUN") {
	default:
		t.Skip("only for TestRunOutput")
	case "bad":
		c = harness.Config{}
	case "good":
	case "late": // as if A's lock had always expired
		c = mutants.Fakes(func(f *mutants.Fake) {
			if f.ID == 0 {
				f.OnFence = func(ctx context.Context, _, _ string) (uint64, bool, error) { return 0, false, ctx.Err() }
			}
		})
	case "broken":
		c = mutants.Fakes(func(f *mutants.Fake) { f.Releases(func(key, _ string) bool { return f.Del(key) }) })
		c.Skip = map[string]string{"release/atomic": "for a reason"}
	}
	var open atomic.Int64
	lockers := c.New
	if lockers != nil {
		c.New = func(tb testing.TB, addr string) locker.Locker {
			open.Add(1)
			tb.Cleanup(func() { open.Add(-1) })
			return lockers(tb, addr)
		}
	}
	run(t, c)
	require.EqualValues(t, 3, open.Load(), "the Lockers are open until the test ends")
	t.Log("done with Run")
}

// At the end of a check, the locks that it holds are released.
func TestNothingLeftOnTheBackend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := mutants.NewStore()
		n := 0
		noFalseAlarm(t, harness.Config{New: func(testing.TB, string) locker.Locker { n++; return mutants.NewFake(store, n) }})
		assert.Empty(t, store.Left())
	})
}

func TestReference(t *testing.T) {
	t.Parallel()
	run(t, mutants.Fakes(func(*mutants.Fake) {}))
}

func TestRedisReference(t *testing.T) {
	t.Parallel()
	run(t, mutants.OnRedis(mutants.NewRedisFull)(t))
}

func TestQueueReference(t *testing.T) {
	testserver.Variant(t, "the adapters run the suite on real servers")
	t.Parallel()
	run(t, mutants.OnRedisFull(mutants.NewGranted(mutants.Correct))(t))
}

// On a connection that calls share, and on which the client sends frames by itself, no check fails.
func TestHTTP2Reference(t *testing.T) {
	t.Parallel()
	run(t, mutants.OnHTTP2(mutants.NewHTTP2)(t))
}

func run(t *testing.T, c harness.Config) {
	t.Helper()
	Run(t, Config(c))
}
