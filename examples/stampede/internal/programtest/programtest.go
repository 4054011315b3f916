// Package programtest runs stampede in tests. Several modules test it, and each of their test
// binaries is the program as well, so that none needs a build.
package programtest

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/golockers/locker/internal/leaktest"
	"github.com/stretchr/testify/require"
)

// variable in the environment makes a test binary the program.
const variable = "STAMPEDE_TEST_PROGRAM"

// Apart in the environment makes a fleet compile SQLite for itself, as users' fleets do.
const Apart = "STAMPEDE_TEST_APART"

// Compiled is where the fleets of a test binary keep the compiled SQLite, or "" if each has its own. It
// is beside the binary, in a directory that go test removes.
func Compiled() string {
	program, err := os.Executable()
	if err != nil || os.Getenv(Apart) != "" {
		return ""
	}
	return filepath.Join(filepath.Dir(program), "compiled")
}

// Long bounds a run of the program. Only a failing test uses it up.
const Long = 2 * time.Minute

// Main is TestMain where program is main.
func Main(m *testing.M, program func() int) {
	if os.Getenv(variable) != "" { // its children inherit it
		os.Exit(program())
	}
	leaktest.Main(m)
}

// Program is one run of stampede.
type Program struct {
	*exec.Cmd
	Out, Err bytes.Buffer
	Dir      string // its temporary directory
}

func Start(t *testing.T, args ...string) *Program {
	t.Helper()
	p := newProgram(t, args...)
	p.start(t)
	return p
}

// StartPage starts the program with -http, and returns the page's address.
func StartPage(t *testing.T, args ...string) (*Program, string) {
	t.Helper()
	p := newProgram(t, append([]string{"-http", "127.0.0.1:0"}, args...)...)
	p.Stdout = nil
	stdout, err := p.StdoutPipe()
	require.NoError(t, err)
	p.start(t)
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err, "%s", &p.Err)
	match := regexp.MustCompile(`^stampede: the page is at (http://127\.0\.0\.1:\d+); Ctrl-C ends it\n$`).FindStringSubmatch(line)
	require.NotNil(t, match, line)
	return p, match[1]
}

func newProgram(t *testing.T, args ...string) *Program {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Long)
	t.Cleanup(cancel)
	p := &Program{Cmd: exec.CommandContext(ctx, os.Args[0], args...), Dir: t.TempDir()}
	p.Env = append(os.Environ(), variable+"=1", "TMPDIR="+p.Dir)
	p.Stdout, p.Stderr = &p.Out, &p.Err
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // to be interrupted as from a terminal
	return p
}

func (p *Program) start(t *testing.T) {
	t.Helper()
	require.NoError(t, p.Cmd.Start())
	t.Cleanup(func() {
		_ = syscall.Kill(-p.Process.Pid, syscall.SIGKILL)
		if p.ProcessState == nil {
			_ = p.Cmd.Wait()
		}
	})
}

// Status waits for the end of the program and returns its exit status. All processes of the fleet
// have stderr open, and Wait returns when the last of them has closed it, so no child is left when
// it returns.
func (p *Program) Status(t *testing.T) int {
	t.Helper()
	err := p.Cmd.Wait()
	if exit := (*exec.ExitError)(nil); err != nil {
		require.ErrorAs(t, err, &exit, "%s", &p.Err)
	}
	return p.ProcessState.ExitCode()
}

// WaitUntilRunning waits for the program's database.
func (p *Program) WaitUntilRunning(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		files, err := os.ReadDir(p.Dir)
		return err == nil && len(files) > 0
	}, Long, 10*time.Millisecond)
}

// RequireNothingLeft fails the test if the program has left files.
func (p *Program) RequireNothingLeft(t *testing.T) {
	t.Helper()
	left, err := os.ReadDir(p.Dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// RequireTable fails the test unless the program, run with args and three rounds, succeeds and
// prints what the table promises.
func RequireTable(t *testing.T, args ...string) {
	t.Helper()
	p := Start(t, append(args, "-processes", "3", "-goroutines", "8", "-rounds", "3", "-load", "5ms")...)
	require.Zero(t, p.Status(t), "%s", &p.Err)
	out := p.Out.String()
	require.Regexp(t, `^3 processes × 8 goroutines`, out)
	// queries a round, at most; without protection a caller may come late enough to find the value
	require.Regexp(t, `(?m)^no protection +[0-9.]+ +\d+ +[0-9.]+ ms +[0-9.]+ ms +[1-9][0-9.]*$`, out)
	require.Regexp(t, `(?m)^in-process only +[0-9.]+ +[123] +[0-9.]+ ms +[0-9.]+ ms +[1-9][0-9.]*$`, out)
	require.Regexp(t, `(?m)^lock only +1 +1 +[0-9.]+ ms +[0-9.]+ ms +[1-9][0-9.]*$`, out)
	require.Regexp(t, `(?m)^layered +1 +1 +[0-9.]+ ms +[0-9.]+ ms +[1-9][0-9.]*$`, out)
	require.Regexp(t, `(?m)^without a cache +1 +1 +[0-9.]+ ms +[0-9.]+ ms +[1-9][0-9.]*$`, out)
	require.Regexp(t, `(?m)^failing source +[0-9.]+ +\d+ +[0-9.]+ ms +[0-9.]+ ms +[1-9][0-9.]*$`, out)
	require.NotRegexp(t, regexp.MustCompile(`[\r\x1b]`), out+p.Err.String(), "only a terminal sees the progress")
	require.Empty(t, p.Err.String())
	p.RequireNothingLeft(t)
}

// RequireNoServer fails the test unless the program says, in one line, that nothing answers at backend.
func RequireNoServer(t *testing.T, backend string) {
	t.Helper()
	p := Start(t, "-backend", backend)
	require.Equal(t, 2, p.Status(t), backend)
	require.Regexp(t, "^[^\n]* on "+regexp.QuoteMeta(backend)+"\n$", p.Out.String(), "what was asked, and no table")
	require.Regexp(t, "^stampede: the server does not answer: "+regexp.QuoteMeta(backend)+": [^\n]+\n$", p.Err.String())
	p.RequireNothingLeft(t)
}
