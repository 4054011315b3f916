package harness

import (
	"bytes"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"
)

// leakLabel is the profiler label by which the goroutines of one check are told from all others: a goroutine
// inherits it from the one that started it.
const LeakLabel = "conformance"

// labelled counts the goroutines whose label is id.
func labelled(id string) (n int, stacks string) {
	var b bytes.Buffer
	pprof.Lookup("goroutine").WriteTo(&b, 1)
	label := strconv.Quote(LeakLabel) + ":" + strconv.Quote(id)
	var found []string
	_, records, _ := strings.Cut(b.String(), "\n") // the first line is a total
	for record := range strings.SplitSeq(records, "\n\n") {
		if !strings.Contains(record, label) {
			continue
		}
		count, _, _ := strings.Cut(strings.TrimSpace(record), " ")
		if c, err := strconv.Atoi(count); err == nil {
			n += c
			found = append(found, record)
		}
	}
	return n, strings.Join(found, "\n\n")
}

// settles waits until at most limit of the check's goroutines are left, those that it has started, directly or
// not, and returns how many are, with their stacks, when that has not come about within patience. The one
// that asks is not counted.
func (e *Env) Settles(limit int, patience time.Duration) (n int, stacks string) {
	n, stacks = e.SettlesAs(e.ID, limit+1, patience)
	return n - 1, stacks
}

// settlesAs is settles for the goroutines whose label is id.
func (e *Env) SettlesAs(id string, limit int, patience time.Duration) (n int, stacks string) {
	rest := 10 * time.Millisecond
	for deadline := time.Now().Add(patience); ; e.Sleep(rest) {
		rest = min(2*rest, 500*time.Millisecond)
		// Counting takes long on a busy machine: what is counted before the deadline is no verdict.
		final := time.Now().After(deadline)
		if n, stacks = labelled(id); n <= limit || final {
			return n, stacks
		}
	}
}
