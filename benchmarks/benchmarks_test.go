package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golockers/locker/internal/fleet"
	"github.com/golockers/locker/internal/leaktest"
	_ "github.com/golockers/locker/internal/quiet"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMain makes the test binary a process of a fleet when it is started as one.
func TestMain(m *testing.M) {
	fleet.Main(roles())
	leaktest.Main(m)
}

func TestBadInput(t *testing.T) {
	for name, args := range map[string][]string{
		"nothing to do":            {},
		"unknown section":          {"-only", "locks,lock"},
		"no round":                 {"-all", "-rounds", "0"},
		"no scale":                 {"-all", "-scale", "NaN"},
		"an argument":              {"-all", "locks"},
		"directory is a file":      {"-all", "-out", os.Args[0]},
		"directory is beneath one": {"-all", "-out", os.Args[0] + "/x"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			assert.Equal(t, 2, parentMain(args, &stdout, &stderr))
			assert.Empty(t, stdout.String())
			assert.Equal(t, 1, strings.Count(stderr.String(), "\n"), "%s", stderr.String())
		})
	}
}

// benchmarks runs the program, if all servers are installed.
func benchmarks(t *testing.T, args ...string) (stdout string) {
	t.Helper()
	var out, errs bytes.Buffer
	code := parentMain(args, &out, &errs)
	if code == 2 && strings.Contains(errs.String(), "is not installed") && os.Getenv("LOCKER_TEST_SERVERS") != "require" {
		t.Skip(errs.String())
	}
	require.Zero(t, code, "%s", &errs)
	return out.String()
}

// TestSections runs every one of them, so briefly that the figures mean nothing.
func TestSections(t *testing.T) {
	dir := t.TempDir()
	// One scenario of each section shows that a change lets all contenders run.
	match := "/(hand-off|first-access|refused-8|missing-200)/"
	if testserver.All() {
		match = ""
	}
	stdout := benchmarks(t, "-only", "check,locks,linger,memcached,etcd,memory,postgres,sql,many", "-rounds", "1",
		"-scale", "0.02", "-out", dir, "-match", match)
	assert.Contains(t, stdout, "| hand-off: cycles/s of redisv9 ")
	table, err := os.ReadFile(filepath.Join(dir, "results.md"))
	require.NoError(t, err)
	assert.Contains(t, stdout, "| first-access: median lock-p50-ms of redisv9+linger ")
	assert.Contains(t, stdout, "| refused-8: refusals/s of postgres ")
	assert.Contains(t, stdout, "| missing-200: most requests of LoadMany ≤ 12 |")
	for _, c := range slices.Concat(redisLocks, lingering, postgresLocks, sqlLocks, etcdLocks) {
		assert.Contains(t, string(table), "| "+c.name+" |")
	}
	for _, picture := range []string{"locks-throughput.svg", "locks-requests.svg"} {
		assert.FileExists(t, filepath.Join(dir, picture))
	}
}

func TestOverlapsAreSeen(t *testing.T) {
	s, err := newShared()
	require.NoError(t, err)
	defer s.remove()
	now := time.Now()
	s.slot(1).enter(now, now)
	s.slot(2).enter(now, now)
	s.slot(1).leave(now)
	handOff, waited := s.slot(1).enter(now.Add(-time.Second), now.Add(time.Millisecond))
	assert.True(t, waited)
	assert.Equal(t, time.Millisecond, handOff)
	entries, overlaps := s.sums()
	assert.EqualValues(t, 3, entries)
	assert.Zero(t, overlaps)
	s.slot(1).enter(now, now)
	_, overlaps = s.sums()
	assert.EqualValues(t, 1, overlaps)
}

func TestQuantiles(t *testing.T) {
	h := newHist()
	assert.Zero(t, h.quantile(0.5))
	for i := range 1000 {
		h.add(time.Duration(i+1) * time.Millisecond)
	}
	assert.InEpsilon(t, 500*time.Millisecond, h.quantile(0.5), 0.03)
	assert.InEpsilon(t, 990*time.Millisecond, h.quantile(0.99), 0.03)
	for d := 10 * time.Nanosecond; d < time.Minute; d += 1 + d/7 {
		one := newHist()
		one.add(d)
		assert.InEpsilon(t, d, one.quantile(0.5), 0.02)
	}
	h.add(0)
	h.add(-1)
	h.add(1000 * time.Hour)
	assert.EqualValues(t, 1003, h.count())
}

func TestRawResultsReadBack(t *testing.T) {
	samples := []sample{
		{section: "locks", scenario: "hand-off", who: "by-hand-1ms", metrics: []metric{{200, "cycles/s"}, {0.5, "least-share"}}},
		{section: "growth", scenario: "processes-64", who: "peer", err: "it hangs: forever"},
	}
	var raw strings.Builder
	raw.WriteString("go: go1.26\n\n")
	for _, s := range samples {
		raw.WriteString(s.line())
	}
	raw.WriteString("BenchmarkOne/who=xsync-2 100 88.5 ns/op 80 B/op 1 allocs/op\n")
	header, read := parseRaw([]byte(raw.String()))
	assert.Equal(t, []string{"go: go1.26"}, header)
	assert.Equal(t, append(samples, sample{
		scenario: "One", who: "xsync", metrics: []metric{{88.5, "ns/op"}, {80, "B/op"}, {1, "allocs/op"}},
	}), read)
}
