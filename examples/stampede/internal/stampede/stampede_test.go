package stampede

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/golockers/locker/examples/stampede/internal/programtest"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	programtest.Main(m, func() int {
		CompiledIn = programtest.Compiled()
		return Main(nil)
	})
}

func TestBackends(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		t.Setenv(programtest.Apart, "1")
		programtest.RequireTable(t)
	})
	t.Run("redis", func(t *testing.T) {
		redis := testserver.Redis(t)
		programtest.RequireTable(t, "-backend", "redis://"+redis.Addr)
		redis.Stop()
		programtest.RequireNoServer(t, "redis://"+redis.Addr)
	})
}

func TestBadFlags(t *testing.T) {
	for _, backend := range []string{
		"127.0.0.1:6379", "redis", "redis://", "redis://host", "redis://host:", "redis://:6379", "redis://h:port",
		"redis://h:65536", "redis://h:1/2", "redis://user@h:1", "redis://h:1?db=2", "rediss://h:1",
		"postgres://h:1/d", "postgres://u@h:1", "postgres://u@h/d",
		"postgres://u:p@h:1/d", "postgres://u@h:1/d?x=y", "memcached://h:1", "http://h:1", "redis:h:1", "://", "redis://h:1\n",
	} {
		p := programtest.Start(t, "-backend", backend)
		require.Equal(t, 2, p.Status(t), backend)
		require.Empty(t, p.Out.String())
		line := p.Err.String()
		require.Equal(t, 1, strings.Count(line, "\n"), line)
		require.Contains(t, line, "is none of "+forms)
	}
	for _, args := range [][]string{
		{"-processes", "0"}, {"-goroutines", "-1"}, {"-rounds", "0"}, {"-load", "-1ms"}, {"-timeout", "0s"}, {"more"},
	} {
		p := programtest.Start(t, args...)
		require.Equal(t, 2, p.Status(t), args)
		require.Equal(t, 1, strings.Count(p.Err.String(), "\n"), p.Err.String())
	}
	p := programtest.Start(t, "-help")
	require.Zero(t, p.Status(t))
	require.Contains(t, p.Err.String(), "-backend")
}

// A server that goes away in the middle is an error, not a hang and not a table.
func TestServerDies(t *testing.T) {
	redis := testserver.Redis(t)
	p := programtest.Start(t, "-backend", "redis://"+redis.Addr, "-processes", "2", "-rounds", "100000", "-timeout", "5s")
	p.WaitUntilRunning(t)
	redis.Stop()
	require.Equal(t, 1, p.Status(t))
	require.Contains(t, p.Err.String(), "stampede: no protection, round ")
	p.RequireNothingLeft(t)
}

func TestInterrupt(t *testing.T) {
	for name, signal := range map[string]func(pid int) error{
		"Ctrl-C":     func(pid int) error { return syscall.Kill(-pid, syscall.SIGINT) }, // reaches the children too
		"terminated": func(pid int) error { return syscall.Kill(pid, syscall.SIGTERM) },
	} {
		for _, after := range []time.Duration{0, 100 * time.Millisecond, time.Second} {
			t.Run(name+" after "+after.String(), func(t *testing.T) {
				p := programtest.Start(t, "-processes", "2", "-rounds", "100000", "-load", "300ms")
				p.WaitUntilRunning(t)
				time.Sleep(after) // to come at different moments; any will do
				require.NoError(t, signal(p.Process.Pid))
				require.Equal(t, 130, p.Status(t))
				require.Equal(t, "stampede: interrupted\n", p.Err.String())
				p.RequireNothingLeft(t)
			})
		}
	}
}

// The children end with their parent even when it cannot tell them.
func TestParentKilled(t *testing.T) {
	p := programtest.Start(t, "-processes", "2", "-rounds", "100000")
	p.WaitUntilRunning(t)
	require.NoError(t, p.Process.Kill())
	require.Equal(t, -1, p.Status(t))
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
	of := func(name string, first int64, queries ...int64) result {
		i := slices.IndexFunc(strategies, func(s strategy) bool { return s.name == name })
		r := result{strategy: strategies[i], first: round{queries: first}}
		for _, n := range queries {
			r.rounds = append(r.rounds, round{queries: n})
		}
		return r
	}
	assert.NoError(t, verdict([]result{of("no protection", 9, 5, 9), of("layered", 1, 1, 1), of("failing source", 2, 1)}))
	assert.EqualError(t, verdict([]result{of("layered", 1, 1, 2, 1)}),
		"layered: not exactly one database query in 1 of 4 rounds")
	assert.Error(t, verdict([]result{of("layered", 2, 1)}), "the round that is not in the table counts too")
	assert.Error(t, verdict([]result{of("layered", 1, 0)}), "a value without a query")
	assert.Error(t, verdict([]result{of("without a cache", 1, 2)}))
}

// A database that refuses is asked once or twice, not by each process, and every caller gets its error.
func TestFailingSource(t *testing.T) {
	redis := testserver.Redis(t)
	for _, args := range [][]string{nil, {"-backend", "redis://" + redis.Addr}} {
		p := programtest.Start(t, append(args, "-processes", "5", "-goroutines", "10", "-rounds", "2", "-load", "500ms")...)
		require.Zero(t, p.Status(t), "%s", &p.Err)
		require.Regexp(t, `(?m)^failing source +(1|1\.5|2) +[12] `, p.Out.String())
	}
}

func TestMean(t *testing.T) {
	assert.Equal(t, "1", mean([]int64{1, 1, 1}))
	assert.Equal(t, "1.0", mean(append(make([]int64, 0), 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2)))
	assert.Equal(t, "2.5", mean([]int64{2, 3}))
}
