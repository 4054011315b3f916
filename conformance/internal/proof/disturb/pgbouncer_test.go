package disturb

import (
	"testing"
	"time"

	"github.com/golockers/locker/conformance/internal/proof/load"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/postgres"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// onPgBouncer is PostgreSQL behind a pooler in transaction mode.
var onPgBouncer = backend{
	start: func(t *testing.T, args []string) *system {
		behind := testserver.Postgres(t, args...)
		pooler := testserver.PgBouncer(t, behind)
		return &system{addr: pooler.Addr, server: pooler, behind: behind}
	},
	adapters: map[string][]load.Open{"postgres, PgBouncer": {load.Postgres(postgres.WithoutPreparing())}},
	base:     load.Postgres(postgres.WithoutPreparing()),
	slow:     true,
	variant:  true,
	disturbances: map[string]disturbance{
		"PgBouncer restarted":  {fails: true, finds: []string{errorIsSuccess}, do: restart},
		"SIGSTOP of PgBouncer": {slow: true, finds: []string{slowIsSuccess}, do: suspend},
		"PgBouncer PAUSE": {finds: []string{slowIsSuccess}, do: func(e *env) {
			e.console("PAUSE")
			time.Sleep(300 * time.Millisecond)
			e.console("RESUME")
		}},
		"PgBouncer KILL": {slow: true, fails: true, finds: []string{errorIsSuccess}, do: func(e *env) {
			e.console("KILL postgres")
			time.Sleep(300 * time.Millisecond)
			e.console("RESUME postgres")
		}},
		// All clients share one session of the server.
		"PgBouncer with one connection": {finds: []string{locksSession}, do: func(e *env) {
			e.console("SET default_pool_size = 1", "RECONNECT")
			time.Sleep(500 * time.Millisecond)
			e.console("SET default_pool_size = 100")
		}},
		"PgBouncer, pg_terminate_backend": {slow: true, finds: []string{errorIsSuccess}, do: func(e *env) {
			for range 3 {
				e.sql(terminateAll)
				time.Sleep(20 * time.Millisecond)
			}
		}},
		"PgBouncer, crash and recovery": {slow: true, losesCounts: true, fails: true, finds: []string{errorIsSuccess}, do: func(e *env) {
			e.behind.Restart()
		}},
	},
}

// console gives commands to PgBouncer.
func (e *env) console(commands ...string) {
	e.Helper()
	conn, err := pgx.Connect(e.ctx, "postgres://postgres@"+e.server.Addr+
		"/pgbouncer?sslmode=disable&default_query_exec_mode=simple_protocol")
	require.NoError(e, err)
	defer conn.Close(e.ctx)
	for _, command := range commands {
		_, err := conn.Exec(e.ctx, command)
		require.NoError(e, err, command)
	}
}
