package disturb

import (
	"fmt"
	"net"
	"strings"
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
	start:    testserver.Memcached,
	adapters: map[string][]load.Open{"memcache": {load.Memcache}},
	disturbances: map[string]disturbance{
		"SIGSTOP of memcached": {do: suspend},
		"flush_all":            {loses: true, do: func(e *env) { require.NoError(e, e.memcached().FlushAll()) }},
		"restart":              {loses: true, do: restart},
		"no connections": {args: []string{"-c", "64", "-t", "1"}, do: func(e *env) {
			for range 100 { // more than it takes
				conn, err := net.Dial("tcp", e.server.Addr)
				require.NoError(e, err)
				defer conn.Close()
			}
			time.Sleep(300 * time.Millisecond)
		}},
		"eviction": {args: []string{"-m", "2", "-I", "512k"}, loses: true, do: func(e *env) {
			client := e.memcached()
			for i := range 300 {
				_ = client.Set(&gomemcache.Item{Key: fmt.Sprint("junk", i), Value: []byte(strings.Repeat("x", 40_000))})
			}
		}},
	},
}

func (e *env) memcached() *gomemcache.Client {
	client := gomemcache.New(e.server.Addr)
	client.Timeout = time.Minute
	e.Cleanup(func() { _ = client.Close() })
	return client
}

var onPostgres = backend{
	start:    testserver.Postgres,
	adapters: map[string][]load.Open{"postgres": {load.Postgres()}},
	disturbances: map[string]disturbance{
		"pg_terminate_backend": {do: func(e *env) {
			for range 3 {
				e.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = 'postgres'")
				time.Sleep(20 * time.Millisecond)
			}
		}},
		"pg_cancel_backend": {do: func(e *env) {
			for range 20 {
				e.sql("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = 'postgres'")
			}
		}},
		"crash and recovery": {do: restart},
		"TRUNCATE":           {loses: true, do: func(e *env) { e.sql("TRUNCATE locker_locks") }},
		"LOCK TABLE": {do: func(e *env) {
			e.sql("BEGIN; LOCK TABLE locker_locks; SELECT pg_sleep(0.3); COMMIT")
		}},
		"VACUUM FULL": {do: func(e *env) { e.sql("VACUUM FULL locker_locks") }},
		"no new connections": {do: func(e *env) {
			e.sql("ALTER DATABASE postgres ALLOW_CONNECTIONS false")
			e.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = 'postgres'")
			time.Sleep(300 * time.Millisecond)
			e.sql("ALTER DATABASE postgres ALLOW_CONNECTIONS true")
		}},
		"read only": {do: func(e *env) {
			e.sql("ALTER SYSTEM SET default_transaction_read_only = on")
			e.sql("SELECT pg_reload_conf()")
			time.Sleep(300 * time.Millisecond)
			e.sql("SET default_transaction_read_only = off", "ALTER SYSTEM RESET default_transaction_read_only")
			e.sql("SELECT pg_reload_conf()")
		}},
	},
}

// sql runs statements on a connection of their own, to another database.
func (e *env) sql(statements ...string) {
	e.Helper()
	conn, err := pgx.Connect(e.ctx, "postgres://postgres@"+e.server.Addr+"/template1?sslmode=disable")
	require.NoError(e, err)
	defer conn.Close(e.ctx)
	for _, sql := range statements {
		if strings.Contains(sql, "locker_locks") {
			conn.Close(e.ctx)
			conn, err = pgx.Connect(e.ctx, "postgres://postgres@"+e.server.Addr+"/postgres?sslmode=disable")
			require.NoError(e, err)
			defer conn.Close(e.ctx)
		}
		_, err = conn.Exec(e.ctx, sql, pgx.QueryExecModeSimpleProtocol)
		require.NoError(e, err)
	}
}

var onEtcd = backend{
	start:    testserver.Etcd,
	adapters: map[string][]load.Open{"etcd": {load.Etcd}},
	disturbances: map[string]disturbance{
		"SIGSTOP of etcd": {do: suspend},
		"restart of etcd": {do: restart},
		"deletion of all keys": {loses: true, do: func(e *env) {
			_, err := e.etcd().Delete(e.ctx, "", clientv3.WithPrefix())
			require.NoError(e, err)
		}},
		"revocation of all leases": {loses: true, do: func(e *env) {
			client := e.etcd()
			leases, err := client.Leases(e.ctx)
			require.NoError(e, err)
			for _, lease := range leases.Leases {
				_, _ = client.Revoke(e.ctx, lease.ID)
			}
		}},
		"compaction": {do: func(e *env) {
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
