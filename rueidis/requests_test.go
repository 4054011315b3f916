package rueidis_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/rueidis"
	rueidisclient "github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// counting is a network that counts what is written to it. A caller who is alone writes once for
// each request.
type counting struct{ writes atomic.Int64 }

type countingConn struct {
	net.Conn
	n *counting
}

func (n *counting) dial(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
	conn, err := d.DialContext(ctx, "tcp", addr)
	return &countingConn{conn, n}, err
}

func (c *countingConn) Write(b []byte) (int, error) {
	c.n.writes.Add(1)
	return c.Conn.Write(b)
}

// TestRequests compares the requests of each operation with those of redisv9 in guarantees.md. A
// count is the least of many, since the first use of a connection or a script takes more.
func TestRequests(t *testing.T) {
	t.Parallel()
	for column, addrs := range map[string][]string{
		"redisv9": {testserver.Redis(t).Addr}, "redisv9, Cluster": testserver.RedisCluster(t, 3),
	} {
		want := documented(t, column)
		n := new(counting)
		l := newLocker(t, rueidisclient.ClientOption{
			InitAddress: addrs, DialCtxFn: n.dial, Dialer: net.Dialer{KeepAlive: time.Hour}, // no pings
		})
		least := map[string]int64{}
		for round := range 50 {
			ctx, key := t.Context(), fmt.Sprint("key ", round)
			for _, step := range []struct {
				name string
				do   func() (bool, error)
				want bool
			}{
				{"acquire a free lock", func() (bool, error) { return l.Acquire(ctx, key, "t1", time.Hour) }, true},
				{"acquire, refused", func() (bool, error) { return l.Acquire(ctx, key, "t2", time.Hour) }, false},
				{"acquire again, with the same token", func() (bool, error) { return l.Acquire(ctx, key, "t1", time.Hour) }, true},
				{"extend", func() (bool, error) { return l.Extend(ctx, key, "t1", time.Hour) }, true},
				{"extend, refused", func() (bool, error) { return l.Extend(ctx, key, "t2", time.Hour) }, false},
				{"release, refused", func() (bool, error) { return l.Release(ctx, key, "t2") }, false},
				{"mint a fencing number", func() (bool, error) { _, ok, err := l.Fence(ctx, key, "t1"); return ok, err }, true},
				{"inspect", func() (bool, error) { info, err := l.Inspect(ctx, key); return info.Token == "t1", err }, true},
				{"release", func() (bool, error) { return l.Release(ctx, key, "t1") }, true},
			} {
				before := n.writes.Load()
				ok, err := step.do()
				require.NoError(t, err, step.name)
				require.Equal(t, step.want, ok, step.name)
				made := n.writes.Load() - before
				if was, seen := least[step.name]; !seen || made < was {
					least[step.name] = made
				}
			}
		}
		for name, made := range least {
			assert.Equal(t, want[name], fmt.Sprint(made), "%s: %s", column, name)
		}
		assert.Equal(t, want["take a turn in the queue, including the release before it"],
			fmt.Sprint(requestsOfATurn(t, addrs)), column)
	}
}

// requestsOfATurn returns how many requests a turn takes mostly, those of the waiter and of the
// holder before it.
func requestsOfATurn(t *testing.T, addrs []string) (most int64) {
	t.Helper()
	n := new(counting)
	var lockers [2]*rueidis.Locker
	for i := range lockers {
		lockers[i] = newLocker(t, rueidisclient.ClientOption{
			InitAddress: addrs, DialCtxFn: n.dial, Dialer: net.Dialer{KeepAlive: time.Hour},
		})
	}
	ctx, turns := t.Context(), map[int64]int{}
	_, err := lockers[0].Wait(ctx, "queue", "0", time.Hour)
	require.NoError(t, err)
	for i := range 60 {
		holder, next := lockers[i%2], lockers[(i+1)%2]
		before := n.writes.Load()
		waited := make(chan error, 1)
		go func() {
			_, err := next.Wait(ctx, "queue", fmt.Sprint(i+1), time.Hour)
			waited <- err
		}()
		eventually(t, "it has asked for a place in the queue", func() bool { return n.writes.Load() > before })
		releases(t, holder, "queue", fmt.Sprint(i))
		require.NoError(t, <-waited)
		made := n.writes.Load() - before
		if turns[made]++; turns[made] > turns[most] {
			most = made
		}
	}
	return most
}

// documented returns a column of the table of requests in guarantees.md.
func documented(t *testing.T, column string) map[string]string {
	t.Helper()
	page, err := os.ReadFile("../docs/guarantees.md")
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(page), "\n## Requests\n")
	section, _, _ = strings.Cut(section, "\n## ")
	index, cells := -1, map[string]string{}
	for line := range strings.Lines(section) {
		row := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range row {
			row[i] = strings.TrimSpace(row[i])
			if index < 0 && row[i] == column {
				index = i
			}
		}
		if index >= 0 && len(row) > index {
			cells[row[0]] = row[index]
		}
	}
	require.NotEmpty(t, cells)
	return cells
}
