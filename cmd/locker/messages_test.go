//go:build unix

package main

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/require"
)

// stalledPipe returns the end of a full pipe that nobody reads.
func stalledPipe(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = w.Close()
		_ = r.Close()
	})
	raw, err := w.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Write(func(fd uintptr) bool { // it does not block in this process
		for err == nil {
			_, err = syscall.Write(int(fd), make([]byte, 1))
		}
		return true
	}))
	require.True(t, errors.Is(err, syscall.EAGAIN), "%v", err)
	return w
}

// brokenPipe returns the end of a pipe whose reader is gone.
func brokenPipe(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, r.Close())
	t.Cleanup(func() { _ = w.Close() })
	return w
}

// A command whose lock is lost is stopped, with all that it has started, even if the message about it
// cannot be printed.
func TestStderrFails(t *testing.T) {
	t.Parallel()
	for name, stderr := range map[string]func(t *testing.T) *os.File{"stalled": stalledPipe, "broken": brokenPipe} {
		for _, lose := range []string{"broken", "server gone"} {
			t.Run(name+"/"+lose, func(t *testing.T) {
				t.Parallel()
				srv := testserver.Redis(t)
				p := prepare(t, nil, "run", "-b", "redis://"+srv.Addr, "--key", "k", "--ttl", "3s", "sh", "-c", sleeper)
				p.Stderr = stderr(t)
				require.NoError(t, p.Start())
				t.Cleanup(func() { _ = p.Process.Kill() })
				command, child := p.pid(t, "command"), p.pid(t, "child")
				t.Cleanup(func() { _ = syscall.Kill(-command, syscall.SIGKILL) })
				if lose == "broken" {
					_, err := locker.Break(t.Context(), redisLocker(t, srv.Addr), "k")
					require.NoError(t, err)
				} else {
					srv.Stop()
				}
				requireGone(t, command)
				requireGone(t, child)
				require.Equal(t, statusLost, p.status(t))
				require.Contains(t, p.stdout.String(), "got TERM")
			})
		}
	}
}

// An error that cannot be printed changes no status, and a command can still be ended by SIGPIPE.
func TestStderrFailsAtEnd(t *testing.T) {
	t.Parallel()
	for _, stderr := range []func(t *testing.T) *os.File{stalledPipe, brokenPipe} {
		srv := testserver.Redis(t)
		run := func(status int, args ...string) {
			p := prepare(t, nil, append([]string{"run", "-b", "redis://" + srv.Addr, "--key", "k", "--skip"}, args...)...)
			p.Stderr = stderr(t)
			require.NoError(t, p.Start())
			t.Cleanup(func() { _ = p.Process.Kill() })
			require.Equal(t, status, p.status(t))
		}
		run(statusNotFound, "no-such-command")
		run(statusSignal+int(syscall.SIGPIPE), "sh", "-c", "kill -PIPE $$")
		_, err := locker.Lock(t.Context(), redisLocker(t, srv.Addr), "k", time.Hour)
		require.NoError(t, err)
		run(statusHeld, "true")
	}
}
