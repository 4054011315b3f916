package postgres

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// These tests are about sessions with other settings, and about what happens to the table.

// isPushed checks that waiters and watchers of a Locker hear of a release.
func isPushed(t *testing.T, l, other *Locker, key string) {
	t.Helper()
	acquire(t, other, key, "a", time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	woken, err := l.Watch(ctx, key)
	require.NoError(t, err)
	done := waits(ctx, t, l, key, "b", time.Hour)
	require.NotZero(t, l.listens())
	release(t, other, key, "a")
	served(t, done)
	select {
	case <-woken:
	case <-time.After(long):
		t.Fatal("the watcher was not woken")
	}
	release(t, l, key, "b")
}

// A session that has changed its role does not see when it began. Short-lived users have such a
// default.
func TestSetRole(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	_, err := newPool(t, s.Addr).Exec(t.Context(), `CREATE ROLE owner; GRANT SELECT, INSERT, UPDATE, DELETE ON locker_locks TO owner;
		CREATE USER short IN ROLE owner; ALTER ROLE short SET role = 'owner'`)
	require.NoError(t, err)
	a, b := New(newPool(t, s.Addr, "user", "short")), New(newPool(t, s.Addr, "user", "short"))
	isPushed(t, b, a, "k")
	isPushed(t, a, New(newPool(t, s.Addr)), "k")
}

// The texts of times and of bytea depend on settings.
func TestSettings(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	other := New(newPool(t, s.Addr))
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		l := New(newPool(t, s.Addr, "datestyle", "SQL, DMY", "intervalstyle", "sql_standard", "bytea_output", "escape",
			"timezone", "Asia/Kolkata", "default_query_exec_mode", mode))
		isPushed(t, l, other, mode)
		key := "\x00\\\xff" + mode
		acquire(t, l, key, "\xfet", time.Hour)
		info, err := l.Inspect(t.Context(), key)
		require.NoError(t, err, mode)
		assert.Equal(t, "\xfet", info.Token, mode)
		n := 0
		for info, err := range l.List(t.Context(), key) {
			require.NoError(t, err, mode)
			assert.Equal(t, key, info.Key, mode)
			n++
		}
		assert.Equal(t, 1, n, mode)
		broken, err := locker.Break(t.Context(), l, key)
		require.NoError(t, err, mode)
		assert.Equal(t, "\xfet", broken.Token, mode)
	}
}

// An error of the server to an attempt to connect, such as too many connections, is no answer to the
// waiter's statement.
func TestWaitOverRefusedConnections(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	a := New(newPool(t, s.Addr))
	admin := func(sql string) {
		_, err := a.pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	admin("CREATE USER app; GRANT SELECT, INSERT, UPDATE, DELETE ON locker_locks TO app")
	b := New(newPool(t, s.Addr, "user", "app"))
	acquire(t, a, "k", "a", time.Hour)
	done := waits(t.Context(), t, b, "k", "b", time.Hour)
	admin("ALTER ROLE app CONNECTION LIMIT 0")
	admin("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")
	require.Eventually(t, func() bool {
		_, err := b.Inspect(t.Context(), "k")
		return codeOf(err) == "53300"
	}, long, 10*time.Millisecond)
	time.Sleep(time.Second) // it tries again for five times as long
	require.Empty(t, done)
	admin("ALTER ROLE app CONNECTION LIMIT -1")
	require.Eventually(t, func() bool { return b.listens() != 0 }, long, time.Millisecond)
	release(t, a, "k", "a")
	served(t, done)
}

// The table is dropped and made again while processes wait. Messages about the new one arrive.
func TestTableIsMadeAgain(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	a, b := New(newPool(t, s.Addr)), New(newPool(t, s.Addr))
	acquire(t, a, "other", "a", time.Hour)
	stays := waits(t.Context(), t, b, "other", "b", time.Hour) // so the connection that listens is kept
	listens := b.listens()
	_, err := a.pool.Exec(t.Context(), "DROP TABLE locker_locks; "+Schema(), pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	acquire(t, a, "other", "a", time.Hour) // or b's waiter has it
	for range 3 {
		acquire(t, a, "k", "a", time.Hour)
		done := waits(t.Context(), t, b, "k", "b", time.Hour)
		start := time.Now()
		release(t, a, "k", "a")
		served(t, done)
		require.Less(t, time.Since(start), lookAgain/2, "it was not told")
		release(t, b, "k", "b")
	}
	require.Equal(t, listens, b.listens())
	release(t, a, "other", "a")
	served(t, stays)
}

// A pooler in statement mode allows no transactions.
func TestEnsureSchemaInStatementMode(t *testing.T) {
	t.Parallel()
	bouncer := testserver.PgBouncer(t, testserver.Postgres(t))
	admin, err := pgx.Connect(t.Context(), fmt.Sprintf("postgres://%s@%s/pgbouncer?default_query_exec_mode=simple_protocol",
		testserver.PostgresUser, bouncer.Addr))
	require.NoError(t, err)
	_, err = admin.Exec(t.Context(), "SET pool_mode = 'statement'")
	require.NoError(t, errors.Join(err, admin.Close(t.Context())))
	pool := newPool(t, bouncer.Addr)
	_, err = pool.Exec(t.Context(), "BEGIN", pgx.QueryExecModeSimpleProtocol)
	require.Error(t, err, "it is not in statement mode")
	for range 2 {
		require.NoError(t, EnsureSchema(t.Context(), pool))
	}
	l := New(pool, WithoutPreparing())
	acquire(t, l, "k", "t", time.Hour)
	release(t, l, "k", "t")
}

// Processes that live for less than the time between two sweeps sweep as well: jobs, functions.
func TestShortProcessesSweep(t *testing.T) {
	t.Parallel()
	pool := newPool(t, newServer(t).Addr)
	_, err := pool.Exec(t.Context(), `INSERT INTO locker_locks (key, token, expires)
		SELECT int4send(n), 't', now() - interval '1 day' FROM generate_series(1, 2000) n`)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		l := New(pool)
		acquire(t, l, "k", "t", time.Hour)
		release(t, l, "k", "t")
		var n int
		require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM locker_locks").Scan(&n))
		return n == 1
	}, long, time.Millisecond)
}
