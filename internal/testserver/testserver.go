// Package testserver gives a test a server of its own, for instance a redis-server or a PostgreSQL:
// started on a free port of 127.0.0.1, answering when the constructor returns, killed when the
// test ends, and killed by the kernel when the test's process is (on Linux).
//
//	srv := testserver.Redis(t)
//	client := redis.NewClient(&redis.Options{Addr: srv.Addr})
//
// If the program is not installed, or cannot be paused on this system, the test is skipped with
// that reason. With the environment variable LOCKER_TEST_SERVERS=require the test fails instead,
// so that a machine that is meant to run everything cannot pass by leaving tests out.
package testserver

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"
)

// patience bounds every wait for a server. It is only ever used up by one that is broken.
const patience = 30 * time.Second

// Server is a running server. Its methods are for the goroutine of the test that started it, and
// fail that test if they do not succeed.
type Server struct {
	// Addr is "127.0.0.1:port". It stays the same over a Restart.
	Addr string

	tb   testing.TB
	kind kind
	port int
	path string
	dir  string
	args []string // what the caller added
	proc *process // nil while stopped
}

// kind has what differs between the servers.
type kind struct {
	program string
	// in is a pattern of directories to look for the program in, besides PATH.
	in   string
	args func(s *Server) []string
	// prepare, if not nil, is called once before the first start.
	prepare func(s *Server) error
	// user, if not empty, runs the program when the tests run as root, with which it refuses to run.
	user string
	// env is added to the program's environment.
	env []string
	// pid asks the server that listens at addr for its process id. An answer alone does not prove
	// that it is our server: another process may have taken the port first.
	pid func(addr string) (int, error)
	// dir is there in place of pid for a server that does not know its process id. It asks for the
	// directory in which the server was started.
	dir func(addr string) (string, error)
	// spare is the distance to a second port that the server listens on, or 0.
	spare int
}

// Redis starts a redis-server without persistence: after a Restart it is empty. args are added to
// its command line, for instance "--maxmemory", "1mb".
func Redis(tb testing.TB, args ...string) *Server {
	tb.Helper()
	return start(tb, redisKind, args)
}

// Memcached starts a memcached that speaks TCP only. args are added to its command line, for
// instance "-m", "1".
func Memcached(tb testing.TB, args ...string) *Server {
	tb.Helper()
	return start(tb, memcachedKind, args)
}

// start looks for the program, finds a port and starts the server. If another process takes the
// port first, it tries again on another.
func start(tb testing.TB, k kind, args []string) *Server {
	tb.Helper()
	path, err := k.find()
	if err != nil {
		missing(tb, k.program)
	}
	dir, err := k.directory(tb)
	if err != nil {
		tb.Fatalf("testserver: %v", err)
	}
	s := &Server{tb: tb, kind: k, path: path, dir: dir, args: args}
	tb.Cleanup(s.Stop)
	if k.prepare != nil {
		if err := k.prepare(s); err != nil {
			tb.Fatalf("testserver: prepare %s: %v", k.program, err)
		}
	}
	for range 5 {
		if s.port, err = freePort(k.spare); err != nil {
			break
		}
		s.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))
		if err = s.launch(); err == nil || !errors.Is(err, errExited) {
			break
		}
	}
	if err != nil {
		tb.Fatalf("testserver: %v", err)
	}
	return s
}

// missing skips the test, or fails it where everything is required.
func missing(tb testing.TB, what string) {
	tb.Helper()
	if os.Getenv("LOCKER_TEST_SERVERS") == "require" {
		tb.Fatalf("%s is not installed, and LOCKER_TEST_SERVERS=require", what)
	}
	tb.Skipf("%s is not installed", what)
}

// find returns the path of the program.
func (k kind) find() (string, error) {
	if k.in != "" {
		// The last is the newest.
		if found, _ := filepath.Glob(filepath.Join(k.in, k.program)); len(found) > 0 {
			return found[len(found)-1], nil
		}
	}
	return exec.LookPath(k.program)
}

// directory makes one that the program may write to, and that is removed after the test.
func (k kind) directory(tb testing.TB) (string, error) {
	if k.user == "" {
		return tb.TempDir(), nil
	}
	// Other users cannot enter tb.TempDir().
	dir, err := os.MkdirTemp("", "testserver-")
	if err != nil {
		return "", err
	}
	tb.Cleanup(func() {
		removeSharedMemory(dir)
		if err := removeAll(dir); err != nil {
			tb.Errorf("testserver: %v", err)
		}
	})
	if os.Getuid() != 0 {
		return dir, nil
	}
	return dir, giveTo(dir, k.user)
}

