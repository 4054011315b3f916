package leaktest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) { Main(m) }

// A goroutine that is left behind is found, and one that ends in time is not.
func TestSettle(t *testing.T) {
	end := make(chan struct{})
	go leak(end)
	left := settle(10*time.Millisecond, []string{"testing."}) // this test is one as well
	require.Len(t, left, 1)
	assert.Contains(t, left[0], "leaktest.leak(")

	assert.Empty(t, settle(0, []string{"testing.", "github.com/golockers/locker/internal/leaktest.leak("}))
	close(end)
	assert.Empty(t, settle(patience, []string{"testing."}))
}

func leak(end <-chan struct{}) { <-end }

var isTest = regexp.MustCompile(`(?m)^func (Test|Example|Benchmark)`)

// programtest.Main of examples/stampede calls Main.
var isChecked = regexp.MustCompile(`\b(leaktest|programtest)\.Main\(m`)

// Every package with tests, of every module, looks for goroutines that they leave.
func TestEveryPackageChecks(t *testing.T) {
	tested, checked := make(map[string]bool), make(map[string]bool)
	require.NoError(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		match := func(pattern string) bool { ok, _ := filepath.Match(pattern, d.Name()); return ok }
		switch {
		case err != nil:
			return err
		case d.IsDir() && (match(".?*") && path != "../.." || match("testdata") || match("bin")):
			return fs.SkipDir
		case d.IsDir() || !match("*_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		dir := filepath.Dir(path)
		tested[dir] = tested[dir] || isTest.Match(text)
		checked[dir] = checked[dir] || isChecked.Match(text)
		return err
	}))
	assert.Greater(t, len(tested), 30)
	for dir, needs := range tested {
		assert.Truef(t, checked[dir] || !needs,
			"%s has tests, but no func TestMain(m *testing.M) { leaktest.Main(m) }", dir)
	}
}
