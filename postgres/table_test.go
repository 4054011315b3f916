package postgres

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golockers/locker/internal/testserver"
)

func TestEnsureSchemaConcurrently(t *testing.T) {
	pool := newPool(t, testserver.Postgres(t).Addr)
	for _, table := range []string{"", "other"} {
		errs := make([]error, 20)
		var all sync.WaitGroup
		for i := range errs {
			all.Go(func() { errs[i] = EnsureSchema(t.Context(), pool, WithTable(table)) })
		}
		all.Wait()
		for _, err := range errs {
			assert.NoError(t, err)
		}
		acquire(t, New(pool, WithTable(table)), "k", "t", time.Minute) // the tables are independent
	}
}

// A user who may use the table, and may create none, can call EnsureSchema.
func TestEnsureSchemaWithoutRights(t *testing.T) {
	s := newServer(t)
	admin := newPool(t, s.Addr)
	_, err := admin.Exec(t.Context(), `CREATE USER app;
		GRANT SELECT, INSERT, UPDATE, DELETE ON locker_locks TO app;
		REVOKE CREATE ON SCHEMA public FROM PUBLIC`)
	require.NoError(t, err)
	app := newPool(t, s.Addr, "user", "app")
	require.NoError(t, EnsureSchema(t.Context(), app))
	l := New(app)
	acquire(t, l, "k", "t", time.Minute)
	_, ok, err := l.Fence(t.Context(), "k", "t")
	require.NoError(t, err)
	require.True(t, ok)
	release(t, l, "k", "t")
	_, err = l.sweep(t.Context(), 0)
	require.NoError(t, err)
	err = EnsureSchema(t.Context(), app, WithTable("mine"))
	require.ErrorContains(t, err, `create the table "mine": ERROR: permission denied`)
}

func TestTableNames(t *testing.T) {
	pool := newPool(t, testserver.Postgres(t).Addr)
	_, err := pool.Exec(t.Context(), `CREATE SCHEMA "My Schema"`)
	require.NoError(t, err)
	for _, name := range []string{
		"Locks", "locks", "select", "public.select", "My Schema.locks", `"`, `a"b`, `'; DROP TABLE locks; --`,
		"{table}", "{key}", "$1", "ключи", strings.Repeat("x", longestName),
	} {
		table := WithTable(name)
		require.NoError(t, EnsureSchema(t.Context(), pool, table), name)
		_, err := pool.Exec(t.Context(), Schema(table), pgx.QueryExecModeExec)
		require.NoError(t, err, "%q: the statement of a migration", name)
		l := New(pool, table)
		held, err := l.Inspect(t.Context(), "k")
		require.NoError(t, err, name)
		if name == "public.select" { // the default schema
			require.Equal(t, "t", held.Token)
			continue
		}
		require.Empty(t, held.Token, "%q is another's table", name)
		acquire(t, l, "k", "t", time.Minute)
	}
	for _, name := range []string{
		".", "a.", ".a", "a.b.c", "a\x00", strings.Repeat("x", longestName+1), "s." + strings.Repeat("x", longestName+1),
	} {
		require.ErrorContains(t, EnsureSchema(t.Context(), pool, WithTable(name)), "postgres: invalid table name", name)
		_, err := New(pool, WithTable(name)).Acquire(t.Context(), "k", "t", time.Minute)
		require.ErrorContains(t, err, "postgres: invalid table name", name)
		require.Empty(t, Schema(WithTable(name)))
	}
}

func TestMissingTable(t *testing.T) {
	pool := newPool(t, testserver.Postgres(t).Addr)
	for _, name := range []string{"", "nowhere.locks"} {
		for _, err := range failures(t, New(pool, WithTable(name))) {
			require.ErrorContains(t, err, "call postgres.EnsureSchema")
		}
	}
	_, err := pool.Exec(t.Context(), "CREATE TABLE foreign_table (id int)")
	require.NoError(t, err)
	for _, err := range failures(t, New(pool, WithTable("foreign_table"))) {
		require.ErrorContains(t, err, `the table "foreign_table" is not one that postgres.EnsureSchema has created`)
	}
}

func TestNilPool(t *testing.T) {
	for _, err := range failures(t, New(nil)) {
		require.ErrorIs(t, err, errNoPool)
	}
	require.ErrorIs(t, EnsureSchema(t.Context(), nil), errNoPool)
}
