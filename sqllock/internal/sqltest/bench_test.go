package sqltest

// What a lock costs, beside those of Redis and of package postgres.

import (
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/postgres"
	"github.com/golockers/locker/redisv9"
	"github.com/golockers/locker/sqllock"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The servers of databases do not wait for their disks here, unlike SQLite.
func BenchmarkLocker(b *testing.B) {
	over := func(d sqllock.Dialect, open func(tb testing.TB, addr string) *sql.DB) func(testing.TB, string) locker.Locker {
		return func(tb testing.TB, addr string) locker.Locker { return newLocker(tb, open(tb, addr), d) }
	}
	b.Run("redisv9", func(b *testing.B) {
		conformance.Benchmark(b, conformance.Config{
			Addr: testserver.Redis(b).Addr,
			New: func(tb testing.TB, addr string) locker.Locker {
				client := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, PoolSize: 64})
				tb.Cleanup(func() { assert.NoError(tb, client.Close()) })
				return redisv9.New(client)
			},
		})
	})
	b.Run("postgres", func(b *testing.B) {
		conformance.Benchmark(b, conformance.Config{
			Addr: testserver.Postgres(b).Addr,
			New: func(tb testing.TB, addr string) locker.Locker {
				url := "postgres://" + testserver.PostgresUser + "@" + addr + "/postgres?sslmode=disable&pool_max_conns=64"
				pool, err := pgxpool.New(tb.Context(), url)
				require.NoError(tb, err)
				tb.Cleanup(pool.Close)
				require.NoError(tb, postgres.EnsureSchema(tb.Context(), pool))
				return postgres.New(pool)
			},
		})
	})
	b.Run("PostgreSQL", func(b *testing.B) {
		conformance.Benchmark(b, conformance.Config{
			Addr: testserver.Postgres(b).Addr,
			New:  over(sqllock.PostgreSQL, func(tb testing.TB, addr string) *sql.DB { return openPostgres(tb, addr) }),
		})
	})
	b.Run("MySQL", func(b *testing.B) {
		conformance.Benchmark(b, conformance.Config{
			Addr: testserver.MariaDB(b).Addr,
			New: over(sqllock.MySQL, func(tb testing.TB, addr string) *sql.DB {
				return openMySQL(tb, "tcp", addr, "interpolateParams", "true")
			}),
		})
	})
	b.Run("SQLite", func(b *testing.B) {
		file := filepath.Join(b.TempDir(), "locks.db")
		conformance.Benchmark(b, conformance.Config{
			New: over(sqllock.SQLite, func(tb testing.TB, _ string) *sql.DB { return openSQLite(tb, file, wal...) }),
		})
	})
}
