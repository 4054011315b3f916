//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/require"
)

func TestStatuses(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	l := redisLocker(t, srv.Addr)
	dir := t.TempDir()
	plain, garbage := filepath.Join(dir, "plain"), filepath.Join(dir, "garbage")
	require.NoError(t, os.WriteFile(plain, []byte("#!/bin/sh\n"), 0o600))
	require.NoError(t, os.WriteFile(garbage, []byte("\x00\x01"), 0o700))
	for _, test := range []struct {
		status  int
		command []string
		stderr  string
	}{
		{0, []string{"true"}, ""},
		{1, []string{"false"}, ""},
		{7, []string{"sh", "-c", "exit 7"}, ""},
		{137, []string{"sh", "-c", "kill -KILL $$"}, ""},
		{143, []string{"sh", "-c", "kill -TERM $$"}, ""},
		{127, []string{"no-such-command"}, "locker: no-such-command: command not found in $PATH\n"},
		{127, []string{filepath.Join(dir, "none")}, "no such file"},
		{126, []string{plain}, "permission denied"},
		{126, []string{dir}, "is a directory"},
		{126, []string{garbage}, "exec format error"}, // found when the lock is held already
	} {
		p := locked(t, test.status, nil, append([]string{"run", "-b", "redis://" + srv.Addr, "-key", "k", "--"}, test.command...)...)
		if test.stderr == "" {
			require.Empty(t, p.stderr.String())
		} else {
			requireOneLine(t, p)
			require.Contains(t, p.stderr.String(), test.stderr)
		}
		require.Empty(t, inspect(t, l, "k").Token, "%v: the lock is not released", test.command)
	}
	// A command that was not started does not count for --min-hold.
	locked(t, 126, nil, "run", "-b", "redis://"+srv.Addr, "--key", "k", "--min-hold", "1h", garbage)
	require.Empty(t, inspect(t, l, "k").Token)
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string, _ *testserver.Server) {
		last := 0
		for range 2 {
			p := locked(t, 0, []string{"LOCKER_BACKEND=" + url, "LOCKER_FENCE=1", "LOCKER_KEY=outer"},
				"run", "--key", "a b", "sh", "-c", `echo "$LOCKER_KEY"; echo "${LOCKER_FENCE-none}"; echo "$@"`, "sh", "-key", "x", "--skip")
			lines := strings.Split(p.stdout.String(), "\n")
			require.Equal(t, "a b", lines[0])
			require.Equal(t, "-key x --skip", lines[2], "the command's flags are its own")
			if strings.HasPrefix(url, "memcache") {
				require.Equal(t, "none", lines[1])
				continue
			}
			fence, err := strconv.Atoi(lines[1])
			require.NoError(t, err)
			require.Greater(t, fence, last)
			last = fence
		}
	})
}

// Processes that increase a number in a file, each in two steps, lose no increment.
func TestExclusion(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string, _ *testserver.Server) {
		file := filepath.Join(t.TempDir(), "number")
		require.NoError(t, os.WriteFile(file, []byte("0"), 0o600))
		var programs []*program
		for range 6 {
			programs = append(programs, start(t, nil, "run", "-b", url, "-k", "number", "--",
				"sh", "-c", `n=$(cat "$1"); sleep 0.05; echo $((n + 1)) >"$1"`, "sh", file))
		}
		for _, p := range programs {
			require.Zero(t, p.status(t), &p.stderr)
		}
		number, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, "6\n", string(number))
	})
}

func TestSkipAndWait(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string, _ *testserver.Server) {
		holder := prepare(t, nil, "run", "-b", url, "--key", "k", "sh", "-c", "echo started; cat")
		release, err := holder.StdinPipe()
		require.NoError(t, err)
		require.NoError(t, holder.Start())
		holder.prints(t, "started")

		for _, args := range [][]string{{"--skip"}, {"--wait", "2s"}} {
			p := locked(t, statusHeld, nil, append(append([]string{"run", "-b", url, "--key", "k"}, args...), "echo", "ran")...)
			requireOneLine(t, p)
			host, err := os.Hostname()
			require.NoError(t, err)
			require.Contains(t, p.stderr.String(), fmt.Sprintf(`the lock "k" is held by %s/%d`, host, holder.Process.Pid))
			require.Empty(t, p.stdout.String())
		}
		locked(t, 0, nil, "run", "-b", url, "--key", "other", "--skip", "true")

		waiting := start(t, nil, "run", "-b", url, "--key", "k", "--wait", "1m", "echo", "ran")
		forever := start(t, nil, "run", "-b", url, "--key", "k", "echo", "ran")
		require.NoError(t, release.Close())
		for _, p := range []*program{holder, waiting, forever} {
			require.Zero(t, p.status(t), &p.stderr)
		}
		require.Equal(t, "ran\nran\n", waiting.stdout.String()+forever.stdout.String())
	})
}

