package doctest

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/memcache"
	"github.com/golockers/locker/redigo"
	"github.com/golockers/locker/redisv9"
	redigoredis "github.com/gomodule/redigo/redis"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// backend is one of those with a server.
type backend struct {
	start func(tb testing.TB, args ...string) *testserver.Server
	// locker returns a Locker with connections of its own, and what counts its requests: a client
	// writes each in one piece.
	locker func(tb testing.TB, addr string) (locker.Locker, *atomic.Int64)
}

var backends = map[string]backend{
	"redisv9": {testserver.Redis, func(tb testing.TB, addr string) (locker.Locker, *atomic.Int64) {
		count := new(atomic.Int64)
		client := redis.NewClient(&redis.Options{Addr: addr, Dialer: dialer(count)})
		tb.Cleanup(func() { assert.NoError(tb, client.Close()) })
		return redisv9.New(client), count
	}},
	"redigo": {testserver.Redis, func(tb testing.TB, addr string) (locker.Locker, *atomic.Int64) {
		count := new(atomic.Int64)
		pool := &redigoredis.Pool{MaxIdle: 4, DialContext: func(ctx context.Context) (redigoredis.Conn, error) {
			return redigoredis.DialContext(ctx, "tcp", addr, redigoredis.DialContextFunc(dialer(count)))
		}}
		tb.Cleanup(func() { assert.NoError(tb, pool.Close()) })
		return redigo.New(pool), count
	}},
	"memcache": {testserver.Memcached, func(tb testing.TB, addr string) (locker.Locker, *atomic.Int64) {
		count := new(atomic.Int64)
		client := gomemcache.New(addr)
		client.Timeout = 5 * time.Second // a busy machine is no dead server
		client.DialContext = dialer(count)
		tb.Cleanup(func() { assert.NoError(tb, client.Close()) })
		return memcache.New(client), count
	}},
}

func dialer(count *atomic.Int64) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return countingConn{conn, count}, err
	}
}

type countingConn struct {
	net.Conn
	count *atomic.Int64
}

func (c countingConn) Write(b []byte) (int, error) {
	c.count.Add(1)
	return c.Conn.Write(b)
}

// The longest ttl that there is holds a lock on Redis.
func TestLongestTTLOnRedis(t *testing.T) {
	t.Parallel()
	l, _ := backends["redisv9"].locker(t, testserver.Redis(t).Addr)
	ctx := context.Background()
	for _, op := range []func() (bool, error){
		func() (bool, error) { return l.Acquire(ctx, "k", "t", math.MaxInt64) },
		func() (bool, error) { return l.Extend(ctx, "k", "t", math.MaxInt64) },
	} {
		ok, err := op()
		require.NoError(t, err)
		require.True(t, ok)
		ok, err = l.Acquire(ctx, "k", "another", time.Hour)
		require.NoError(t, err)
		require.False(t, ok)
	}
}

// insist does an operation until it is no error: a client has to find out first that its
// connections are those of a server that is no more.
func insist(t *testing.T, op func() (bool, error)) bool {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		ok, err := op()
		if err == nil {
			return ok
		}
		require.Less(t, time.Now(), end, "%v", err)
	}
}

// A server that comes back without its data has forgotten its locks: their holders are told, and
// others can have them.
func TestRestartWithoutData(t *testing.T) {
	t.Parallel()
	for name, b := range backends {
		t.Run(name, func(t *testing.T) {
			srv := b.start(t)
			l, _ := b.locker(t, srv.Addr)
			ctx := context.Background()
			require.True(t, insist(t, func() (bool, error) { return l.Acquire(ctx, "k", "t", time.Hour) }))
			srv.Restart()
			assert.False(t, insist(t, func() (bool, error) { return l.Extend(ctx, "k", "t", time.Hour) }))
			assert.False(t, insist(t, func() (bool, error) { return l.Release(ctx, "k", "t") }))
			assert.True(t, insist(t, func() (bool, error) { return l.Acquire(ctx, "k", "u", time.Hour) }))
		})
	}
}

// A Redis that writes everything to its disk before it replies keeps its locks over a crash.
func TestRestartWithData(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"redisv9", "redigo"} {
		t.Run(name, func(t *testing.T) {
			b := backends[name]
			srv := b.start(t, "--appendonly", "yes", "--appendfsync", "always")
			l, _ := b.locker(t, srv.Addr)
			ctx := context.Background()
			require.True(t, insist(t, func() (bool, error) { return l.Acquire(ctx, "held", "t", time.Hour) }))
			require.True(t, insist(t, func() (bool, error) { return l.Acquire(ctx, "over", "t", time.Millisecond) }))
			srv.Restart()
			assert.False(t, insist(t, func() (bool, error) { return l.Acquire(ctx, "held", "u", time.Hour) }))
			assert.True(t, insist(t, func() (bool, error) { return l.Acquire(ctx, "over", "u", time.Hour) }))
			assert.True(t, insist(t, func() (bool, error) { return l.Extend(ctx, "held", "t", time.Hour) }))
			assert.True(t, insist(t, func() (bool, error) { return l.Release(ctx, "held", "t") }))
		})
	}
}

