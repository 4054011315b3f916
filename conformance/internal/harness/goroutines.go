package harness

import (
	"bytes"
	"fmt"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"
)

// LeakLabel is the profiler label that identifies the goroutines of a check: a goroutine inherits
// it from the one that started it.
const LeakLabel = "conformance"

// labelled returns the number and the stacks of the goroutines whose label is id.
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

// Settles waits until at most limit goroutines are left that the check has started, directly or
// indirectly, apart from the caller. More are a leak, which is a fact.
func (e *Env) Settles(limit int) {
	e.TB.Helper()
	if n, stacks := e.SettlesAs(e.ID, limit+1, e.Allow(Leaving)); n > limit+1 {
		e.Fail(fmt.Sprintf("at most %d goroutines are left, for connections and the like", limit),
			fmt.Sprintf("%d goroutines that the calls started are left:\n%s", n-1, stacks))
	}
}

// SettlesAs waits until at most limit goroutines are left whose label is id, or until patience has
// passed. It returns their number and stacks.
func (e *Env) SettlesAs(id string, limit int, patience time.Duration) (n int, stacks string) {
	rest := 10 * time.Millisecond
	for deadline := time.Now().Add(patience); ; e.Sleep(rest) {
		rest = min(2*rest, 500*time.Millisecond)
		// Counting takes long on a busy machine, so count once more after the deadline.
		final := time.Now().After(deadline)
		if n, stacks = labelled(id); n <= limit || final {
			return n, stacks
		}
	}
}