func TestMinHold(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	run := []string{"run", "-b", "redis://" + srv.Addr, "--key", "k", "--skip", "--min-hold", "1h"}
	p := locked(t, 3, nil, append(run, "sh", "-c", "echo ran; exit 3")...)
	require.Equal(t, "ran\n", p.stdout.String())
	require.Greater(t, inspect(t, redisLocker(t, srv.Addr), "k").TTL, 30*time.Minute)
	locked(t, statusHeld, nil, append(run, "echo", "ran")...)
}

// The lock outlives its ttl while the command runs.
func TestKeepAlive(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	locked(t, 0, nil, "run", "-b", "redis://"+srv.Addr, "--key", "k", "--ttl", "3s", "--grace", "0s", "sleep", "7")
}

// A lock that is broken while the command runs stops the command at the next extension, and one that
// ends before that learns of it, too.
func TestBroken(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	l := redisLocker(t, srv.Addr)
	p := start(t, nil, "run", "-b", "redis://"+srv.Addr, "--key", "k", "--ttl", "6s",
		"sh", "-c", `exec 2>&-; trap 'echo stopped; exit 5' TERM; echo started; while :; do sleep 0.01; done`)
	p.prints(t, "started")
	_, err := locker.Break(t.Context(), l, "k")
	require.NoError(t, err)
	require.Equal(t, statusLost, p.status(t))
	require.Equal(t, "started\nstopped\n", p.stdout.String())
	requireOneLine(t, p)
	require.Contains(t, p.stderr.String(), `the lock "k" is lost, so the command is stopped: `)

	p = prepare(t, nil, "run", "-b", "redis://"+srv.Addr, "--key", "k", "--ttl", "5m", "sh", "-c", "echo started; cat")
	stdin, err := p.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, p.Start())
	p.prints(t, "started")
	_, err = locker.Break(t.Context(), l, "k")
	require.NoError(t, err)
	require.NoError(t, stdin.Close())
	require.Equal(t, statusLost, p.status(t))
	requireOneLine(t, p)
	require.Contains(t, p.stderr.String(), "was lost while the command ran, which has ended with status 0")
}

// The command has done its work, but the lock is not known to be free.
func TestUnlockError(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ command, status int }{{0, statusUnavailable}, {3, 3}} {
		srv := testserver.Redis(t)
		p := locked(t, test.status, nil, "run", "-b", "redis://"+srv.Addr, "--key", "k", "--ttl", "1m",
			"sh", "-c", fmt.Sprintf("kill -KILL %d; exit %d", srv.PID(), test.command))
		requireOneLine(t, p)
		require.Contains(t, p.stderr.String(), `the lock "k" could not be released: `)
		require.Contains(t, p.stderr.String(), "it ends within 1m")
	}
}

func TestNoServer(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string, srv *testserver.Server) {
		srv.Stop()
		for _, args := range [][]string{{"--skip"}, {"--wait", "1m"}, {}} {
			p := locked(t, statusUnavailable, nil, append(append([]string{"run", "-b", url, "--key", "k"}, args...), "echo", "ran")...)
			requireOneLine(t, p)
			require.Contains(t, p.stderr.String(), url+": ")
			require.Contains(t, p.stderr.String(), "check that the server runs")
			require.Empty(t, p.stdout.String())
		}
		srv.Restart()
		srv.Pause()
		p := locked(t, statusUnavailable, nil, "run", "-b", url+"?timeout=100ms", "--key", "k", "echo", "ran")
		requireOneLine(t, p)
		require.Contains(t, p.stderr.String(), "does not answer in time")
	})
}

func TestSignalWhileWaiting(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	l := redisLocker(t, srv.Addr)
	lease, err := locker.Lock(t.Context(), l, "k", time.Hour)
	require.NoError(t, err)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		p := start(t, nil, "run", "-b", "redis://"+srv.Addr, "--key", "k", "echo", "ran")
		require.Eventually(t, func() bool { return inspect(t, l, "k").Waiters > 0 }, long, 5*time.Millisecond)
		require.NoError(t, p.Process.Signal(sig))
		require.Equal(t, 128+int(sig), p.status(t))
		require.Empty(t, p.stdout.String()+p.stderr.String())
	}
	require.NoError(t, lease.Unlock(t.Context()))
	locked(t, 0, nil, "run", "-b", "redis://"+srv.Addr, "--key", "k", "--skip", "true") // the lock waits for none of them
}
