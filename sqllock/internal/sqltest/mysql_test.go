package sqltest

// What is peculiar to MySQL and MariaDB.

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/sqllock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMySQLWithDefaults(t *testing.T) {
	testserver.Variant(t, "TestMySQL runs the suite with interpolateParams")
	conform(t, testserver.MariaDB(t).Addr, sqllock.MySQL, func(tb testing.TB, addr string) *sql.DB {
		return openMySQL(tb, "tcp", addr)
	})
}

func TestMySQLOnSocket(t *testing.T) {
	testserver.Variant(t, "TestMySQL runs the suite over TCP, and TestEverywhere uses the socket")
	socket := testserver.MariaDB(t).MariaDBSocket()
	conform(t, "", sqllock.MySQL, func(tb testing.TB, _ string) *sql.DB { return openMySQL(tb, "unix", socket) })
}

func TestMySQLSerializable(t *testing.T) {
	testserver.Variant(t, "TestMySQLIsolation has storms at each level")
	s := testserver.MariaDB(t, "--transaction-isolation=SERIALIZABLE", "--innodb-snapshot-isolation=ON")
	conform(t, s.Addr, sqllock.MySQL, func(tb testing.TB, addr string) *sql.DB {
		return openMySQL(tb, "tcp", addr, "interpolateParams", "true")
	})
}

// Many take few locks, while others delete free rows and so force deadlocks.
func TestMySQLIsolation(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	for _, level := range []string{"READ-UNCOMMITTED", "READ-COMMITTED", "REPEATABLE-READ", "SERIALIZABLE"} {
		for _, snapshot := range []string{"OFF", "ON"} {
			t.Run(level+" "+snapshot, func(t *testing.T) {
				if level+snapshot != "REPEATABLE-READOFF" && level+snapshot != "SERIALIZABLEON" {
					testserver.Variant(t, "the default and the strictest always run")
				}
				var lockers []*sqllock.Locker
				for _, interpolate := range []string{"true", "false"} {
					db := openMySQL(t, "tcp", s.Addr, "tx_isolation", "'"+level+"'", "innodb_snapshot_isolation", snapshot,
						"interpolateParams", interpolate)
					lockers = append(lockers, newLocker(t, db, sqllock.MySQL))
				}
				admin := openMySQL(t, "tcp", s.Addr)
				storm(t, lockers, func(ctx context.Context) {
					_, _ = admin.ExecContext(ctx, "DELETE FROM locker_locks WHERE expires < "+
						"TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) ORDER BY expires LIMIT 100")
				})
			})
		}
	}
}

// Settings of the session change no answer.
func TestMySQLSettings(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	for _, settings := range [][]string{
		{"clientFoundRows", "true"},
		{"clientFoundRows", "true", "interpolateParams", "true", "sql_mode", "''"},
		{"sql_mode", "'ANSI,TRADITIONAL,NO_BACKSLASH_ESCAPES'", "interpolateParams", "true"},
		{"time_zone", "'-11:30'"}, {"parseTime", "true", "loc", "Local"}, {"collation", "latin1_german1_ci"},
		{"collation", "utf8mb4_general_ci", "interpolateParams", "true"}, {"autocommit", "1", "binlog_format", "STATEMENT"},
	} {
		t.Run(strings.Join(settings, " "), func(t *testing.T) {
			l := newLocker(t, openMySQL(t, "tcp", s.Addr, settings...), sqllock.MySQL)
			other := sqllock.New(openMySQL(t, "tcp", s.Addr), sqllock.MySQL)
			for _, name := range []string{"\x00", "\xff\xfe", "ключ", `\x41`, "a", "A", "a ", "a\x00", "ä", "'", `\`, `"`} {
				acquire(t, l, name, name, time.Hour)
				for range 2 { // the second time nothing changes but perhaps the time
					acquire(t, l, name, name, time.Hour)
				}
				ok, err := l.Acquire(t.Context(), name, "t", time.Hour)
				require.NoError(t, err)
				require.False(t, ok)
				ok, err = l.Extend(t.Context(), name, "t", time.Hour)
				require.NoError(t, err)
				require.False(t, ok)
				info, err := other.Inspect(t.Context(), name)
				require.NoError(t, err)
				require.Equal(t, name, info.Token)
				require.InDelta(t, time.Hour, info.TTL, float64(time.Minute))
			}
			for info, err := range l.List(t.Context(), "") {
				require.NoError(t, err)
				release(t, l, info.Key, info.Token)
			}
		})
	}
}

func TestMySQLWithoutAutocommit(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	newLocker(t, openMySQL(t, "tcp", s.Addr), sqllock.MySQL)
	l := sqllock.New(openMySQL(t, "tcp", s.Addr, "autocommit", "0"), sqllock.MySQL)
	for name, err := range failures(t, l) {
		require.ErrorContains(t, err, "sqllock: autocommit is off", name)
	}
}

