package doctest

import (
	"go/format"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every piece of Go in a page parses and is formatted by gofmt.
func TestGoInPages(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	code := regexp.MustCompile("(?s)```go\n(.*?)```")
	found := 0
	for _, page := range append(pages, "../../README.md") {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, match := range code.FindAllStringSubmatch(string(text), -1) {
			found++
			formatted, err := format.Source([]byte(match[1]))
			if assert.NoError(t, err, "%s:\n%s", page, match[1]) {
				assert.Equal(t, string(formatted), match[1], page)
			}
		}
	}
	assert.Greater(t, found, 10, "code is quoted in another way")
}