// A Redis that evicts keys when it is full also evicts locks: all of them have an expiry, so even a
// policy that keeps what has none does not keep them.
func TestEvictionOnRedis(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"redisv9", "redigo"} {
		for _, policy := range []string{"allkeys-lru", "volatile-lru", "volatile-ttl"} {
			t.Run(name+" "+policy, func(t *testing.T) {
				b := backends[name]
				srv := b.start(t, "--maxmemory", "3mb", "--maxmemory-policy", policy)
				l, _ := b.locker(t, srv.Addr)
				ctx := context.Background()
				require.True(t, insist(t, func() (bool, error) { return l.Acquire(ctx, "k", "t", time.Hour) }))
				client := redis.NewClient(&redis.Options{Addr: srv.Addr, ReadTimeout: time.Minute})
				defer client.Close()
				for i := 0; ; i++ {
					require.Less(t, i, 1000, "the server has room for all of them")
					pipe := client.Pipeline()
					for n := range 100 {
						pipe.Set(ctx, fmt.Sprintf("fill:%d:%d", i, n), strings.Repeat("x", 1000), 10_000*time.Hour)
					}
					_, err := pipe.Exec(ctx)
					require.NoError(t, err)
					keys, err := client.Keys(ctx, "locker:*").Result()
					require.NoError(t, err)
					if len(keys) == 0 {
						break
					}
				}
				assert.False(t, insist(t, func() (bool, error) { return l.Extend(ctx, "k", "t", time.Hour) }))
				assert.False(t, insist(t, func() (bool, error) { return l.Release(ctx, "k", "t") }))
				assert.True(t, insist(t, func() (bool, error) { return l.Acquire(ctx, "k", "u", time.Hour) }))
			})
		}
	}
}

// The tests and checks that guarantees.md names exist. `TestX` is a test of the section's package,
// of this package, or of conformance/internal/proof, and `group/check` is a check of the
// conformance suite.
func TestNamesInGuarantees(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/guarantees.md")
	require.NoError(t, err)
	names := regexp.MustCompile("`(Test[A-Za-z0-9]+|[a-z]+/[a-z-]+)`")
	section, found := "", 0
	for line := range strings.Lines(string(text)) {
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			section = strings.TrimSpace(heading)
		}
		for _, match := range names.FindAllStringSubmatch(line, -1) {
			found++
			const proof = "../../conformance/internal/proof/"
			name, what := match[1], "func %s("
			dirs := []string{"../../" + section, ".", proof + "leases", proof + "failover", proof + "clocks", proof + "disturb"}
			switch section {
			case "locker":
				dirs = append(dirs, "../..")
			case "redisv9":
				dirs = append(dirs, "../redislock")
			case "sqllock":
				dirs = append(dirs, "../../sqllock/internal/sqltest")
			case "caches":
				dirs = []string{"../../cache", "../../singleflight", "../../memory", "../../redisv9", "../../redigo", "../../memcache"}
			case "window":
				dirs = append(dirs, "../../conformance", "../../memory", "../../redisv9", "../../redigo", "../../memcache",
					"../../postgres", "../../rueidis")
			}
			if strings.Contains(name, "/") {
				dirs, what = []string{"../../conformance"}, "%q"
			}
			assert.True(t, contains(t, dirs, fmt.Sprintf(what, name)), "%s, under %q", name, section)
		}
	}
	assert.Greater(t, found, 50, "the names are written in another way")
}

// contains reports whether a Go file in one of the directories has that text.
func contains(t *testing.T, dirs []string, text string) bool {
	t.Helper()
	for _, dir := range dirs {
		files, err := filepath.Glob(dir + "/*.go")
		require.NoError(t, err)
		for _, file := range files {
			code, err := os.ReadFile(file)
			require.NoError(t, err)
			if bytes.Contains(code, []byte(text)) {
				return true
			}
		}
	}
	return false
}

// A replica, which may lag behind, is no backend: it refuses instead of answering. Redigo's Extend
// and Release only look when there is nothing to change.
func TestReadOnlyReplica(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"redisv9", "redigo"} {
		t.Run(name, func(t *testing.T) {
			b := backends[name]
			master := b.start(t)
			host, port, err := net.SplitHostPort(master.Addr)
			require.NoError(t, err)
			replica := b.start(t, "--replicaof", host+" "+port)
			l, _ := b.locker(t, replica.Addr)
			for what, op := range map[string]func() (bool, error){
				"acquire": func() (bool, error) { return l.Acquire(context.Background(), "k", "t", time.Hour) },
				"extend":  func() (bool, error) { return l.Extend(context.Background(), "k", "t", time.Hour) },
				"release": func() (bool, error) { return l.Release(context.Background(), "k", "t") },
			} {
				ok, err := op()
				assert.False(t, ok, what)
				assert.ErrorContains(t, err, "READONLY", what)
			}
		})
	}
}
