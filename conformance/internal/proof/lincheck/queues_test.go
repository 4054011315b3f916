package lincheck

import (
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/etcd"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/postgres"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

func postgresPool(tb testing.TB, addr string) *pgxpool.Pool {
	tb.Helper()
	pool, err := pgxpool.New(tb.Context(), "postgres://"+testserver.PostgresUser+"@"+addr+
		"/postgres?sslmode=disable&connect_timeout=1&pool_max_conns=16")
	require.NoError(tb, err)
	tb.Cleanup(pool.Close)
	return pool
}

func postgresServer(tb testing.TB) string {
	tb.Helper()
	addr := testserver.Postgres(tb).Addr
	pool, err := pgxpool.New(tb.Context(), "postgres://"+testserver.PostgresUser+"@"+addr+"/postgres?sslmode=disable")
	require.NoError(tb, err)
	defer pool.Close()
	require.NoError(tb, postgres.EnsureSchema(tb.Context(), pool))
	return addr
}

func openPostgres(tb testing.TB, addr string) locker.Locker {
	tb.Helper()
	return postgres.New(postgresPool(tb, addr))
}

func openEtcd(tb testing.TB, addr string) locker.Locker {
	tb.Helper()
	again := backoff.DefaultConfig
	again.BaseDelay, again.MaxDelay = 20*time.Millisecond, 100*time.Millisecond
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{addr}, Logger: zap.NewNop(), DialOptions: []grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: again, MinConnectTimeout: time.Second}),
		},
	})
	require.NoError(tb, err)
	tb.Cleanup(func() { client.Close() })
	return etcd.New(client)
}
