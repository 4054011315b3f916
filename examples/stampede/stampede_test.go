package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/golockers/locker/internal/leaktest"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// parentVariable in the environment makes the test binary the program, so that the tests need no build.
const parentVariable = "STAMPEDE_TEST_PARENT"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" || os.Getenv(parentVariable) != "" {
		main()
	}
	leaktest.Main(m)
}

// Bounds a run of the program. Only a failing test uses it up.
const long = 2 * time.Minute

// program is one run of stampede.
type program struct {
	*exec.Cmd
	stdout, stderr bytes.Buffer
	dir            string // its temporary directory
}

func start(t *testing.T, args ...string) *program {
	t.Helper()
	p := newProgram(t, args...)
	p.start(t)
	return p
}

func newProgram(t *testing.T, args ...string) *program {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), long)
	t.Cleanup(cancel)
	p := &program{Cmd: exec.CommandContext(ctx, os.Args[0], args...), dir: t.TempDir()}
	p.Env = append(os.Environ(), parentVariable+"=1", "TMPDIR="+p.dir)
	p.Stdout, p.Stderr = &p.stdout, &p.stderr
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // to be interrupted as from a terminal
	return p
}

func (p *program) start(t *testing.T) {
	t.Helper()
	require.NoError(t, p.Start())
	t.Cleanup(func() {
		_ = syscall.Kill(-p.Process.Pid, syscall.SIGKILL)
		if p.ProcessState == nil {
			_ = p.Wait()
		}
	})
}

// wait returns the exit status. All processes of the fleet have stderr open, and Wait returns when the last of
// them has closed it, so no child is left when it returns.
func (p *program) wait(t *testing.T) int {
	t.Helper()
	err := p.Wait()
	if exit := (*exec.ExitError)(nil); err != nil {
		require.ErrorAs(t, err, &exit, "%s", &p.stderr)
	}
	return p.ProcessState.ExitCode()
}

func (p *program) requireNothingLeft(t *testing.T) {
	t.Helper()
	left, err := os.ReadDir(p.dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestBackends(t *testing.T) {
	for name, backend := range map[string]func(t *testing.T) []string{
		"embedded": func(*testing.T) []string { return nil },
		"redis":    func(t *testing.T) []string { return []string{"-backend", "redis://" + testserver.Redis(t).Addr} },
		"rueidis":  func(t *testing.T) []string { return []string{"-backend", "rueidis://" + testserver.Redis(t).Addr} },
		"redigo":   func(t *testing.T) []string { return []string{"-backend", "redigo://" + testserver.Redis(t).Addr} },
		"memcache": func(t *testing.T) []string { return []string{"-backend", "memcache://" + testserver.Memcached(t).Addr} },
		"postgres": func(t *testing.T) []string {
			return []string{"-backend", "postgres://" + testserver.PostgresUser + "@" + testserver.Postgres(t).Addr + "/postgres"}
		},
		"etcd": func(t *testing.T) []string { return []string{"-backend", "etcd://" + testserver.Etcd(t).Addr} },
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, append(backend(t), "-processes", "3", "-goroutines", "8", "-rounds", "3", "-load", "5ms")...)
			require.Zero(t, p.wait(t), "%s", &p.stderr)
			out := p.stdout.String()
			require.Contains(t, out, "3 processes × 8 goroutines")
			// queries a round, at most; without protection a caller may come late enough to find the value
			require.Regexp(t, `(?m)^no protection +[0-9.]+ +\d+ +[0-9.]+ ms +[0-9.]+ ms +[1-9][0-9.]*$`, out)
			require.Regexp(t, `(?m)^in-process only +[0-9.]+ +[123] +[0-9.]+ ms +[0-9.]+ ms +[1-9][0-9.]*$`, out)
			require.Regexp(t, `(?m)^lock only +1 +1 +[0-9.]+ ms +[0-9.]+ ms +[1-9][0-9.]*$`, out)
			require.Regexp(t, `(?m)^layered +1 +1 +[0-9.]+ ms +[0-9.]+ ms +[1-9][0-9.]*$`, out)
			require.NotRegexp(t, regexp.MustCompile(`[\r\x1b]`), out+p.stderr.String(), "only a terminal gets a bar")
			require.Empty(t, p.stderr.String())
			p.requireNothingLeft(t)
		})
	}
}

func TestBadFlags(t *testing.T) {
	for _, backend := range []string{
		"127.0.0.1:6379", "redis", "redis://", "redis://host", "redis://host:", "redis://:6379", "redis://h:port",
		"redis://h:65536", "redis://h:1/2", "redis://user@h:1", "redis://h:1?db=2", "rediss://h:1",
		"postgres://h:1/d", "postgres://u@h:1", "postgres://u@h/d",
		"postgres://u:p@h:1/d", "postgres://u@h:1/d?x=y", "memcached://h:1", "http://h:1", "redis:h:1", "://", "redis://h:1\n",
	} {
		p := start(t, "-backend", backend)
		require.Equal(t, 2, p.wait(t), backend)
		require.Empty(t, p.stdout.String())
		line := p.stderr.String()
		require.Equal(t, 1, strings.Count(line, "\n"), line)
		require.Contains(t, line, "is none of "+forms)
	}
	for _, args := range [][]string{
		{"-processes", "0"}, {"-goroutines", "-1"}, {"-rounds", "0"}, {"-load", "-1ms"}, {"-timeout", "0s"}, {"more"},
	} {
		p := start(t, args...)
		require.Equal(t, 2, p.wait(t), args)
		require.Equal(t, 1, strings.Count(p.stderr.String(), "\n"), p.stderr.String())
	}
	p := start(t, "-help")
	require.Zero(t, p.wait(t))
	require.Contains(t, p.stderr.String(), "-backend")
}

