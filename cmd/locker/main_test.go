//go:build unix

package main

import (
	"bytes"
	"context"
	"database/sql"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/leaktest"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// mainVariable in the environment makes the test binary the program, so that the tests need no build
// and the race detector sees the program.
const mainVariable = "LOCKER_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainVariable) != "" {
		_ = os.Unsetenv(mainVariable) // the command must not be taken for the program
		main()
	}
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "LOCKER_") && !strings.HasPrefix(name, "LOCKER_TEST") {
			_ = os.Unsetenv(name)
		}
	}
	_ = os.Setenv("PGUSER", testserver.PostgresUser)
	_ = os.Setenv("PGSSLMODE", "disable")
	leaktest.Main(m)
}

// long bounds everything that is waited for. Only a failing test uses it up.
const long = time.Minute

// output is a buffer that can be read while the program writes.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// program is one run of locker.
type program struct {
	*exec.Cmd
	stdout, stderr output
}

// prepare returns a run that has not started, with more variables in its environment.
func prepare(t *testing.T, env []string, args ...string) *program {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), long)
	t.Cleanup(cancel)
	p := &program{Cmd: exec.CommandContext(ctx, os.Args[0], args...)}
	p.Env = append(append(os.Environ(), mainVariable+"=1"), env...)
	p.Stdout, p.Stderr = &p.stdout, &p.stderr
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return p
}

func start(t *testing.T, env []string, args ...string) *program {
	t.Helper()
	p := prepare(t, env, args...)
	require.NoError(t, p.Start())
	t.Cleanup(func() { _ = p.Process.Kill() })
	return p
}

// status waits for the end and returns the exit status. The command and all that it started have
// stdout open, and Wait returns when the last of them has closed it.
func (p *program) status(t *testing.T) int {
	t.Helper()
	err := p.Wait()
	if exit := (*exec.ExitError)(nil); err != nil {
		require.ErrorAs(t, err, &exit, "%s", &p.stderr)
	}
	return p.ProcessState.ExitCode()
}

// locked runs locker to its end and requires a status.
func locked(t *testing.T, status int, env []string, args ...string) *program {
	t.Helper()
	p := start(t, env, args...)
	require.Equal(t, status, p.status(t), "%v: %s", args, &p.stderr)
	return p
}

// prints waits until the program has printed a text.
func (p *program) prints(t *testing.T, text string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(p.stdout.String(), text) }, long, 5*time.Millisecond,
		"no %q in %q; %s", text, &p.stdout, &p.stderr)
}

// pid returns the number after a word in what the program has printed.
func (p *program) pid(t *testing.T, word string) int {
	t.Helper()
	p.prints(t, word+" ")
	var pid int
	require.Eventually(t, func() bool {
		_, after, _ := strings.Cut(p.stdout.String(), word+" ")
		number, _, whole := strings.Cut(after, "\n")
		var err error
		pid, err = strconv.Atoi(number)
		return whole && err == nil
	}, long, 5*time.Millisecond)
	return pid
}

func requireGone(t *testing.T, pid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			return syscall.Kill(pid, 0) == syscall.ESRCH
		}
		return strings.Contains(string(stat[bytes.LastIndexByte(stat, ')'):]), " Z ") // no one waits for it
	}, long, 5*time.Millisecond, "process %d lives", pid)
}

func requireOneLine(t *testing.T, p *program) {
	t.Helper()
	require.Equal(t, 1, strings.Count(p.stderr.String(), "\n"), p.stderr.String())
	require.True(t, strings.HasPrefix(p.stderr.String(), "locker: "), p.stderr.String())
	require.NotContains(t, p.stderr.String(), "locker: locker:")
}

// backends are the kinds of servers on which the main tests run.
var backends = map[string]func(t *testing.T) (url string, srv *testserver.Server){
	"redis": func(t *testing.T) (string, *testserver.Server) {
		srv := testserver.Redis(t)
		return "redis://" + srv.Addr, srv
	},
	"redigo": func(t *testing.T) (string, *testserver.Server) {
		srv := testserver.Redis(t)
		return "redigo://" + srv.Addr, srv
	},
	"postgres": func(t *testing.T) (string, *testserver.Server) {
		srv := testserver.Postgres(t)
		url := "postgres://" + srv.Addr + "/postgres" // with PGUSER and PGSSLMODE
		locked(t, 0, nil, "ls", "-b", url+"?create=true")
		return url, srv
	},
	"mysql": func(t *testing.T) (string, *testserver.Server) {
		srv := testserver.MariaDB(t)
		url := "mysql://" + srv.Addr + "/" + testserver.MariaDBDatabase
		db, err := sql.Open("mysql", testserver.MariaDBUser+"@tcp("+srv.Addr+")/")
		require.NoError(t, err)
		defer db.Close()
		for _, statement := range []string{ // so that the URL needs no user
			"CREATE USER ''@'127.0.0.1'", "GRANT ALL ON " + testserver.MariaDBDatabase + ".* TO ''@'127.0.0.1'",
		} {
			_, err := db.ExecContext(t.Context(), statement)
			require.NoError(t, err)
		}
		locked(t, 0, nil, "ls", "-b", url+"?create=true")
		return url, srv
	},
	"etcd": func(t *testing.T) (string, *testserver.Server) {
		srv := testserver.Etcd(t)
		return "etcd://" + srv.Addr, srv
	},
	"memcache": func(t *testing.T) (string, *testserver.Server) {
		srv := testserver.Memcached(t)
		return "memcache://" + srv.Addr, srv
	},
}

// onEach runs a test on each backend.
func onEach(t *testing.T, test func(t *testing.T, url string, srv *testserver.Server)) {
	for name, backend := range backends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, srv := backend(t)
			test(t, url, srv)
		})
	}
}

func redisLocker(t *testing.T, addr string) *redisv9.Locker {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	return redisv9.New(client)
}

func inspect(t *testing.T, l locker.Inspector, key string) locker.Info {
	t.Helper()
	info, err := l.Inspect(t.Context(), key)
	require.NoError(t, err)
	return info
}
