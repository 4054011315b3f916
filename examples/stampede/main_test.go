package main

import (
	"os"
	"regexp"
	"syscall"
	"testing"

	"github.com/golockers/locker/examples/stampede/internal/programtest"
	"github.com/golockers/locker/examples/stampede/internal/stampede"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	programtest.Main(m, func() int {
		stampede.CompiledIn = programtest.Compiled()
		return stampede.Main(nil)
	})
}

const compiling = "stampede: compiling the clients of other backends\n"

// A backend that the program does not have itself comes from the module that has it.
func TestOtherBackend(t *testing.T) {
	redis := testserver.Redis(t)
	address := "redigo://" + redis.Addr
	p := programtest.Start(t, "-backend", address, "-processes", "2", "-goroutines", "4", "-rounds", "2")
	require.Zero(t, p.Status(t), "%s", &p.Err)
	require.Regexp(t, compiling, p.Err.String())
	require.Contains(t, p.Out.String(), "2 processes × 4 goroutines")
	require.Regexp(t, `(?m)^layered +1 +1 `, p.Out.String())
	p.RequireNothingLeft(t)

	// Its exit status is that of the program.
	p, _ = programtest.StartPage(t, "-backend", address)
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	require.Zero(t, p.Status(t), "%s", &p.Err)
	redis.Stop()
	p = programtest.Start(t, "-backend", address)
	require.Equal(t, 2, p.Status(t))
	require.Contains(t, p.Err.String(), "stampede: the server does not answer: "+address)
	p.RequireNothingLeft(t)
}

// The program compiles only what it needs by default.
func TestRequirements(t *testing.T) {
	text, err := os.ReadFile("go.mod")
	require.NoError(t, err)
	require.Regexp(t, `github\.com/redis/go-redis`, string(text))
	for _, other := range []string{"etcd", "pgx", "redis/rueidis", "gomodule", "gomemcache", "rod", "chromedp", "modernc.org"} {
		require.NotRegexp(t, regexp.QuoteMeta(other), string(text))
	}
}

// Away from its source the program has only its own backends.
func TestOtherBackendWithoutSource(t *testing.T) {
	t.Chdir(t.TempDir())
	p := programtest.Start(t, "-backend", "etcd://127.0.0.1:1")
	require.Equal(t, 1, p.Status(t))
	require.Regexp(t, "^stampede: the clients of this backend are compiled .*\n$", p.Err.String())
	require.Empty(t, p.Out.String())
}
