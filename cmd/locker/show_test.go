//go:build unix

package main

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/require"
)

func states(t *testing.T, text string) []state {
	t.Helper()
	var all []state
	for line := range strings.Lines(text) {
		var s state
		require.NoError(t, json.Unmarshal([]byte(line), &s), line)
		all = append(all, s)
	}
	return all
}

func TestShow(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string, _ *testserver.Server) {
		require.Equal(t, "free\n", locked(t, 0, nil, "show", "-b", url, "k").stdout.String())
		free := states(t, locked(t, 0, nil, "show", "-b", url, "-json", "k").stdout.String())[0]
		require.False(t, free.Held)
		require.Nil(t, free.TTL)

		p := start(t, nil, "run", "-b", url, "--key", "k", "--ttl", "5m", "sh", "-c", "echo started; exec sleep 1000")
		p.prints(t, "started")
		owner := hostAndPID(t, p)
		require.Regexp(t, `^held by `+owner+`/\d{8}T\d{6}Z( for [45]m\S+ more)?\n$`, locked(t, 0, nil, "show", "-b", url, "k").stdout.String())
		held := states(t, locked(t, 0, nil, "show", "-b", url, "--json", "k").stdout.String())[0]
		require.True(t, held.Held)
		require.True(t, strings.HasPrefix(held.Owner, owner+"/"))
		require.True(t, strings.HasPrefix(held.Token, held.Owner+"/"))
		switch {
		case strings.HasPrefix(url, "memcache"):
			require.Nil(t, held.TTL)
			require.Nil(t, held.Waiters)
		case strings.HasPrefix(url, "redigo"), strings.HasPrefix(url, "mysql"):
			require.Nil(t, held.Waiters)
		default:
			require.InDelta(t, 300, *held.TTL, 60)
			require.Zero(t, *held.Waiters)
		}
		require.NoError(t, p.Process.Signal(syscall.SIGTERM))
		require.Equal(t, 143, p.status(t))
	})
}

func hostAndPID(t *testing.T, p *program) string {
	t.Helper()
	host, err := os.Hostname()
	require.NoError(t, err)
	return host + "/" + strconv.Itoa(p.Process.Pid)
}

func TestLs(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string, srv *testserver.Server) {
		if strings.HasPrefix(url, "memcache") {
			p := locked(t, statusUsage, nil, "ls", "-b", url)
			requireOneLine(t, p)
			require.Contains(t, p.stderr.String(), "cannot list its locks; locker show KEY")
			return
		}
		require.Empty(t, locked(t, 0, nil, "ls", "-b", url).stdout.String())
		for _, key := range []string{"b/2", "a", "b/1", "bad\x1b[31m\n"} {
			locked(t, 0, nil, "run", "-b", url, "--key", key, "--min-hold", "1h", "true")
		}
		out := locked(t, 0, nil, "ls", "-b", url).stdout.String()
		require.Regexp(t, `^KEY +HOLDER +LEFT +WAITING\na +\S+/\d+/\S+ +(59m\S+|1h0m0s) +[0-]\nb/1 .*\nb/2 .*\n"bad\\x1b\[31m\\n" .*\n$`, out)
		keys := []string{}
		for _, s := range states(t, locked(t, 0, nil, "ls", "-b", url, "--json", "b/").stdout.String()) {
			require.True(t, s.Held)
			keys = append(keys, s.Key)
		}
		require.Equal(t, []string{"b/1", "b/2"}, keys)

		if strings.HasPrefix(url, "red") { // a value of another program is reported, and the rest is listed
			require.NoError(t, exec.Command("redis-cli", "-u", "redis://"+srv.Addr, "hset", "locker:b/3", "x", "y").Run())
			p := locked(t, 0, nil, "ls", "-b", url, "b/")
			requireOneLine(t, p)
			require.Contains(t, p.stderr.String(), "locker: b/3: ")
			require.Equal(t, 3, strings.Count(p.stdout.String(), "\n"))
		}

		srv.Stop()
		p := locked(t, statusUnavailable, nil, "ls", "-b", url)
		requireOneLine(t, p)
		requireOneLine(t, locked(t, statusUnavailable, nil, "show", "-b", url, "k"))
		requireOneLine(t, locked(t, statusUnavailable, nil, "watch", "-b", url, "k"))
		requireOneLine(t, locked(t, statusUnavailable, nil, "break", "-b", url, "-y", "k"))
	})
}

