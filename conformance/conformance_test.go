package conformance

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/golockers/locker"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestRunOutput runs Run in a process of its own, since what it fails is the test that calls it.
func TestRunOutput(t *testing.T) {
	t.Parallel()
	run := func(mode, pattern string, env ...string) (string, bool) {
		cmd := exec.Command(os.Args[0], "-test.run", pattern, "-test.v")
		cmd.Env = append(os.Environ(), "CONFORMANCE_TEST_RUN="+mode, "LOCKER_CONFORMANCE=")
		cmd.Env = append(cmd.Env, env...)
		out, err := cmd.CombinedOutput()
		return string(out), err == nil
	}

	out, ok := run("bad", "^TestRunHelper$")
	assert.False(t, ok)
	assert.Equal(t, 1, strings.Count(out, "--- FAIL"), out)
	assert.Contains(t, out, "conformance: Config.New is nil")

	out, ok = run("broken", "^TestRunHelper$/^release$")
	assert.False(t, ok)
	assert.Contains(t, out, "--- FAIL: TestRunHelper/release/only-the-owner")
	assert.Contains(t, out, "--- PASS: TestRunHelper/release/twice")
	assert.Contains(t, out, "--- SKIP: TestRunHelper/release/atomic")
	assert.Contains(t, out, "release/atomic is skipped: for a reason")
	assert.Contains(t, out, "conformance: 4 checks passed, 2 failed; begin with release/only-the-owner; 1 skipped: for a reason\n")
	assert.NotContains(t, out, "TestRunHelper/extend", "a pattern chooses checks")
	assert.Regexp(t, regexp.MustCompile(`(?m)^ +release/only-the-owner
 +rule      C7 Release only when .*
 +done      \+0\.\d+s  A\.Acquire\(k1, t1, 10m0s\) = true, nil after .*
 +\+\d+\.\d+s  A\.Release\(k1, t2\) = true, nil after .*
 +expected  A\.Release = false, nil: t1 holds the lock
 +happened  A\.Release = true, nil
 +often     releasing by a bare delete`), out)

	out, ok = run("good", "^TestRunHelper$/^(release|extend)$")
	assert.True(t, ok, out)
	assert.Contains(t, out, "done with Run")
	last := strings.LastIndex(out, "--- PASS: TestRunHelper/")
	assert.Greater(t, last, -1)

	const unsure = "fence/stale-holder is inconclusive: A's time was up each time before it had minted a number"
	out, ok = run("late", "^TestRunHelper$/^fence$/^stale-holder$")
	assert.True(t, ok, out)
	assert.Contains(t, out, unsure)
	assert.Contains(t, out, "--- SKIP: TestRunHelper/fence/stale-holder")
	assert.Contains(t, out, "conformance: 0 checks passed, 0 failed; 1 inconclusive: fence/stale-holder (A's time was up ")
	out, ok = run("late", "^TestRunHelper$/^fence$/^stale-holder$", "LOCKER_CONFORMANCE=strict")
	assert.False(t, ok, out)
	assert.Contains(t, out, unsure)
	assert.Contains(t, out, "--- FAIL: TestRunHelper/fence/stale-holder")
}

func TestRunHelper(t *testing.T) {
	c := fakes(func(*fake) {})
	switch os.Getenv("CONFORMANCE_TEST_RUN") {
	default:
		t.Skip("only for TestRunOutput")
	case "bad":
		c = Config{}
	case "good":
	case "late": // as if A's time were always up
		c = fakes(func(f *fake) {
			if f.id == 0 {
				f.fence = func(ctx context.Context, _, _ string) (uint64, bool, error) { return 0, false, ctx.Err() }
			}
		})
	case "broken":
		c = fakes(func(f *fake) { f.releases(func(key, _ string) bool { return f.del(key) }) })
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
	Run(t, c)
	require.EqualValues(t, 3, open.Load(), "the Lockers are open until the test ends")
	t.Log("done with Run")
}

// What a check acquires and does not release is released in the end.
func TestNothingLeftOnTheBackend(t *testing.T) {
	t.Parallel()
	store := newStore()
	n := 0
	c := Config{New: func(testing.TB, string) locker.Locker { n++; return newFake(store, n) }}
	s, err := newSuite(t, c, checks())
	require.NoError(t, err)
	s.runAll(t)
	assert.Empty(t, store.left())
}

func TestReference(t *testing.T) {
	t.Parallel()
	Run(t, fakes(func(*fake) {}))
}

// The Locker that the mutants are made of passes.
func TestRedisReference(t *testing.T) {
	Run(t, onRedis(newRedisFull)(t))
}

// The Locker with a queue on the server is correct but for what the mutants break.
func TestQueueReference(t *testing.T) { Run(t, on(newGranted(correct))(t)) }