// A statement that waits for a row that a transaction has locked fails in the end.
func TestMySQLLockWaitTimeout(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t, "--innodb-lock-wait-timeout=1")
	db := openMySQL(t, "tcp", s.Addr)
	l := newLocker(t, db, sqllock.MySQL)
	acquire(t, l, "k", "t", time.Hour)
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), "SELECT * FROM locker_locks FOR UPDATE")
	require.NoError(t, err)
	for name, err := range changes(t, l) {
		var refused *mysql.MySQLError
		require.ErrorAs(t, err, &refused, name)
		require.EqualValues(t, 1205, refused.Number, name)
	}

	// A caller leaves when its deadline passes, and a Release of the token waits for its call.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = l.Extend(ctx, "k", "t", time.Minute)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, tx.Rollback())
	release(t, l, "k", "t")
}

// The server does not answer, and the caller has no deadline.
func TestMySQLHangs(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	l := newLocker(t, openMySQL(t, "tcp", s.Addr), sqllock.MySQL)
	acquire(t, l, "k", "t", time.Hour)
	s.Pause()
	_, err := l.Release(t.Context(), "k", "t")
	require.ErrorContains(t, err, "no answer within 5s")
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	s.Continue()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		_, err := l.Release(t.Context(), "k", "t")
		assert.NoError(c, err)
		info, err := l.Inspect(t.Context(), "k")
		assert.NoError(c, err)
		assert.Empty(c, info.Token)
	}, long, 10*time.Millisecond)
}

func TestMySQLReadOnly(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	root := openMySQL(t, "tcp", s.Addr)
	acquire(t, newLocker(t, root, sqllock.MySQL), "k", "t", time.Hour)
	for _, statement := range []string{
		"CREATE USER reader@localhost", "GRANT SELECT ON app.* TO reader@localhost",
		"CREATE USER writer@localhost", "GRANT SELECT, INSERT, UPDATE, DELETE ON app.locker_locks TO writer@localhost",
	} {
		_, err := root.ExecContext(t.Context(), statement)
		require.NoError(t, err, statement)
	}
	as := func(user string) *sqllock.Locker {
		return sqllock.New(open(t, "mysql", user+"@unix("+s.MariaDBSocket()+")/"+testserver.MariaDBDatabase), sqllock.MySQL)
	}
	writer := as("writer")
	require.NoError(t, writer.EnsureSchema(t.Context()), "no right to create a table that exists")
	acquire(t, writer, "w", "t", time.Hour)
	_, ok, err := writer.Fence(t.Context(), "w", "t")
	require.NoError(t, err)
	require.True(t, ok)
	release(t, writer, "w", "t")
	reader := as("reader")
	require.NoError(t, reader.EnsureSchema(t.Context()))
	_, err = root.ExecContext(t.Context(), "SET GLOBAL read_only = ON")
	require.NoError(t, err)
	for _, l := range []*sqllock.Locker{reader, writer} {
		for name, err := range changes(t, l) {
			var refused *mysql.MySQLError
			require.ErrorAs(t, err, &refused, name)
		}
		info, err := l.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, "t", info.Token)
	}
}

// Locks end by the server's clock, early if it is set forward, and late if it is set back. MariaDB
// has a clock for each connection that never goes back by itself.
func TestMySQLClock(t *testing.T) {
	t.Parallel()
	clock := testserver.NewClock(t)
	s := clock.MariaDB()
	l := newLocker(t, openMySQL(t, "tcp", s.Addr), sqllock.MySQL)
	other := sqllock.New(openMySQL(t, "tcp", s.Addr), sqllock.MySQL)
	remaining := func(key string, want time.Duration) {
		t.Helper()
		for _, l := range []*sqllock.Locker{l, other} {
			info, err := l.Inspect(t.Context(), key)
			require.NoError(t, err)
			require.InDelta(t, want, info.TTL, float64(time.Minute))
		}
	}
	acquire(t, l, "a", "t", time.Hour)
	remaining("a", time.Hour)
	clock.Set(30 * time.Minute)
	remaining("a", 30*time.Minute)
	clock.Set(2 * time.Hour)
	remaining("a", 0)
	acquire(t, l, "a", "u", time.Hour)
	first, ok, err := l.Fence(t.Context(), "a", "u")
	require.NoError(t, err)
	require.True(t, ok)
	clock.Set(0)
	remaining("a", 3*time.Hour)
	acquire(t, l, "b", "t", time.Hour)
	remaining("b", time.Hour)
	second, ok, err := l.Fence(t.Context(), "a", "u")
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, first+1, second)
}
