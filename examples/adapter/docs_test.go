package sqllock

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// docs/adapters.md quotes this package as it is.
func TestDocs(t *testing.T) {
	page, err := os.ReadFile("../../docs/adapters.md")
	require.NoError(t, err)
	var source strings.Builder
	for _, name := range []string{"sqllock.go", "sqllock_test.go", "calls.go"} {
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		source.Write(b)
	}
	quotes := regexp.MustCompile("(?s)(<!-- sketch -->\n)?```go\n(.*?)```\n").FindAllStringSubmatch(string(page), -1)
	require.Greater(t, len(quotes), 5)
	for _, quote := range quotes {
		if quote[1] == "" {
			assert.True(t, strings.Contains(source.String(), quote[2]), "no such lines here:\n%s", quote[2])
		}
	}
}
