package locks

import (
	"database/sql"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"
)

// open returns a connection of its own to the database in file, as another process would have.
func open(tb testing.TB, file string) *sql.DB {
	pragmas := url.Values{"_pragma": {"busy_timeout(20000)", "journal_mode(WAL)", "synchronous(NORMAL)"}}
	db, err := sql.Open("sqlite", "file:"+file+"?"+pragmas.Encode())
	require.NoError(tb, err)
	tb.Cleanup(func() { assert.NoError(tb, db.Close()) })
	db.SetMaxOpenConns(1)
	require.NoError(tb, Migrate(tb.Context(), db))
	return db
}

func TestConformance(t *testing.T) {
	file := filepath.Join(t.TempDir(), "locks.db")
	conformance.Run(t, conformance.Config{
		New: func(tb testing.TB, _ string) locker.Locker { return New(open(tb, file)) },
	})
}

// On a database that is gone every method returns an error, since the outcome is unknown.
func TestDatabaseIsGone(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "locks.db"))
	l, ctx := New(db), t.Context()
	require.NoError(t, db.Close())
	_, err := l.Acquire(ctx, "k", "t", time.Second)
	assert.ErrorContains(t, err, "sql: database is closed")
	_, err = l.Extend(ctx, "k", "t", time.Second)
	assert.ErrorContains(t, err, "sql: database is closed")
	_, err = l.Release(ctx, "k", "t")
	assert.ErrorContains(t, err, "sql: database is closed")
}

// What has expired does not stay in the table forever.
func TestSweep(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "locks.db"))
	l, ctx := New(db), t.Context()
	for _, key := range []string{"a", "b", "c"} {
		ok, err := l.Acquire(ctx, key, "t1", time.Millisecond)
		require.NoError(t, err)
		require.True(t, ok)
	}
	require.Eventually(t, func() bool {
		l.swept.Store(0) // a minute ago
		_, err := l.Acquire(ctx, "d", "t1", time.Minute)
		require.NoError(t, err)
		var rows int
		require.NoError(t, db.QueryRow("SELECT count(*) FROM locks").Scan(&rows))
		return rows == 1
	}, 20*time.Second, time.Millisecond)
}
