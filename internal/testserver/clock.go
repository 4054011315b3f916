package testserver

import (
	_ "embed"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

//go:embed testdata/clock.c
var clockSource []byte

// A Clock is the wall clock of the servers that its methods start. A test sets it while they run.
// Their monotonic clock is the machine's.
type Clock struct {
	tb    testing.TB
	env   []string
	ahead *int64 // nanoseconds; the servers' memory as well
}

// NewClock returns a clock that agrees with the machine's. Without a C compiler, or on a system
// other than Linux, the test is skipped, as it is without a server.
func NewClock(tb testing.TB) *Clock {
	tb.Helper()
	compiler, err := exec.LookPath("cc")
	if err != nil {
		missing(tb, "a C compiler")
	}
	// Servers that do not run as root cannot enter tb.TempDir().
	dir, err := os.MkdirTemp("", "testserver-clock-")
	if err != nil {
		tb.Fatalf("testserver: %v", err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	source, library, file := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so"), filepath.Join(dir, "ahead")
	err = errors.Join(os.Chmod(dir, 0o755), os.WriteFile(source, clockSource, 0o644),
		os.WriteFile(file, make([]byte, 8), 0o644))
	if err != nil {
		tb.Fatalf("testserver: %v", err)
	}
	if output, err := exec.Command(compiler, "-shared", "-fPIC", "-O2", "-o", library, source).CombinedOutput(); err != nil {
		tb.Fatalf("testserver: compile the clock: %v: %s", err, output)
	}
	ahead, err := mapInt64(tb, file)
	if errors.Is(err, errors.ErrUnsupported) {
		missing(tb, "a clock that can be set")
	}
	if err != nil {
		tb.Fatalf("testserver: %v", err)
	}
	return &Clock{tb, []string{"LD_PRELOAD=" + library, "LOCKER_CLOCK=" + file}, ahead}
}

// Set makes the clock differ from the machine's by that much.
func (c *Clock) Set(ahead time.Duration) { atomic.StoreInt64(c.ahead, int64(ahead)) }

// Redis is the function [Redis] for a server with this clock.
func (c *Clock) Redis(args ...string) *Server {
	c.tb.Helper()
	return start(c.tb, c.of(redisKind), args)
}

// Memcached is the function [Memcached] for a server with this clock.
func (c *Clock) Memcached(args ...string) *Server {
	c.tb.Helper()
	return start(c.tb, c.of(memcachedKind), args)
}

// Postgres is the function [Postgres] for a server with this clock.
func (c *Clock) Postgres(args ...string) *Server {
	c.tb.Helper()
	return start(c.tb, c.of(postgresKind), args)
}

// MariaDB is the function [MariaDB] for a server with this clock.
func (c *Clock) MariaDB(args ...string) *Server {
	c.tb.Helper()
	return start(c.tb, c.of(mariadbKind), args)
}

// Etcd is the function [Etcd] for a server with this clock. It works on amd64, if etcd is linked
// dynamically, as Debian's is; otherwise the test is skipped.
func (c *Clock) Etcd(args ...string) *Server {
	c.tb.Helper()
	if runtime.GOARCH != "amd64" {
		c.tb.Skipf("the clock of a Go program cannot be set on %s", runtime.GOARCH)
	}
	k := c.of(etcdKind)
	k.env = append(k.env, "LOCKER_CLOCK_GO=1")
	s := start(c.tb, k, append([]string{"--unsafe-no-fsync"}, args...))
	before := atomic.LoadInt64(c.ahead)
	defer c.Set(time.Duration(before))
	c.Set(24 * time.Hour)
	now, err := httpTime(s.Addr)
	if err != nil {
		c.tb.Fatalf("testserver: %v", err)
	}
	if time.Until(now) < 12*time.Hour {
		missing(c.tb, "an etcd whose clock can be set")
	}
	return s
}

func (c *Clock) of(k kind) kind {
	k.env = slices.Clip(c.env)
	return k
}

// httpTime returns what time it is by the clock of an HTTP server.
func httpTime(addr string) (time.Time, error) {
	client := http.Client{Timeout: answerTime, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + addr + "/version")
	if err != nil {
		return time.Time{}, err
	}
	defer resp.Body.Close()
	return http.ParseTime(resp.Header.Get("Date"))
}
