package sqltest

// What is peculiar to PostgreSQL, beside a package of its own.

import (
	"context"
	"testing"
	"time"

	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/sqllock"
	"github.com/stretchr/testify/require"
)

func TestPostgreSQLIsolation(t *testing.T) {
	t.Parallel()
	addr := testserver.Postgres(t).Addr
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			if level == "repeatable read" {
				testserver.Variant(t, "serializable is stricter")
			}
			var lockers []*sqllock.Locker
			for _, mode := range []string{"cache_statement", "simple_protocol"} {
				db := openPostgres(t, addr, "default_transaction_isolation", level, "default_query_exec_mode", mode)
				lockers = append(lockers, newLocker(t, db, sqllock.PostgreSQL))
			}
			admin := openPostgres(t, addr)
			storm(t, lockers, func(ctx context.Context) {
				_, _ = admin.ExecContext(ctx, `DELETE FROM locker_locks WHERE token = '' AND name IN (
					SELECT name FROM locker_locks ORDER BY expires LIMIT 2 FOR UPDATE SKIP LOCKED)`)
			})
		})
	}
}

func TestPostgreSQLStandby(t *testing.T) {
	t.Parallel()
	primary := testserver.Postgres(t)
	acquire(t, newLocker(t, openPostgres(t, primary.Addr), sqllock.PostgreSQL), "k", "t", time.Hour)
	l := sqllock.New(openPostgres(t, testserver.PostgresStandby(t, primary).Addr), sqllock.PostgreSQL)
	for name, err := range changes(t, l) {
		require.ErrorContains(t, err, "25006", name)
	}
	require.Eventually(t, func() bool {
		info, err := l.Inspect(t.Context(), "k")
		return err == nil && info.Token == "t"
	}, long, 10*time.Millisecond)
	require.NoError(t, l.EnsureSchema(t.Context()))
}
