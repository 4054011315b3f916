//go:build unix

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/golockers/locker"
	"github.com/golockers/locker/cmd/locker/internal/backend"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/memory"
	"github.com/stretchr/testify/require"
)

// sleeper is a command with a child, which both print their process ids. It prints the signals that
// it gets and ends at SIGTERM; the child just ends.
const sleeper = `exec 2>&-
trap 'echo got TERM; exit 5' TERM
for s in INT HUP USR1; do trap "echo got $s" $s; done
sh -c 'echo child $$; exec sleep 1000' & echo command $$
while :; do sleep 0.01; done`

// stubborn is a command with a child, and neither ends at SIGTERM.
const stubborn = `exec 2>&-
trap '' TERM
sh -c 'echo child $$; while :; do sleep 0.1; done' & echo command $$
while :; do sleep 0.1; done`

// The command gets each signal, its children as well, and its status is passed on.
func TestSignals(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	p := start(t, nil, "run", "-b", "redis://"+srv.Addr, "--key", "k", "sh", "-c", sleeper)
	command, child := p.pid(t, "command"), p.pid(t, "child")
	for _, sig := range []struct {
		name   string
		number syscall.Signal
	}{{"USR1", syscall.SIGUSR1}, {"INT", syscall.SIGINT}, {"HUP", syscall.SIGHUP}, {"TERM", syscall.SIGTERM}} {
		require.NoError(t, p.Process.Signal(sig.number))
		p.prints(t, "got "+sig.name)
	}
	require.Equal(t, 5, p.status(t))
	requireGone(t, command)
	requireGone(t, child)
	require.Empty(t, p.stderr.String())
	require.Empty(t, inspect(t, redisLocker(t, srv.Addr), "k").Token)

	p = start(t, nil, "run", "-b", "redis://"+srv.Addr, "--key", "k", "sh", "-c", "echo started; exec sleep 1000")
	p.prints(t, "started")
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 143, p.status(t))
}

// When the server dies or hangs, the command is stopped before its lock can be another's: it has
// ended when the ttl has passed since the server answered last.
func TestServerFails(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	for name, fail := range map[string]func(*testserver.Server){
		"dies": (*testserver.Server).Stop, "hangs": (*testserver.Server).Pause,
	} {
		for _, command := range []string{sleeper, stubborn} {
			onEach(t, func(t *testing.T, url string, srv *testserver.Server) {
				if name == "hangs" && strings.HasPrefix(url, "postgres") {
					t.Skip("while PostgreSQL's first process is stopped, those of its connections go on")
				}
				p := start(t, nil, "run", "-b", url+"?timeout=2s", "--key", "k", "--ttl", ttl.String(), "sh", "-c", command)
				pid, child := p.pid(t, "command"), p.pid(t, "child")
				fail(srv)
				failed := time.Now()
				require.Eventually(t, func() bool { return strings.Contains(p.stderr.String(), "is lost") }, long, time.Millisecond)
				if command == sleeper {
					p.prints(t, "got TERM")
				}
				requireGone(t, pid)
				requireGone(t, child)
				require.Less(t, time.Since(failed), ttl+ttl/2, "the half is for a loaded machine")
				require.Equal(t, statusLost, p.status(t), name)
				requireOneLine(t, p)
				require.Contains(t, p.stderr.String(), `locker: the lock "k" is lost, so the command is stopped: `+url+": ")
			})
		}
	}
}

// A command that is stopped gets SIGTERM only when it continues.
func TestStoppedCommand(t *testing.T) {
	t.Parallel()
	for _, command := range []string{sleeper, stubborn} {
		srv := testserver.Redis(t)
		p := start(t, nil, "run", "-b", "redis://"+srv.Addr, "--key", "k", "--ttl", "6s", "sh", "-c", command)
		pid, child := p.pid(t, "command"), p.pid(t, "child")
		require.NoError(t, syscall.Kill(-pid, syscall.SIGSTOP))
		srv.Stop()
		require.Equal(t, statusLost, p.status(t))
		requireGone(t, pid)
		requireGone(t, child)
		require.Equal(t, command == sleeper, strings.Contains(p.stdout.String(), "got TERM"))
	}
}

