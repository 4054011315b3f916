//go:build linux

package failover

import (
	"context"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/faultproxy"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/postgres"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

var postgresScenarios = []scenario{
	{name: "postgres: standby promoted", start: promote(inTime), slow: true},
	{name: "postgres: standby promoted, 0.2 s behind", start: promote(behind), loses: true, slow: true},
	{name: "postgres: synchronous standby promoted", keeps: true, start: promote(synchronous,
		"-c", "synchronous_standby_names=*")},
	{name: "postgres, PgBouncer: pooler killed", keeps: true, start: killPooler, slow: true},
}

func openPool(tb testing.TB, hosts string) *pgxpool.Pool {
	tb.Helper()
	pool, err := pgxpool.New(tb.Context(), "postgres://"+testserver.PostgresUser+"@"+hosts+
		"/postgres?sslmode=disable&connect_timeout=1&pool_max_conns=16&target_session_attrs=read-write")
	require.NoError(tb, err)
	tb.Cleanup(pool.Close)
	return pool
}

// makeTable waits longer for a connection than the clients do.
func makeTable(t *testing.T, addr string) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), "postgres://"+testserver.PostgresUser+"@"+addr+"/postgres?sslmode=disable")
	require.NoError(t, err)
	defer pool.Close()
	require.NoError(t, postgres.EnsureSchema(t.Context(), pool))
}

// standby is how far a standby is behind when its primary is killed.
type standby int

const (
	inTime standby = iota
	behind
	synchronous // it is behind, but the primary does not answer before it is not
)

// promote kills a primary and promotes its standby.
func promote(how standby, args ...string) start {
	return func(t *testing.T) *system {
		primary := testserver.Postgres(t, args...)
		replication := faultproxy.New(t, primary.Addr)
		follower := testserver.PostgresStandby(t, &testserver.Server{Addr: replication.Addr})
		makeTable(t, primary.Addr)
		return &system{
			open: func(tb testing.TB) locker.Locker {
				return postgres.New(openPool(tb, primary.Addr+","+follower.Addr))
			},
			fail: func(l *load) {
				switch how {
				case behind:
					replication.Hang()
					l.behind()
				case synchronous:
					replication.Hang()
					time.Sleep(lag)
				}
				primary.Stop()
				replication.Cut()
				conn, err := pgx.Connect(t.Context(),
					"postgres://"+testserver.PostgresUser+"@"+follower.Addr+"/postgres?sslmode=disable")
				require.NoError(t, err)
				defer conn.Close(context.Background())
				_, err = conn.Exec(t.Context(), "SELECT pg_promote()")
				require.NoError(t, err)
			},
		}
	}
}

// killPooler kills the PgBouncer through which all clients reach the server.
func killPooler(t *testing.T) *system {
	server := testserver.Postgres(t)
	makeTable(t, server.Addr)
	pooler := testserver.PgBouncer(t, server)
	return &system{
		open: func(tb testing.TB) locker.Locker {
			return postgres.New(openPool(tb, pooler.Addr), postgres.WithoutPreparing())
		},
		fail: func(*load) {
			pooler.Stop()
			time.Sleep(keeperTTL)
			pooler.Restart()
		},
	}
}
