package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestScale(t *testing.T) {
	dir := t.TempDir()
	benchmarks(t, "-only", "scale", "-match", "queue-100/|keys-1000/|held-10000/", "-scale", "0.02", "-out", dir)
	raw, err := os.ReadFile(filepath.Join(dir, "raw-scale.txt"))
	require.NoError(t, err)
	_, samples := parseRaw(raw)
	require.Len(t, samples, 6)
	for _, s := range samples {
		for _, m := range s.metrics {
			if m.unit == "server-keys-after" {
				assert.Zero(t, m.value, s.name())
			}
		}
	}
}

func TestSimulation(t *testing.T) {
	d := deployment{CycleCost: 100e-6, Connections: 2, MaxConnections: 40}
	l := demand{Processes: 20, Keys: 1_000_000, Cycles: 300, KeptTTL: time.Second}
	one := simulate(d, l, 1)
	assert.InDelta(t, 0.6, one.Busiest, 0.02)
	assert.InEpsilon(t, 175*time.Microsecond, one.Mean, 0.05, "of a queue with constant service times")
	assert.Equal(t, 1, size(d, l).Nodes)
	assert.Empty(t, size(d, l).Saturated)

	l.Cycles = 600
	o := size(d, l)
	assert.Equal(t, 2, o.Nodes)
	assert.InDelta(t, 0.6, o.Busiest, 0.05)

	d.MaxConnections = 39
	assert.Equal(t, "connections", size(d, l).Saturated)
	l.Cycles = 1e9
	o = size(d, l)
	assert.Equal(t, mostNodes, o.Nodes)
	assert.Equal(t, "the busiest node, connections", o.Saturated)
}

func TestFleets(t *testing.T) {
	dir := t.TempDir()
	var stdout, stderr bytes.Buffer
	page := filepath.Join(dir, "scale.md")
	require.Equal(t, 1, parentMain([]string{"-fleets", page, "-out", dir}, &stdout, &stderr))
	assert.Contains(t, stderr.String(), "there are no results in "+dir)

	write := func(section string, samples ...sample) {
		var raw strings.Builder
		raw.WriteString("go: go1.26\n\n")
		for _, s := range samples {
			s.section = section
			raw.WriteString(s.line())
		}
		require.NoError(t, os.WriteFile(rawFile(dir, section), []byte(raw.String()), 0o644))
	}
	held := []metric{{10, "server-cpu-us/cycle"}}
	write("scale",
		sample{scenario: "held-1000000", who: "redisv9", metrics: held},
		sample{scenario: "held-1000000", who: "rueidis", metrics: held})
	stderr.Reset()
	require.Equal(t, 1, parentMain([]string{"-fleets", page, "-out", dir}, &stdout, &stderr))
	assert.Contains(t, stderr.String(), "requests/s of scale/keys-100000/redisv9")
	assert.NoFileExists(t, page)

	keys := []metric{{200, "server-bytes/lock"}, {1000, "server-bytes/waiter"}, {10_000, "requests/s"}}
	write("scale",
		sample{scenario: "held-1000000", who: "redisv9", metrics: held},
		sample{scenario: "held-1000000", who: "rueidis", metrics: held},
		sample{scenario: "keys-100000", who: "redisv9", metrics: keys},
		sample{scenario: "keys-100000", who: "rueidis", metrics: keys})
	write("postgres", sample{scenario: "uncontended-32", who: "postgres", metrics: []metric{{1000, "cycles/s"}}})
	write("etcd", sample{scenario: "uncontended-32", who: "etcd", metrics: []metric{{1000, "cycles/s"}}})
	require.Equal(t, 0, parentMain([]string{"-fleets", page, "-out", dir}, &stdout, &stderr), stderr.String())
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	assert.Contains(t, string(text), "| keys-100000 | redisv9 | 200 | 1000 | 10.0 k |")
	assert.Contains(t, string(text), "| Redis, redisv9 | 10 | 200 | 1000 | 0.10 |")
	for _, l := range demands {
		assert.Contains(t, string(text), fmt.Sprintf("| %s | PostgreSQL |", number(float64(l.Processes)*l.Cycles)))
	}
	assert.NotContains(t, string(text), "<!--")
}
