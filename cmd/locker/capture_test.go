//go:build unix

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/require"
)

// captureVariable in the environment makes TestCapture write what it captures into docs/cli.md.
const captureVariable = "LOCKER_TEST_CAPTURE"

// captured is a command that is seen to work, and to be stopped.
const captured = `#!/bin/sh
trap 'echo "$(date +%T) report: SIGTERM, cleaning up"; exit 1' TERM
while :; do echo "$(date +%T) report: working"; sleep 2 & wait; done
`

// The page shows the command, so that a reader can do the same.
func TestCapturedCommand(t *testing.T) {
	page, err := os.ReadFile("../../docs/cli.md")
	require.NoError(t, err)
	require.Contains(t, string(page), "```sh\n"+captured+"```\n")
}

// terminals is a tmux with a window for each terminal.
type terminals struct{ socket, dir, backend string }

func (s terminals) tmux(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command("tmux", append([]string{"-L", s.socket, "-f", "/dev/null"}, args...)...)
	cmd.Env = append(os.Environ(), "ENV="+filepath.Join(s.dir, "prompt"), "PATH="+s.dir+":"+os.Getenv("PATH"), "LOCKER_BACKEND="+s.backend)
	cmd.Dir = s.dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// types enters a command, and waits until the terminal shows a text below it.
func (s terminals) types(t *testing.T, terminal, command, text string) {
	t.Helper()
	s.tmux(t, "send-keys", "-t", terminal, "-l", command)
	s.tmux(t, "send-keys", "-t", terminal, "Enter")
	s.shows(t, terminal, regexp.QuoteMeta(command)+"(?s:.*)\n"+text)
}

func (s terminals) shows(t *testing.T, terminal, text string) {
	t.Helper()
	require.Eventually(t, func() bool {
		return regexp.MustCompile(text).MatchString(s.screen(t, terminal))
	}, long, 50*time.Millisecond, "%s", text)
}

func (s terminals) screen(t *testing.T, terminal string) string {
	t.Helper()
	return strings.TrimRight(s.tmux(t, "capture-pane", "-p", "-t", terminal), "\n ")
}

// Two terminals run a command under one lock, and its Redis is killed: the command is stopped within
// its ttl.
func TestCapture(t *testing.T) {
	if os.Getenv(captureVariable) == "" {
		t.Skipf("%s is not set", captureVariable)
	}
	srv := testserver.Redis(t)
	dir := t.TempDir()
	require.NoError(t, exec.Command("go", "build", "-o", filepath.Join(dir, "locker"), ".").Run())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "report"), []byte(captured), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "prompt"), []byte("PS1='$ '\n"), 0o600))
	s := terminals{socket: "locker-" + filepath.Base(dir) + fmt.Sprint(os.Getpid()), dir: dir, backend: "redis://" + srv.Addr}
	for i, name := range []string{"one", "two"} {
		args := []string{"new-window", "-d", "-n", name, "sh"}
		if i == 0 {
			args = []string{"new-session", "-d", "-s", "s", "-n", name, "-x", "160", "-y", "60", "sh"}
		}
		s.tmux(t, args...)
		s.shows(t, name, `^\$`)
	}
	t.Cleanup(func() { s.tmux(t, "kill-server") })

	const ttl = 9 * time.Second
	s.types(t, "one", "locker run --key nightly --ttl 9s -- ./report", "(?s:.*working.*working)")
	s.types(t, "two", "locker run --key nightly --skip -- ./report; echo status $?", "status 75")
	s.types(t, "two", "locker show nightly", `(?s:.*)\n\$$`)
	s.shows(t, "one", "(?s:(working.*){4})") // it has been extended once
	s.types(t, "two", fmt.Sprintf("date +%%T; kill -9 %d # redis-server", srv.PID()), `(?s:\d.*)\n\$$`)
	s.types(t, "two", "locker run --key nightly --skip -- ./report; echo status $?", "status 69")
	s.shows(t, "one", `SIGTERM(?s:.*)\n\$$`)
	s.types(t, "one", "echo status $?", `status 76\n\$$`)

	s.shows(t, "two", `\n\$$`)
	one, two := strings.TrimSuffix(s.screen(t, "one"), "\n$"), strings.TrimSuffix(s.screen(t, "two"), "\n$")
	moment := func(screen, pattern string) time.Time {
		match := regexp.MustCompile(pattern).FindStringSubmatch(screen)
		require.NotNil(t, match, screen)
		at, err := time.Parse(time.TimeOnly, match[1])
		require.NoError(t, err)
		return at
	}
	stopped := moment(one, `(\S+) report: SIGTERM`).Sub(moment(two, `redis-server\n(\S+)`))
	require.LessOrEqual(t, stopped, ttl)
	require.Positive(t, stopped)
	write(t, "one", one)
	write(t, "two", two)
}

// write puts a screen into its place in the page.
func write(t *testing.T, terminal, screen string) {
	t.Helper()
	const file = "../../docs/cli.md"
	page, err := os.ReadFile(file)
	require.NoError(t, err)
	place := regexp.MustCompile("(?s)(<!-- terminal " + terminal + " -->\n```\n).*?(\n```\n)")
	require.Regexp(t, place, string(page))
	text := place.ReplaceAllString(string(page), "${1}"+strings.ReplaceAll(screen, "$", "$$")+"$2")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o666))
}
