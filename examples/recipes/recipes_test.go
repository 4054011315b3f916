// Package recipes tests that docs/recipes.md quotes the packages here.
package recipes

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestQuotes(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/recipes.md")
	require.NoError(t, err)
	files, err := filepath.Glob("*/*.go")
	require.NoError(t, err)
	var source strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		source.Write(text)
	}
	quotes := regexp.MustCompile("(?s)(<!-- sketch -->\n)?```go\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	require.Greater(t, len(quotes), 10)
	for _, quote := range quotes {
		isSketch := quote[1] != ""
		assert.True(t, isSketch || strings.Contains(source.String(), quote[2]), "no such lines here:\n%s", quote[2])
	}
}
