package doctest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// startImports begins a file with the functions of getting-started.md.
const startImports = `package start

import (
	"context"
	"log"
	"log/slog"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/lockertest"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
)

var _, _ = newLocker, observed

`

// The code in getting-started.md runs as it stands: the program, and the test of its function.
func TestGettingStarted(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/getting-started.md")
	require.NoError(t, err)
	dir := t.TempDir()
	program, tested, functions := filepath.Join(dir, "main.go"), filepath.Join(dir, "start_test.go"), startImports
	for i, match := range regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		if strings.HasPrefix(match[1], "package main\n") {
			require.Zero(t, i, "another program")
			require.NoError(t, os.WriteFile(program, []byte(match[1]), 0o600))
		} else {
			functions += match[1]
		}
	}
	require.NoError(t, os.WriteFile(tested, []byte(functions), 0o600))
	out, err := exec.Command("go", "run", program).Output()
	require.NoError(t, err)
	require.Equal(t, "100\n", string(out))
	combined, err := exec.Command("go", "test", "-run", "TestNightlySkips", "-v", tested).CombinedOutput()
	require.NoError(t, err, "%s", combined)
	require.Contains(t, string(combined), "--- PASS: TestNightlySkips")
}
