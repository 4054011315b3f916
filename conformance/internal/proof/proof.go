// Package proof collects the figures for docs/proof.md, which the long tests of this module count.
//
// A test calls [Record]. Each run adds one line to the file that the environment variable
// LOCKER_PROOF names. The command in report makes the page from that file. Without the variable,
// the figures are only logged.
package proof

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
)

// A Row contains the figures of one test.
type Row struct {
	Section string  // a heading of the page, for instance "Histories"
	Name    string  // of the row in the section's table
	Counts  []Count // the columns, in order; the same ones in all rows of a section

	Duration string // that was asked for: LOCKER_PROVE

	Processors int     // of the machine
	Load       float64 // its load average in the last minute, this test's included; 0: not known
}

// A Count is a figure with its name.
type Count struct {
	Name  string
	Value string
}

// Of returns a Count of a value as fmt prints it.
func Of(name string, value any) Count { return Count{name, fmt.Sprint(value)} }

// Record logs the figures of a test and adds them to the file, if there is one. It ignores tests
// that failed.
func Record(t testing.TB, section, name string, counts ...Count) {
	t.Helper()
	var line strings.Builder
	for _, c := range counts {
		fmt.Fprintf(&line, ", %s: %s", c.Name, c.Value)
	}
	t.Logf("%s, %s%s", section, name, line.String())
	path := os.Getenv("LOCKER_PROOF")
	if path == "" || t.Failed() {
		return
	}
	data, err := json.Marshal(Row{section, name, counts, os.Getenv("LOCKER_PROVE"), runtime.NumCPU(), load()})
	if err != nil {
		t.Fatal("proof:", err)
	}
	// One write for the line, since the tests of several packages append to the file at the same
	// time.
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal("proof:", err)
	}
	defer file.Close()
	if _, err := file.Write(append(data, '\n')); err != nil {
		t.Fatal("proof:", err)
	}
}

// load returns the machine's load average, or 0 if that is not known on this system.
func load() (average float64) {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	_, _ = fmt.Sscan(string(text), &average)
	return average
}