// A command that ends at SIGTERM does not leave a child behind that does not.
func TestStubbornChild(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	p := start(t, nil, "run", "-b", "redis://"+srv.Addr, "--key", "k", "--ttl", "3s",
		"sh", "-c", `(trap '' TERM; exec sh -c 'echo child $$; while :; do sleep 0.1; done' 2>&-) & exec sleep 1000`)
	child := p.pid(t, "child")
	srv.Stop()
	require.Equal(t, statusLost, p.status(t))
	requireGone(t, child)
}

func TestKilled(t *testing.T) {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("the command dies with locker on Linux only")
	}
	t.Parallel()
	srv := testserver.Redis(t)
	p := start(t, nil, "run", "-b", "redis://"+srv.Addr, "--key", "k", "sh", "-c", "echo command $$; exec sleep 1000")
	pid := p.pid(t, "command")
	require.NoError(t, p.Process.Kill())
	require.Equal(t, -1, p.status(t))
	requireGone(t, pid)
}

// terminal is a shell with job control in a terminal of its own.
type terminal struct {
	*os.File
	output
}

func newTerminal(t *testing.T, srv *testserver.Server) *terminal {
	t.Helper()
	for _, program := range []string{"bash", "ps"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(program + " is not installed")
		}
	}
	shell := exec.Command("bash", "--norc", "--noprofile", "-i")
	shell.Env = append(os.Environ(), mainVariable+"=1", "LOCKER_BACKEND=redis://"+srv.Addr, "PS1=$ ", "L="+os.Args[0])
	file, err := pty.Start(shell)
	require.NoError(t, err)
	term := &terminal{File: file}
	go func() { _, _ = file.WriteTo(&term.output) }() // ends with an error when no process has the terminal
	t.Cleanup(func() {
		_ = shell.Process.Kill() // the kernel then sends SIGHUP to the foreground
		_ = shell.Wait()
	})
	return term
}

func (term *terminal) types(t *testing.T, keys string) {
	t.Helper()
	_, err := term.WriteString(keys)
	require.NoError(t, err)
}

func (term *terminal) shows(t *testing.T, text string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(term.output.String(), text) }, long, 5*time.Millisecond,
		"no %q on %q", text, &term.output)
}

// A command reads from the terminal, is interrupted by Ctrl-C and stopped by Ctrl-Z, as without
// locker, and the shell has the terminal again after it.
func TestTerminal(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	for i, suffix := range []string{"", " | cat"} { // in a pipeline the command gets the terminal when it reads
		term := newTerminal(t, srv)
		key := fmt.Sprint("k", i)
		term.types(t, `"$L" run -key `+key+` -- sh -c 'echo star''ted; read x; echo "g""ot <$x>"'`+suffix+"\r")
		term.shows(t, "started")
		term.types(t, "hello\r")
		term.shows(t, "got <hello>")
		term.types(t, "echo stat\"us\" $?\r")
		term.shows(t, "status 0")

		term.types(t, `"$L" run -key `+key+` -- sh -c 'ps -o stat= -p $$; echo com''mand $$; exec sleep 1000'`+suffix+"\r")
		term.shows(t, "command ")
		var pid int
		require.Eventually(t, func() bool {
			_, after, _ := strings.Cut(term.output.String(), "command ")
			_, err := fmt.Sscanf(after, "%d\r\n", &pid)
			return err == nil
		}, long, 5*time.Millisecond)
		require.Equal(t, suffix == "", strings.Contains(term.output.String(), "+\r\n"), "in the foreground from the beginning")
		term.types(t, "\x1a") // Ctrl-Z
		term.shows(t, "Stopped")
		state, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
		require.NoError(t, err)
		require.Equal(t, "T", string(state[:1]), "the command runs on without its lock")
		term.types(t, "echo in the sh\"ell\"\r")
		term.shows(t, "in the shell")
		term.types(t, "fg; echo st\"atus\" ${PIPESTATUS[0]}\r")
		time.Sleep(100 * time.Millisecond) // to come at another moment; any will do
		term.types(t, "\x03")              // Ctrl-C
		term.types(t, "echo e\"nd\"\r")
		term.shows(t, "end")
		require.Eventually(t, func() bool { return inspect(t, redisLocker(t, srv.Addr), key).Token == "" }, long, 10*time.Millisecond)
	}
}

