package locks

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// docs/adapters.md prints these files from their first lines to their last, in this order.
func TestDocs(t *testing.T) {
	page, err := os.ReadFile("../../docs/adapters.md")
	require.NoError(t, err)
	var printed []string // a file each
	for _, block := range regexp.MustCompile("(?s)(<!-- sketch -->\n)?```go\n(.*?)```\n").FindAllStringSubmatch(string(page), -1) {
		switch {
		case block[1] != "":
		case regexp.MustCompile(`(?m)^package `).MatchString(block[2]):
			printed = append(printed, block[2])
		default:
			require.NotEmpty(t, printed)
			printed[len(printed)-1] += "\n" + block[2]
		}
	}
	names := []string{"locks.go", "locks_test.go"}
	require.Len(t, printed, len(names))
	for i, name := range names {
		file, err := os.ReadFile(name)
		require.NoError(t, err)
		assert.Equal(t, strings.Split(printed[i], "\n"), strings.Split(string(file), "\n"), name)
	}
}
