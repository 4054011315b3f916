package locker_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// readme returns the first three Go examples of the README: a program, the line that puts its locks on
// Redis, and another program.
func readme(t *testing.T) (first, line, job string) {
	t.Helper()
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(text), 3)
	require.Len(t, blocks, 3)
	return blocks[0][1], blocks[1][1], blocks[2][1]
}

// goTool runs the go command on a file with code.
func goTool(t *testing.T, code string, args ...string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "main.go")
	require.NoError(t, os.WriteFile(file, []byte(code), 0o600))
	out, err := exec.Command("go", append(args, file)...).CombinedOutput()
	require.NoError(t, err, string(out))
}

// The first program of the README needs no server, and only the line that the README names changes for
// one that does.
func TestReadmeFirstProgram(t *testing.T) {
	t.Parallel()
	program, line, _ := readme(t)
	run := func(program string) string {
		binary := filepath.Join(t.TempDir(), "first")
		goTool(t, program, "build", "-o", binary)
		out, err := exec.Command(binary).CombinedOutput()
		require.NoError(t, err, string(out))
		return string(out)
	}
	assert.Equal(t, "paying 42\n<nil>\n", run(program))

	lines := strings.Split(program, "\n")
	i := slices.IndexFunc(lines, func(s string) bool { return strings.HasPrefix(s, "var l = ") })
	require.Positive(t, i)
	lines[i] = strings.TrimSuffix(line, "\n")
	program = strings.Join(lines, "\n")
	program = strings.Replace(program, `"github.com/golockers/locker/memory"`,
		`"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"`, 1)
	require.Contains(t, program, "localhost:6379")
	program = strings.Replace(program, "localhost:6379", testserver.Redis(t).Addr, 1)
	assert.Equal(t, "paying 42\n<nil>\n", run(program))
}

// The job of the README runs once in three processes, as it stands, and the others say so.
func TestReadmeJobRunsOnce(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	_, _, program := readme(t)
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
	const skipped = "another replica has the job\n"
	slices.Sort(printed)
	assert.Equal(t, []string{skipped, skipped, "writing the report\n"}, printed)
	assert.Equal(t, skipped, run(), "a replica that comes later")
}
