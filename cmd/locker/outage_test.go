//go:build unix

package main

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/require"
)

// While the command runs the server dies, and maybe comes back, with its data only if it is etcd. The
// status says what is known of the lock when the command ends; one that is not stopped runs to its end.
func TestServerDiesWhileCommandRuns(t *testing.T) {
	t.Parallel()
	for _, back := range []bool{false, true} {
		onEach(t, func(t *testing.T, url string, srv *testserver.Server) {
			p := prepare(t, nil, "run", "-b", url+"?timeout=2s", "--key", "k", "--ttl", "1m", "sh", "-c", "echo started; cat; echo ended")
			stdin, err := p.StdinPipe()
			require.NoError(t, err)
			require.NoError(t, p.Start())
			t.Cleanup(func() { _ = p.Process.Kill() })
			p.prints(t, "started")
			srv.Stop()
			want, part := statusUnavailable, `the command succeeded, but the lock "k" could not be released: `
			if back {
				srv.Restart()
				switch {
				case strings.HasPrefix(url, "etcd"), strings.HasPrefix(url, "mysql"):
					want, part = 0, ""
				case strings.HasPrefix(url, "redis"):
					want, part = statusLost, `the lock "k" was lost while the command ran, which has ended with status 0`
				} // redigo and memcache do not ask again on another connection
			}
			require.NoError(t, stdin.Close())
			status := p.status(t)
			if back && strings.HasPrefix(url, "postgres") && status == 0 {
				want = 0 // pgx tries a connection first that was idle for a second
			}
			require.Equal(t, want, status, "%s", &p.stderr)
			require.Equal(t, "started\nended\n", p.stdout.String())
			if want == 0 {
				require.Empty(t, p.stderr.String())
				require.Contains(t, locked(t, 0, nil, "show", "-b", url, "k").stdout.String(), "free")
				return
			}
			requireOneLine(t, p)
			require.Contains(t, p.stderr.String(), part)
		})
	}
}

// A command that waits for the lock when the server dies is not started.
func TestServerDiesWhileWaiting(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string, srv *testserver.Server) {
		locked(t, 0, nil, "run", "-b", url, "--key", "k", "--min-hold", "1h", "true")
		p := start(t, nil, "run", "-b", url+"?timeout=2s", "--key", "k", "echo", "ran")
		requireWaiter(t, url)
		srv.Stop()
		require.Equal(t, statusUnavailable, p.status(t))
		requireOneLine(t, p)
		require.Contains(t, p.stderr.String(), url+": ")
		require.Empty(t, p.stdout.String())
	})
}

// A command that waits for the lock goes on waiting while the server restarts.
func TestServerRestartsWhileWaiting(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string, srv *testserver.Server) {
		// Where the data is kept, the lock ends soon; elsewhere it is free at once.
		locked(t, 0, nil, "run", "-b", url, "--key", "k", "--min-hold", "15s", "true")
		p := start(t, nil, "run", "-b", url+"?timeout=2s", "--key", "k", "echo", "ran")
		requireWaiter(t, url)
		time.Sleep(3 * time.Second) // until it waits, where the backend does not tell
		srv.Stop()
		time.Sleep(time.Second) // for the command to notice
		srv.Restart()
		require.Zero(t, p.status(t), "%s", &p.stderr)
		require.Equal(t, "ran\n", p.stdout.String())
		require.Empty(t, p.stderr.String())
	})
}

// A command that stops waiting leaves nothing behind that the lock would wait for.
func TestWaiterLeaves(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string, _ *testserver.Server) {
		if strings.HasPrefix(url, "memcache") || strings.HasPrefix(url, "redigo") {
			t.Skip("the server knows of no waiters")
		}
		holder := prepare(t, nil, "run", "-b", url, "--key", "k", "sh", "-c", "echo started; cat")
		release, err := holder.StdinPipe()
		require.NoError(t, err)
		require.NoError(t, holder.Start())
		t.Cleanup(func() { _ = holder.Process.Kill() })
		holder.prints(t, "started")
		p := start(t, nil, "run", "-b", url, "--key", "k", "--ttl", "10m", "echo", "ran")
		requireWaiter(t, url)
		require.NoError(t, p.Process.Signal(syscall.SIGTERM))
		require.Equal(t, statusSignal+int(syscall.SIGTERM), p.status(t))
		require.Empty(t, p.stdout.String()+p.stderr.String())
		require.NoError(t, release.Close())
		require.Zero(t, holder.status(t))
		locked(t, 0, nil, "run", "-b", url, "--key", "k", "--skip", "true")
	})
}

// requireWaiter waits until one waits for the lock k, if the backend tells.
func requireWaiter(t *testing.T, url string) {
	t.Helper()
	show := func() state {
		return states(t, locked(t, 0, nil, "show", "-b", url, "--json", "k").stdout.String())[0]
	}
	if show().Waiters != nil {
		require.Eventually(t, func() bool { return *show().Waiters == 1 }, long, 10*time.Millisecond)
	}
}
