package testserver

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Bound for everything that is waited for: only a failing test uses it up.
const long = 30 * time.Second

// down reports whether no process listens at addr.
func down(addr string) bool {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err == nil {
		conn.Close()
	}
	return err != nil
}

func TestRedis(t *testing.T) {
	t.Parallel()
	s := Redis(t)
	pid, err := redisKind.pid(s.Addr)
	require.NoError(t, err)
	require.Equal(t, pid, s.PID())

	_, err = redisCommand(s.Addr, "SET", "k", "v")
	require.NoError(t, err)
	addr := s.Addr
	s.Restart()
	require.Equal(t, addr, s.Addr)
	require.NotEqual(t, pid, s.PID())
	_, err = redisCommand(s.Addr, "GET", "k")
	require.ErrorContains(t, err, `unexpected reply "$-1"`, "the data must be gone")
}

func TestRedisArguments(t *testing.T) {
	t.Parallel()
	s := Redis(t, "--maxmemory", "1mb")
	for range 2 {
		info, err := redisCommand(s.Addr, "INFO", "memory")
		require.NoError(t, err)
		require.Contains(t, info, "maxmemory:1048576\r\n")
		s.Restart()
	}
}

func TestMemcached(t *testing.T) {
	t.Parallel()
	s := Memcached(t, "-m", "7")
	stats, err := memcachedStats(s.Addr)
	require.NoError(t, err)
	require.Contains(t, stats, fmt.Sprintf("STAT pid %d\r\n", s.PID()))
	require.Contains(t, stats, "STAT limit_maxbytes 7340032\r\n")
	s.Restart()
	_, err = memcachedStats(s.Addr)
	require.NoError(t, err)
}

func TestStop(t *testing.T) {
	t.Parallel()
	s := Redis(t)
	s.Stop()
	require.True(t, down(s.Addr))
	require.Zero(t, s.PID())
	s.Stop()
	s.Restart()
	require.False(t, down(s.Addr))
}

func TestPause(t *testing.T) {
	t.Parallel()
	s := Redis(t)
	s.Pause()
	_, err := redisCommand(s.Addr, "PING")
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	s.Continue()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		_, err := redisCommand(s.Addr, "PING")
		assert.NoError(c, err)
	}, long, 10*time.Millisecond)
	s.Pause() // and left so: the end of the test must work on a paused server
}

func TestCleanup(t *testing.T) {
	var addr string
	t.Run("inner", func(t *testing.T) {
		s := Redis(t)
		addr = s.Addr
		s.Pause()
	})
	if addr == "" {
		t.Skip("redis-server is not installed")
	}
	require.True(t, down(addr))
}

func TestCluster(t *testing.T) {
	t.Parallel()
	nodes := RedisCluster(t, 3)
	require.Len(t, nodes, 3)
	// A key of each third of the slots is at home on one node and refused with a redirection on others.
	for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
		var stored, moved int
		for _, node := range nodes {
			_, err := redisCommand(node, "SET", key, "v")
			switch {
			case err == nil:
				stored++
			case strings.Contains(err.Error(), "-MOVED"):
				moved++
			}
		}
		require.Equal(t, []int{1, 2}, []int{stored, moved}, key)
	}
}

