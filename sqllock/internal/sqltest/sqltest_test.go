package sqltest

// The databases that the tests use, and the suite on each of them.

import (
	"context"
	"database/sql"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/sqllock"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"
)

// long bounds everything that is waited for: only a failing test uses it up.
const long = 30 * time.Second

// open returns a pool of its own, as another process would have.
func open(tb testing.TB, driver, address string) *sql.DB {
	tb.Helper()
	db, err := sql.Open(driver, address)
	require.NoError(tb, err)
	tb.Cleanup(func() { assert.NoError(tb, db.Close()) })
	db.SetMaxIdleConns(64)
	return db
}

// openMySQL connects over network "tcp" or "unix", with more settings in pairs.
func openMySQL(tb testing.TB, network, addr string, settings ...string) *sql.DB {
	tb.Helper()
	q := make(url.Values)
	for i := 0; i < len(settings); i += 2 {
		q.Set(settings[i], settings[i+1])
	}
	return open(tb, "mysql", testserver.MariaDBUser+"@"+network+"("+addr+")/"+testserver.MariaDBDatabase+"?"+q.Encode())
}

func openPostgres(tb testing.TB, addr string, settings ...string) *sql.DB {
	tb.Helper()
	q := url.Values{"sslmode": {"disable"}, "connect_timeout": {"5"}}
	for i := 0; i < len(settings); i += 2 {
		q.Set(settings[i], settings[i+1])
	}
	u := url.URL{
		Scheme: "postgres", User: url.User(testserver.PostgresUser), Host: addr, Path: "postgres", RawQuery: q.Encode(),
	}
	return open(tb, "pgx", u.String())
}

// openSQLite opens a file with settings such as "journal_mode(WAL)".
func openSQLite(tb testing.TB, file string, settings ...string) *sql.DB {
	tb.Helper()
	return open(tb, "sqlite", "file:"+file+"?"+url.Values{"_pragma": settings}.Encode())
}

// newLocker returns a Locker whose table exists.
func newLocker(tb testing.TB, db *sql.DB, d sqllock.Dialect, opts ...sqllock.Option) *sqllock.Locker {
	tb.Helper()
	l := sqllock.New(db, d, opts...)
	require.NoError(tb, l.EnsureSchema(tb.Context()))
	return l
}

// acquire takes a lock that must be free.
func acquire(tb testing.TB, l locker.Locker, key, token string, ttl time.Duration) {
	tb.Helper()
	ok, err := l.Acquire(tb.Context(), key, token, ttl)
	require.NoError(tb, err)
	require.True(tb, ok, "%q is held", key)
}

func release(tb testing.TB, l locker.Locker, key, token string) {
	tb.Helper()
	ok, err := l.Release(tb.Context(), key, token)
	require.NoError(tb, err)
	require.True(tb, ok, "%q is not held", key)
}

// conform runs the suite with pools that open returns.
func conform(t *testing.T, addr string, d sqllock.Dialect, open func(tb testing.TB, addr string) *sql.DB) {
	admin := open(t, addr)
	newLocker(t, admin, d)
	conformance.Run(t, conformance.Config{
		Addr: addr,
		New: func(tb testing.TB, addr string) locker.Locker {
			return sqllock.New(open(tb, addr), d)
		},
		LoseData: func(ctx context.Context) error {
			_, err := admin.ExecContext(ctx, "DELETE FROM locker_locks")
			time.Sleep(2 * time.Millisecond) // a loss takes longer than a step of SQLite's clock
			return err
		},
	})
}

func TestMySQL(t *testing.T) {
	conform(t, testserver.MariaDB(t).Addr, sqllock.MySQL, func(tb testing.TB, addr string) *sql.DB {
		return openMySQL(tb, "tcp", addr, "interpolateParams", "true")
	})
}

func TestSQLite(t *testing.T) {
	file := filepath.Join(t.TempDir(), "locks.db")
	conform(t, "", sqllock.SQLite, func(tb testing.TB, _ string) *sql.DB {
		return openSQLite(tb, file, wal...)
	})
}

func TestPostgreSQL(t *testing.T) {
	conform(t, testserver.Postgres(t).Addr, sqllock.PostgreSQL, func(tb testing.TB, addr string) *sql.DB {
		return openPostgres(tb, addr)
	})
}

// wal are the settings of a SQLite database that the documentation of package sqllock asks for.
var wal = []string{"busy_timeout(5000)", "journal_mode(WAL)", "synchronous(NORMAL)"}

func TestSemaphore(t *testing.T) {
	testserver.Variant(t, "its Locker is tested, and semaphores are on other backends")
	t.Parallel()
	s := testserver.MariaDB(t)
	newLocker(t, openMySQL(t, "tcp", s.Addr), sqllock.MySQL)
	conformance.RunSemaphore(t, conformance.SemaphoreConfig{
		Addr: s.Addr,
		New: func(tb testing.TB, addr string) locker.Locker {
			return sqllock.New(openMySQL(tb, "tcp", addr, "interpolateParams", "true"), sqllock.MySQL)
		},
	})
}