// In the background, a command that wants the terminal stops, and the whole job with it. It has the
// terminal when the job is in the foreground.
func TestBackground(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	term := newTerminal(t, srv)
	term.types(t, `"$L" run -key k -- sh -c 'read x; echo "g""ot <$x>"' &`+"\r")
	require.Eventually(t, func() bool {
		term.types(t, "jobs\r")
		time.Sleep(10 * time.Millisecond)
		return strings.Contains(term.output.String(), "Stopped")
	}, long, 50*time.Millisecond)
	term.types(t, "fg\r")
	time.Sleep(100 * time.Millisecond)
	term.types(t, "hello\r")
	term.shows(t, "got <hello>")
	require.Eventually(t, func() bool { return inspect(t, redisLocker(t, srv.Addr), "k").Token == "" }, long, 10*time.Millisecond)
}

// A command that Ctrl-Z has stopped for longer than its lock lasts is stopped for good when it
// continues.
func TestSuspendedTooLong(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	l := redisLocker(t, srv.Addr)
	term := newTerminal(t, srv)
	// A shell that starts a process at the moment of Ctrl-Z may not stop: the process does, before its exec, and
	// the shell, which has called vfork, waits for that.
	term.types(t, `"$L" run -key k -ttl 6s -- sh -c 'trap "echo got TE""RM; exit" TERM; sleep 1000 & echo wait""ing; wait'`+"\r")
	term.shows(t, "waiting")
	term.types(t, "\x1a")
	term.shows(t, "Stopped")
	require.Eventually(t, func() bool { return inspect(t, l, "k").Token == "" }, long, 10*time.Millisecond)
	term.types(t, "fg\r")
	term.shows(t, `the lock "k" is lost, so the command is stopped`)
	term.shows(t, "got TERM")
	term.types(t, "echo st\"atus\" $?\r")
	term.shows(t, "status 76")
}

// The command has to be stopped when the grace is left of the lease, and killed at its end; if the
// lock is another's already, it is killed when the grace is over.
func TestTimesOfStop(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		l := memory.New()
		lease, err := locker.Lock(t.Context(), l, "k", time.Hour)
		require.NoError(t, err)
		p, err := startProcess("/bin/sh", []string{"sh", "-c", "exec sleep 1000"}, nil)
		require.NoError(t, err)
		h := &holding{lease: lease, observer: &extensions{}, backend: &backend.Backend{}, flags: runFlags{grace: 10 * time.Minute}}
		s := &supervisor{holding: h, process: p}
		require.InDelta(t, 50*time.Minute, s.left(), float64(time.Minute))
		if lost {
			_, err := locker.Break(t.Context(), l, "k")
			require.NoError(t, err)
			require.ErrorIs(t, lease.Extend(t.Context(), time.Hour), locker.ErrNotHeld)
		}
		s.stop()
		if lost {
			require.InDelta(t, 10*time.Minute, time.Until(s.killAt), float64(time.Minute))
		} else {
			require.Equal(t, lease.Deadline(), s.killAt)
		}
		require.Equal(t, change{status: 143}, <-p.changes)
		p.close()
	}
}

// The message is the same whether the last extension has ended without an answer or is still under
// way. If it has failed in another way, the message has the cause.
func TestReasonOfStop(t *testing.T) {
	t.Parallel()
	lease, err := locker.Lock(t.Context(), memory.New(), "k", time.Hour)
	require.NoError(t, err)
	h := &holding{lease: lease, observer: &extensions{}, flags: runFlags{ttl: time.Hour + 90*time.Second}}
	s := &supervisor{holding: h} // by that ttl, the lease was taken 90 seconds ago
	for _, err := range []error{nil, fmt.Errorf("locker: extend %q: %w", "k", context.DeadlineExceeded)} {
		h.observer.Observe(t.Context(), locker.Event{Kind: locker.ExtendFailed, Err: err})
		require.Regexp(t, `^no answer yet; the lock was taken or extended 1m[3-5]\d.* ago$`, s.reason().Error())
	}
	h.observer.Observe(t.Context(), locker.Event{Kind: locker.ExtendFailed, Err: fmt.Errorf("locker: extend %q: %w", "k", io.EOF)})
	require.Equal(t, io.EOF, s.reason())
}
