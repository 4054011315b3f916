package conformance

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/golockers/locker/conformance/internal/mutants"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write mistakes.md")

// mistakes.md shows authors of adapters which mistake is found by which check. It is made from the
// tables of broken Lockers: go test -run TestMistakes -update
func TestMistakes(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString(`# Mistakes, and the checks that find them

Each of these mistakes is in a broken Locker, cache, semaphore or counter of this package's tests, which
must fail the checks named beside it. When one of these checks fails, look for the mistake; the
check's own report gives the rule, the history of its calls, and the common cause.
`)
	section := func(title string, rows map[string][]string) {
		fmt.Fprintf(&b, "\n## %s\n\n| Mistake | Found by |\n|---|---|\n", title)
		for _, name := range slices.Sorted(maps.Keys(rows)) {
			fmt.Fprintf(&b, "| %s | %s |\n", strings.ReplaceAll(name, "|", "\\|"), strings.Join(rows[name], ", "))
		}
	}
	lockers := func(list []mutants.Mutant) map[string][]string {
		rows := make(map[string][]string)
		for _, m := range list {
			require.NotContains(t, rows, m.Name, "two mutants have the same name")
			rows[m.Name] = m.Must
		}
		return rows
	}
	section("Lockers", lockers(mutants.Local()))
	section("Lockers on a network", lockers(slices.Concat(mutants.Redis(), mutants.HTTP2())))
	rows := make(map[string][]string)
	for name, m := range semaphoreMutants {
		rows[name] = m.must
	}
	section("Semaphores", rows)
	rows = make(map[string][]string)
	for name, m := range cacheMutants {
		rows[name] = m.must
	}
	section("Caches", rows)
	rows = make(map[string][]string)
	for name, m := range counterMutants {
		rows[name] = m.must
	}
	section("Counters", rows)

	const file = "mistakes.md"
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o644))
	}
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, b.String(), string(text), "%s is not up to date: go test -run TestMistakes -update", file)
}