// removeAll removes the directory of a server that was killed. PostgreSQL has a process for each
// connection, which may add files until it sees that the first process is gone.
func removeAll(dir string) error {
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		final := time.Now().After(end)
		if err := os.RemoveAll(dir); err == nil || final {
			return err
		}
	}
}

// errExited means that the server ended before it answered, most likely because its port was taken.
var errExited = errors.New("exited before it answered")

// launch starts the process and returns once that process itself answers at Addr. After an error
// nothing is left running.
func (s *Server) launch() error {
	logFile := filepath.Join(s.dir, "output")
	args := append(s.kind.args(s), s.args...)
	proc, err := startProcess(s.path, args, s.dir, logFile, s.kind)
	if err != nil {
		return fmt.Errorf("start %s: %w", s.kind.program, err)
	}
	var last error
	for end := time.Now().Add(patience); time.Now().Before(end); {
		select {
		case <-proc.done:
			output, _ := os.ReadFile(logFile)
			return fmt.Errorf("%s %q %w: %s", s.kind.program, args, errExited, output)
		case <-time.After(5 * time.Millisecond):
		}
		if last = s.answers(proc); last == nil {
			s.proc = proc
			return nil
		}
	}
	proc.kill()
	output, _ := os.ReadFile(logFile)
	return fmt.Errorf("%s does not answer at %s: %w: %s", s.kind.program, s.Addr, last, output)
}

// answers returns nil if proc, and no other process, answers at Addr.
func (s *Server) answers(proc *process) error {
	if s.kind.dir != nil {
		dir, err := s.kind.dir(s.Addr)
		if err == nil && dir != s.dir {
			err = fmt.Errorf("a server in %s answers at %s, not in %s", dir, s.Addr, s.dir)
		}
		return err
	}
	pid, err := s.kind.pid(s.Addr)
	if err == nil && pid != proc.pid {
		err = fmt.Errorf("process %d answers at %s, not %d", pid, s.Addr, proc.pid)
	}
	return err
}

// Stop kills the server, as a crash would: its clients see only that their connections end. It
// returns when the process is gone. Stopping a stopped server does nothing.
func (s *Server) Stop() {
	if s.proc != nil {
		s.proc.kill()
		s.proc = nil
	}
}

// Restart stops the server if it runs and starts it again on the same port, with the same
// arguments and, except for etcd, without its data.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Stop()
	var err error
	// Another process may have the port for a moment, for instance to check whether it is free.
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err = s.launch(); err == nil || !errors.Is(err, errExited) {
			break
		}
	}
	if err != nil {
		s.tb.Fatalf("testserver: restart: %v", err)
	}
}

// Pause stops the process where it is (SIGSTOP). The kernel goes on accepting connections and
// bytes for it, so to its clients it is a server that hangs. Continue ends the pause. Stop and
// the end of the test also work on a paused server. PostgreSQL has a process for each connection, and
// those go on: to make them hang, put a proxy before the server.
func (s *Server) Pause() {
	s.tb.Helper()
	s.signal("pause", (*process).pause)
}

// Continue ends a pause. The server then handles what has arrived meanwhile.
func (s *Server) Continue() {
	s.tb.Helper()
	s.signal("continue", (*process).resume)
}

func (s *Server) signal(what string, send func(*process) error) {
	s.tb.Helper()
	if s.proc == nil {
		s.tb.Fatalf("testserver: %s: %s is stopped", what, s.kind.program)
	}
	err := send(s.proc)
	if errors.Is(err, errors.ErrUnsupported) && os.Getenv("LOCKER_TEST_SERVERS") != "require" {
		s.tb.Skipf("%s cannot be paused on %s", s.kind.program, runtime.GOOS)
	}
	if err != nil {
		s.tb.Fatalf("testserver: %s %s: %v", what, s.kind.program, err)
	}
}

// PID is the process id of the running server, and 0 while it is stopped.
func (s *Server) PID() int {
	if s.proc == nil {
		return 0
	}
	return s.proc.pid
}
