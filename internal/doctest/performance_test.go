package doctest

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The table of goals in performance.md is the one that the benchmarks have written.
func TestGoals(t *testing.T) {
	t.Parallel()
	want := goals(t, "../../benchmarks/results/results.md")
	require.NotEmpty(t, want)
	assert.Equal(t, want, goals(t, "../../docs/performance.md"))
}

// goals returns the rows of the table that begins with the column "goal".
func goals(t *testing.T, file string) (rows []string) {
	t.Helper()
	page, err := os.ReadFile(file)
	require.NoError(t, err)
	_, table, found := strings.Cut(string(page), "\n| goal |")
	require.True(t, found, "no table of goals in %s", file)
	table, _, _ = strings.Cut(table, "\n\n")
	return strings.Split(table, "\n")[2:]
}
