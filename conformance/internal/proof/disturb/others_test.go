package disturb

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker/conformance/internal/proof/load"
	"github.com/golockers/locker/internal/testserver"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

var onMemcached = backend{
	start:    one(testserver.Memcached),
	adapters: map[string][]load.Open{"memcache": {load.Memcache}},
	base:     load.Memcache,
	eternal:  eternalOnMemcached,
	variant:  true,
	disturbances: map[string]disturbance{
		"SIGSTOP of memcached": {finds: []string{slowIsSuccess}, do: suspend},
		"flush_all": {loses: true, finds: []string{storedOnce}, do: func(e *env) {
			require.NoError(e, e.memcached().FlushAll())
		}},
		"restart": {loses: true, fails: true, finds: []string{storedOnce}, do: restart},
		"no connections": {args: []string{"-c", "64", "-t", "1"}, finds: []string{connectsEachTime}, do: func(e *env) {
			for range 100 { // more than it takes
				conn, err := net.Dial("tcp", e.server.Addr)
				require.NoError(e, err)
				defer conn.Close()
			}
			time.Sleep(300 * time.Millisecond)
		}},
		// Items are evicted for others of about their size.
		"eviction": {
			args: []string{"-m", "2", "-o", "no_modern"}, loses: true, finds: []string{storedOnce},
			do: func(e *env) {
				conn, err := net.Dial("tcp", e.server.Addr)
				require.NoError(e, err)
				defer conn.Close()
				requests := bufio.NewWriter(conn)
				for i := range 200_000 {
					size := i % 200
					fmt.Fprintf(requests, "set junk%d 0 0 %d noreply\r\n%s\r\n", i, size, strings.Repeat("x", size))
				}
				fmt.Fprint(requests, "version\r\n")
				require.NoError(e, requests.Flush())
				_, err = conn.Read(make([]byte, 100)) // when it has done all that
				require.NoError(e, err)
			},
		},
	},
}

// eternalOnMemcached looks at the items of a server.
func eternalOnMemcached(_ *testing.T, s *system) func(ctx context.Context) (int, error) {
	return func(ctx context.Context) (n int, err error) {
		items, err := testserver.MemcachedItems(ctx, s.addr)
		for _, item := range items {
			if strings.Contains(item, "window") && strings.Contains(item, " exp=-1 ") {
				n++
			}
		}
		return n, err
	}
}

func (e *env) memcached() *gomemcache.Client {
	client := gomemcache.New(e.server.Addr)
	client.Timeout = time.Minute
	e.Cleanup(func() { _ = client.Close() })
	return client
}

var onPostgres = backend{
	start:    one(testserver.Postgres),
	adapters: map[string][]load.Open{"postgres": {load.Postgres()}},
	base:     load.Postgres(),
	slow:     true,
	variant:  true,
	disturbances: map[string]disturbance{
		"pg_terminate_backend": {finds: []string{errorIsSuccess}, do: func(e *env) {
			for range 3 {
				e.sql(terminateAll)
				time.Sleep(20 * time.Millisecond)
			}
		}},
		"pg_cancel_backend": {finds: []string{errorIsSuccess}, do: func(e *env) {
			for range 20 {
				e.sql("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = 'postgres'")
			}
		}},
		"crash and recovery": {losesCounts: true, fails: true, finds: []string{errorIsSuccess}, do: restart},
		"TRUNCATE": {loses: true, finds: []string{storedOnce}, do: func(e *env) {
			e.sql("TRUNCATE locker_locks")
		}},
		"LOCK TABLE": {finds: []string{slowIsSuccess}, do: func(e *env) {
			e.sql("BEGIN; LOCK TABLE locker_locks; SELECT pg_sleep(0.3); COMMIT")
		}},
		"VACUUM FULL": {finds: []string{remembersRow}, do: func(e *env) {
			e.sql("VACUUM FULL locker_locks")
		}},
		"no new connections": {fails: true, finds: []string{errorIsSuccess}, do: func(e *env) {
			e.sql("ALTER DATABASE postgres ALLOW_CONNECTIONS false")
			e.sql(terminateAll)
			time.Sleep(300 * time.Millisecond)
			e.sql("ALTER DATABASE postgres ALLOW_CONNECTIONS true")
		}},
		"read only": {fails: true, finds: []string{errorIsSuccess}, do: func(e *env) {
			e.sql("ALTER SYSTEM SET default_transaction_read_only = on")
			e.sql("SELECT pg_reload_conf()")
			time.Sleep(300 * time.Millisecond)
			e.sql("SET default_transaction_read_only = off", "ALTER SYSTEM RESET default_transaction_read_only")
			e.sql("SELECT pg_reload_conf()")
		}},
	},
}

const terminateAll = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity " +
	"WHERE pid <> pg_backend_pid() AND datname = 'postgres'"

// sql runs statements on a connection of their own, to another database.
func (e *env) sql(statements ...string) {
	e.Helper()
	addr := e.server.Addr
	if e.behind != nil {
		addr = e.behind.Addr
	}
	conn, err := pgx.Connect(e.ctx, "postgres://postgres@"+addr+"/template1?sslmode=disable")
	require.NoError(e, err)
	defer conn.Close(e.ctx)
	for _, sql := range statements {
		if strings.Contains(sql, "locker_locks") {
			conn.Close(e.ctx)
			conn, err = pgx.Connect(e.ctx, "postgres://postgres@"+addr+"/postgres?sslmode=disable")
			require.NoError(e, err)
			defer conn.Close(e.ctx)
		}
		_, err = conn.Exec(e.ctx, sql, pgx.QueryExecModeSimpleProtocol)
		require.NoError(e, err)
	}
}

var onEtcd = backend{
	start:    one(testserver.Etcd),
	adapters: map[string][]load.Open{"etcd": {load.Etcd}},
	base:     load.Etcd,
	slow:     true,
	variant:  true,
	disturbances: map[string]disturbance{
		"SIGSTOP of etcd": {finds: []string{slowIsSuccess}, do: suspend},
		"restart of etcd": {fails: true, finds: []string{errorIsSuccess}, do: restart},
		"deletion of all keys": {loses: true, finds: []string{storedOnce}, do: func(e *env) {
			_, err := e.etcd().Delete(e.ctx, "", clientv3.WithPrefix())
			require.NoError(e, err)
		}},
		"revocation of all leases": {loses: true, finds: []string{storedOnce}, do: func(e *env) {
			client := e.etcd()
			leases, err := client.Leases(e.ctx)
			require.NoError(e, err)
			for _, lease := range leases.Leases {
				_, _ = client.Revoke(e.ctx, lease.ID)
			}
		}},
		"compaction": {finds: []string{readsOldRevision}, do: func(e *env) {
			client := e.etcd()
			for range 5 {
				now, err := client.Get(e.ctx, "x")
				require.NoError(e, err)
				_, err = client.Compact(e.ctx, now.Header.Revision)
				if err != nil { // nothing has changed since the last time
					require.ErrorContains(e, err, "compacted")
				}
				time.Sleep(20 * time.Millisecond)
			}
		}},
	},
}

func (e *env) etcd() *clientv3.Client {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + e.server.Addr}, Logger: zap.NewNop()})
	require.NoError(e, err)
	e.Cleanup(func() { _ = client.Close() })
	return client
}