// JSON has only valid text, so another field keeps two keys apart that are not.
func TestKeysThatAreNotText(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	url := "redis://" + srv.Addr
	want := []string{"", base64.StdEncoding.EncodeToString([]byte("k\xfe")), base64.StdEncoding.EncodeToString([]byte("k\xff"))}
	for _, key := range []string{"kö", "k\xff", "k\xfe"} {
		locked(t, 0, nil, "run", "-b", url, "--key", key, "--min-hold", "1h", "true")
	}
	var got []string
	for _, s := range states(t, locked(t, 0, nil, "ls", "-b", url, "--json").stdout.String()) {
		got = append(got, s.KeyBase64)
	}
	require.ElementsMatch(t, want, got)
	s := states(t, locked(t, 0, nil, "show", "-b", url, "--json", "k\xff").stdout.String())
	require.Equal(t, []string{"k\ufffd", want[2]}, []string{s[0].Key, s[0].KeyBase64})
	require.NotContains(t, locked(t, 0, nil, "show", "-b", url, "--json", "kö").stdout.String(), "base64")
}

func TestBreak(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string, _ *testserver.Server) {
		p := locked(t, statusFailed, nil, "break", "-b", url, "--yes", "k")
		require.Equal(t, "locker: the lock \"k\" is free\n", p.stderr.String())

		hold := func() { locked(t, 0, nil, "run", "-b", url, "--key", "k", "--min-hold", "1h", "--skip", "true") }
		hold()
		p = locked(t, statusUsage, nil, "break", "-b", url, "k")
		requireOneLine(t, p)
		require.Contains(t, p.stderr.String(), "--yes")
		p = locked(t, 0, nil, "break", "-b", url, "--yes", "k")
		require.Contains(t, p.stdout.String(), "broken; it was held by ")
		hold()
		require.True(t, states(t, locked(t, 0, nil, "break", "-b", url, "-yes", "-json", "k").stdout.String())[0].Held)

		hold()
		for _, test := range []struct {
			answer string
			status int
		}{{"\r", 1}, {"no\r", 1}, {"\x04", 1}, {"y\r", 0}} {
			cmd := exec.Command(os.Args[0], "break", "-b", url, "k")
			cmd.Env = append(os.Environ(), mainVariable+"=1")
			file, err := pty.Start(cmd)
			require.NoError(t, err)
			term := &terminal{File: file}
			go func() { _, _ = file.WriteTo(&term.output) }()
			term.shows(t, "Break it? [y/N] ")
			term.types(t, test.answer)
			_ = cmd.Wait()
			require.Equal(t, test.status, cmd.ProcessState.ExitCode(), term.output.String())
			require.NoError(t, file.Close())
		}
		require.Equal(t, "free\n", locked(t, 0, nil, "show", "-b", url, "k").stdout.String())
	})
}

func TestWatch(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	l := redisLocker(t, srv.Addr)
	take := func(owner string) *locker.Lease {
		lease, err := locker.Lock(t.Context(), l, "k", time.Hour, locker.WithOwner(owner))
		require.NoError(t, err)
		return lease
	}
	// Only notifications can wake the first of them.
	notified := start(t, nil, "watch", "-b", "redis://"+srv.Addr, "--interval", "1h", "k")
	polling := start(t, nil, "watch", "-b", "redis://"+srv.Addr, "--interval", "5ms", "--json", "k")
	notified.prints(t, "free\n")
	polling.prints(t, `"held":false`)
	for end := time.Now().Add(long); !strings.Contains(notified.stdout.String(), "held by second for "); {
		require.True(t, time.Now().Before(end), "the subscription is not live: %s", &notified.stdout)
		first := take("first")
		waiting := make(chan *locker.Lease)
		go func() { waiting <- take("second") }()
		require.Eventually(t, func() bool { return inspect(t, l, "k").Waiters == 1 }, long, 5*time.Millisecond)
		polling.prints(t, first.Token())
		require.NoError(t, first.Unlock(t.Context()))
		second := <-waiting
		polling.prints(t, second.Token())
		time.Sleep(100 * time.Millisecond) // if it is too short, the next round finds out
		require.NoError(t, second.Unlock(t.Context()))
	}
	polling.prints(t, `"owner":"first"`)
	polling.prints(t, `"owner":"second"`)
	require.Eventually(t, func() bool {
		all := states(t, polling.stdout.String()[:strings.LastIndexByte(polling.stdout.String(), '\n')+1])
		return !all[len(all)-1].Held
	}, long, 5*time.Millisecond)

	// An outage is reported once.
	srv.Stop()
	require.Eventually(t, func() bool { return polling.stderr.String() != "" }, long, 5*time.Millisecond)
	srv.Restart()
	take("third")
	polling.prints(t, `"owner":"third"`)
	requireOneLine(t, polling)
	for _, p := range []*program{notified, polling} {
		require.NoError(t, p.Process.Signal(os.Interrupt))
		require.Equal(t, 130, p.status(t))
	}
}
