package locker_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// readme returns the first two Go examples of the README: a program and a function.
func readme(t *testing.T) (program, function string) {
	t.Helper()
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(text), 2)
	require.Len(t, blocks, 2)
	program, function = blocks[0][1], blocks[1][1]
	require.True(t, strings.HasPrefix(program, "package main\n"), "the first example is no program")
	return program, function
}

// goTool runs the go command on a file with code.
func goTool(t *testing.T, code string, args ...string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "main.go")
	require.NoError(t, os.WriteFile(file, []byte(code), 0o600))
	out, err := exec.Command("go", append(args, file)...).CombinedOutput()
	require.NoError(t, err, string(out))
}

func TestReadmeCompiles(t *testing.T) {
	t.Parallel()
	program, function := readme(t)
	goTool(t, program, "vet")
	goTool(t, `package main

import (
	"context"
	"errors"
	"time"

	"github.com/golockers/locker"
)

func main() { _ = pay }

func charge(context.Context, string) error { return nil }

`+function, "vet")
}

// The first program of the README does its work once in three processes, as it stands.
func TestReadmeRunsOnce(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	program, _ := readme(t)
	binary := filepath.Join(t.TempDir(), "report")
	goTool(t, program, "build", "-o", binary)
	run := func() string {
		cmd := exec.Command(binary)
		cmd.Env = append(os.Environ(), "REDIS_ADDR="+addr)
		out, err := cmd.CombinedOutput()
		assert.NoError(t, err, string(out))
		return string(out)
	}
	printed := make([]string, 3)
	var processes sync.WaitGroup
	for i := range printed {
		processes.Go(func() { printed[i] = run() })
	}
	processes.Wait()
	assert.Equal(t, "writing the report\n", strings.Join(printed, ""))
	assert.Empty(t, run(), "a replica that comes later")
}
