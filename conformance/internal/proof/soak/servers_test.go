package soak

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/golockers/locker/internal/testserver"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// server is what the test asks of a server. Each question is asked over the same connection.
type server struct {
	addr string
	// connections counts those of clients, perhaps with the test's own, and left what there is of locks.
	connections, left, memory func(t *testing.T) int
}

func newRedis(t *testing.T) *server {
	s := testserver.Redis(t)
	client := redis.NewClient(&redis.Options{Addr: s.Addr, PoolSize: 1, ReadTimeout: patience})
	t.Cleanup(func() { _ = client.Close() })
	info := func(section, field string) func(t *testing.T) int {
		return func(t *testing.T) int {
			text, err := client.Info(context.Background(), section).Result()
			assert.NoError(t, err)
			return number(t, text, field+":")
		}
	}
	return &server{addr: s.Addr, connections: info("clients", "connected_clients"), memory: info("memory", "used_memory"),
		left: func(t *testing.T) int {
			n, err := client.DBSize(context.Background()).Result()
			assert.NoError(t, err)
			return int(n)
		}}
}

func newMemcached(t *testing.T) *server {
	s := testserver.Memcached(t)
	conn, err := net.Dial("tcp", s.Addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	lines := bufio.NewReader(conn)
	ask := func(t *testing.T, question, end string) (answer string) {
		_, err := fmt.Fprint(conn, question+"\r\n")
		for err == nil && !strings.Contains(answer, end) {
			var line string
			line, err = lines.ReadString('\n')
			answer += line
		}
		assert.NoError(t, err)
		return answer
	}
	stat := func(name string) func(t *testing.T) int {
		return func(t *testing.T) int { return number(t, ask(t, "stats", "END"), "STAT "+name+" ") }
	}
	items := stat("curr_items")
	return &server{addr: s.Addr, connections: stat("curr_connections"), memory: stat("bytes"),
		left: func(t *testing.T) int {
			ask(t, "lru_crawler crawl all", "\n") // or it keeps what has expired
			return items(t)
		}}
}

func newPostgres(t *testing.T) *server {
	s := testserver.Postgres(t)
	conn, err := pgx.Connect(context.Background(), "postgres://postgres@"+s.Addr+"/postgres?sslmode=disable")
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	count := func(query string) func(t *testing.T) int {
		return func(t *testing.T) (n int) {
			assert.NoError(t, conn.QueryRow(context.Background(), query).Scan(&n))
			return n
		}
	}
	exists := count("SELECT count(*) FROM pg_class WHERE relname = 'locker_locks'")
	held := count("SELECT count(*) FROM locker_locks WHERE token <> '' AND expires > now() OR cardinality(queue_token) > 0")
	return &server{addr: s.Addr,
		connections: count("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"),
		memory:      count("SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class WHERE relname = 'locker_locks'"),
		left: func(t *testing.T) int {
			if exists(t) == 0 {
				return 0
			}
			return held(t)
		}}
}

func newEtcd(t *testing.T) *server {
	s := testserver.Etcd(t)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + s.Addr}, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	_, err = client.Get(context.Background(), "a") // or it connects after connections were first counted
	require.NoError(t, err)
	return &server{addr: s.Addr,
		connections: func(t *testing.T) int { return sockets(t, s.PID()) },
		memory:      func(t *testing.T) int { return resident(t, s.PID()) },
		left: func(t *testing.T) int {
			leases, err := client.Leases(context.Background())
			if !assert.NoError(t, err) {
				return 0
			}
			keys, err := client.Get(context.Background(), "", clientv3.WithPrefix(), clientv3.WithCountOnly())
			if !assert.NoError(t, err) {
				return 0
			}
			return len(leases.Leases) + int(keys.Count)
		}}
}

// number returns the one after a name.
func number(t *testing.T, text, name string) int {
	_, rest, ok := strings.Cut(text, name)
	assert.True(t, ok, name)
	n, err := strconv.Atoi(strings.TrimSpace(rest[:strings.IndexByte(rest, '\n')]))
	assert.NoError(t, err)
	return n
}

// sockets counts those of a process.
func sockets(t *testing.T, pid int) (n int) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	files, err := os.ReadDir(dir)
	assert.NoError(t, err)
	for _, file := range files {
		if to, err := os.Readlink(dir + "/" + file.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}

// resident returns the memory that a process uses.
func resident(t *testing.T, pid int) int {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	assert.NoError(t, err)
	text, _, _ := strings.Cut(string(status[strings.Index(string(status), "VmRSS:"):]), " kB")
	return 1000 * number(t, text+"\n", "VmRSS:")
}