// A server must not depend on the thread that asked for it, nor on any other that may end.
func TestOutlivesThreads(t *testing.T) {
	// Two at the same time, because the main thread is one that does not end.
	var a, b *Server
	inThread(func() {
		a = Redis(t)
		inThread(func() { b = Redis(t) })
	})
	if a == nil || b == nil {
		t.Skip("redis-server is not installed")
	}
	// So many at once that they get every thread that is idle, and take it with them.
	var all sync.WaitGroup
	gather := make(chan struct{})
	for range 50 {
		all.Go(func() { inThread(func() { <-gather }) })
	}
	close(gather)
	all.Wait()
	for range 20 {
		for _, s := range []*Server{a, b} {
			_, err := redisCommand(s.Addr, "PING")
			require.NoError(t, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// inThread runs f on a thread that ends with it.
func inThread(f func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		f()
	}()
	<-ended
}

func TestPortTaken(t *testing.T) {
	s := Redis(t)
	other := &Server{tb: t, kind: redisKind, path: s.path, dir: t.TempDir(), port: s.port, Addr: s.Addr}
	require.ErrorIs(t, other.launch(), errExited, "another server's answer must not be taken for ours")
}

func TestFreePort(t *testing.T) {
	port, err := freePort(10_000)
	require.NoError(t, err)
	for _, p := range []int{port, port + 10_000} {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p))
		require.NoError(t, err)
		defer l.Close()
		require.False(t, free(p))
	}
}

// spy records how a test ends, without ending ours.
type spy struct {
	testing.TB
	skipped, failed string
}

func (s *spy) Helper() {}
func (s *spy) Skipf(format string, args ...any) {
	s.skipped = fmt.Sprintf(format, args...)
	runtime.Goexit()
}
func (s *spy) Fatalf(format string, args ...any) {
	s.failed = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestMissingProgram(t *testing.T) {
	run := func() (s spy) {
		s.TB = t
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			Redis(&s)
		}()
		<-ended
		return s
	}
	t.Setenv("PATH", t.TempDir())

	t.Setenv("LOCKER_TEST_SERVERS", "")
	got := run()
	require.Equal(t, "redis-server is not installed", got.skipped)
	require.Empty(t, got.failed)

	t.Setenv("LOCKER_TEST_SERVERS", "require")
	got = run()
	require.Empty(t, got.skipped)
	require.Contains(t, got.failed, "redis-server is not installed")
}

// TestKilled kills a test binary in the middle and looks at what it leaves behind.
func TestKilled(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("servers die with their parent on Linux only")
	}
	const child = "LOCKER_TESTSERVER_CHILD"
	if os.Getenv(child) != "" {
		redis, memcached := Redis(t), Memcached(t)
		memcached.Pause()
		fmt.Printf("\nservers %s %s\n", redis.Addr, memcached.Addr)
		select {}
	}

	Redis(t).Stop() // skips when there is none
	Memcached(t).Stop()
	for name, args := range map[string][]string{
		"killed":    {"-test.run=^TestKilled$"},
		"timed out": {"-test.run=^TestKilled$", "-test.timeout=5s"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], args...)
			cmd.Env = append(os.Environ(), child+"=1")
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			defer cmd.Process.Kill()

			var redis, memcached string
			for lines := bufio.NewScanner(out); memcached == "" && lines.Scan(); {
				_, _ = fmt.Sscanf(lines.Text(), "servers %s %s", &redis, &memcached)
			}
			require.NotEmpty(t, memcached, "the child did not start its servers")
			if len(args) == 1 {
				require.False(t, down(redis))
				require.NoError(t, cmd.Process.Kill())
			}
			go func() { _, _ = bufio.NewReader(out).WriteTo(os.Stderr) }()
			require.Error(t, cmd.Wait())
			require.Eventually(t, func() bool { return down(redis) && down(memcached) },
				long, 10*time.Millisecond)
		})
	}
}

// Nothing that arrives after Pause has returned is answered: a signal takes its time to reach each thread.
func TestPauseIsOver(t *testing.T) {
	t.Parallel()
	s := Memcached(t)
	conn, err := net.Dial("tcp", s.Addr)
	require.NoError(t, err)
	defer conn.Close()
	answer := make([]byte, 100)
	for range 100 {
		s.Pause()
		_, err := io.WriteString(conn, "version\r\n")
		require.NoError(t, err)
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
		_, err = conn.Read(answer)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		s.Continue()
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(long)))
		_, err = conn.Read(answer)
		require.NoError(t, err)
	}
}

func TestEtcd(t *testing.T) {
	t.Parallel()
	s := Etcd(t)
	dir, err := etcdKind.dir(s.Addr)
	require.NoError(t, err)
	require.Equal(t, s.dir, dir)
	pid := s.PID()
	s.Restart()
	require.NotEqual(t, pid, s.PID())
	require.NoError(t, healthy(s.Addr))
}

func TestEtcdCluster(t *testing.T) {
	t.Parallel()
	members := EtcdCluster(t, 3)
	require.Len(t, members, 3)
	members[0].Stop()
	require.Eventually(t, func() bool { return healthy(members[1].Addr) == nil && healthy(members[2].Addr) == nil },
		long, 10*time.Millisecond, "two of three are a majority")
	members[1].Stop()
	require.Eventually(t, func() bool { return healthy(members[2].Addr) != nil }, long, 10*time.Millisecond)
	members[0].Restart()
	require.NoError(t, healthy(members[2].Addr))
}

func TestRedisClusterNodes(t *testing.T) {
	t.Parallel()
	nodes, replicas := RedisClusterNodes(t, 3, true, "--cluster-node-timeout", "1000")
	nodes[0].Stop()
	require.Eventually(t, func() bool {
		info, err := redisCommand(replicas[0].Addr, "INFO", "replication")
		return err == nil && strings.Contains(info, "role:master")
	}, patience, 10*time.Millisecond)
	nodes[0].Restart()
	eventually(t, func() error { return complete(append(nodes, replicas...)) })
	eventually(t, func() error { return synchronized(nodes[0].Addr) })
}