func TestNoServer(t *testing.T) {
	redis, memcached := testserver.Redis(t), testserver.Memcached(t)
	database, etcd := testserver.Postgres(t), testserver.Etcd(t)
	redis.Stop()
	memcached.Stop()
	database.Stop()
	etcd.Stop()
	for _, backend := range []string{
		"redis://" + redis.Addr, "rueidis://" + redis.Addr, "redigo://" + redis.Addr, "memcache://" + memcached.Addr,
		"postgres://u@" + database.Addr + "/d", "etcd://" + etcd.Addr,
	} {
		p := start(t, "-backend", backend)
		require.Equal(t, 2, p.wait(t), backend)
		require.Empty(t, p.stdout.String())
		require.Equal(t, 1, strings.Count(p.stderr.String(), "\n"), p.stderr.String())
		require.Contains(t, p.stderr.String(), "the server does not answer: "+backend)
		p.requireNothingLeft(t)
	}
}

// A server that goes away in the middle is an error, not a hang and not a table.
func TestServerDies(t *testing.T) {
	redis := testserver.Redis(t)
	p := start(t, "-backend", "redis://"+redis.Addr, "-processes", "2", "-rounds", "100000", "-timeout", "5s")
	p.waitUntilRunning(t)
	redis.Stop()
	require.Equal(t, 1, p.wait(t))
	require.Contains(t, p.stderr.String(), "stampede: no protection, round ")
	p.requireNothingLeft(t)
}

func (p *program) waitUntilRunning(t *testing.T) {
	require.Eventually(t, func() bool {
		files, err := os.ReadDir(p.dir)
		return err == nil && len(files) > 0
	}, long, 10*time.Millisecond)
}

func TestInterrupt(t *testing.T) {
	for name, signal := range map[string]func(pid int) error{
		"Ctrl-C":     func(pid int) error { return syscall.Kill(-pid, syscall.SIGINT) }, // reaches the children too
		"terminated": func(pid int) error { return syscall.Kill(pid, syscall.SIGTERM) },
	} {
		for _, after := range []time.Duration{0, 100 * time.Millisecond, time.Second} {
			t.Run(name+" after "+after.String(), func(t *testing.T) {
				p := start(t, "-processes", "2", "-rounds", "100000", "-load", "300ms")
				p.waitUntilRunning(t)
				time.Sleep(after) // to come at different moments; any will do
				require.NoError(t, signal(p.Process.Pid))
				require.Equal(t, 130, p.wait(t))
				require.Equal(t, "stampede: interrupted\n", p.stderr.String())
				p.requireNothingLeft(t)
			})
		}
	}
}

// The children end with their parent even when it cannot tell them.
func TestParentKilled(t *testing.T) {
	p := start(t, "-processes", "2", "-rounds", "100000")
	p.waitUntilRunning(t)
	require.NoError(t, p.Process.Kill())
	require.Equal(t, -1, p.wait(t))
}

func TestGather(t *testing.T) {
	ms := time.Millisecond
	one, err := gather([]reply{
		{Took: []time.Duration{5 * ms, 1 * ms}, Values: map[string]int{"v": 2}, Queries: 1},
		{Took: []time.Duration{9 * ms}, Values: map[string]int{"v": 1}, Queries: 2},
	}, "v")
	require.NoError(t, err)
	require.Equal(t, round{queries: 3, byProcess: []int64{1, 2}, median: 5 * ms, last: 9 * ms}, one)

	_, err = gather([]reply{
		{Took: []time.Duration{ms}, Values: map[string]int{"v": 1}},
		{Took: []time.Duration{ms, ms}, Values: map[string]int{"v": 1, "old": 1}},
	}, "v")
	require.EqualError(t, err, `1 callers of a process got "old" instead of "v"`)

	_, err = gather([]reply{
		{Took: []time.Duration{ms}, Values: map[string]int{"v": 1}, Failed: 3, Error: "cause"},
	}, "v")
	require.EqualError(t, err, "3 callers of a process failed: cause")
}

func TestVerdict(t *testing.T) {
	of := func(strategy string, first int64, queries ...int64) result {
		r := result{strategy: strategy, first: round{queries: first}}
		for _, n := range queries {
			r.rounds = append(r.rounds, round{queries: n})
		}
		return r
	}
	assert.NoError(t, verdict([]result{of("no protection", 9, 5, 9), of(layered, 1, 1, 1)}))
	assert.EqualError(t, verdict([]result{of(layered, 1, 1, 2, 1)}),
		"layered: not exactly one database query in 1 of 4 rounds")
	assert.Error(t, verdict([]result{of(layered, 2, 1)}), "the round that is not in the table counts too")
	assert.Error(t, verdict([]result{of(layered, 1, 0)}), "a value without a query")
}

func TestMean(t *testing.T) {
	assert.Equal(t, "1", mean([]int64{1, 1, 1}))
	assert.Equal(t, "1.0", mean(append(make([]int64, 0), 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2)))
	assert.Equal(t, "2.5", mean([]int64{2, 3}))
}
