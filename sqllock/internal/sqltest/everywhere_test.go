package sqltest

// What holds on each database.

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/sqllock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// database is one that a test started.
type database struct {
	dialect sqllock.Dialect
	open    func(tb testing.TB) *sql.DB
	now     string // its clock in microseconds
	schema  string // that a table's name may begin with
	explain string // begins the statement that tells a plan
	scan    string // what the plan of a table scan contains
}

func everywhere(t *testing.T, test func(t *testing.T, db database)) {
	t.Helper()
	t.Run("MySQL", func(t *testing.T) {
		t.Parallel()
		s := testserver.MariaDB(t)
		test(t, database{
			dialect: sqllock.MySQL,
			open:    func(tb testing.TB) *sql.DB { return openMySQL(tb, "unix", s.MariaDBSocket()) },
			now:     "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))", schema: testserver.MariaDBDatabase,
			explain: "EXPLAIN FORMAT=JSON ", scan: `"access_type": "ALL"`,
		})
	})
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		file := filepath.Join(t.TempDir(), "locks.db")
		test(t, database{
			dialect: sqllock.SQLite,
			open:    func(tb testing.TB) *sql.DB { return openSQLite(tb, file, wal...) },
			now:     "CAST(unixepoch('subsec') * 1000000 AS INTEGER)", schema: "main",
			explain: "EXPLAIN QUERY PLAN ", scan: "SCAN",
		})
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		addr := testserver.Postgres(t).Addr
		test(t, database{
			dialect: sqllock.PostgreSQL, open: func(tb testing.TB) *sql.DB { return openPostgres(tb, addr) },
			now: "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint", schema: "public",
			explain: "EXPLAIN ", scan: "Seq Scan",
		})
	})
}

func TestEverywhere(t *testing.T) {
	everywhere(t, func(t *testing.T, db database) {
		pool := db.open(t)
		l := newLocker(t, pool, db.dialect)
		t.Run("EnsureSchema", func(t *testing.T) { testEnsureSchema(t, db) })
		t.Run("table names", func(t *testing.T) { testTableNames(t, db, pool) })
		t.Run("missing table", func(t *testing.T) { testMissingTable(t, db, pool) })
		t.Run("inspect", func(t *testing.T) { testInspect(t, l) })
		t.Run("list", func(t *testing.T) { testList(t, newLocker(t, pool, db.dialect, sqllock.WithTable("listed"))) })
		t.Run("longest ttl", func(t *testing.T) { testLongestTTL(t, l) })
		t.Run("clock set back", func(t *testing.T) { testClockSetBack(t, db, pool, l) })
		t.Run("fence", func(t *testing.T) { testFence(t, db, pool, l) })
		t.Run("sweep", func(t *testing.T) { testSweep(t, db, pool, l) })
		t.Run("gone", func(t *testing.T) { testGone(t, db) })
	})
}

// changes calls each operation that changes a lock, none of which may succeed.
func changes(t *testing.T, l *sqllock.Locker) map[string]error {
	t.Helper()
	errs := make(map[string]error)
	var ok bool
	ok, errs["Acquire"] = l.Acquire(t.Context(), "k", "t", time.Minute)
	assert.False(t, ok, "Acquire")
	ok, errs["Extend"] = l.Extend(t.Context(), "k", "t", time.Minute)
	assert.False(t, ok, "Extend")
	ok, errs["Release"] = l.Release(t.Context(), "k", "t")
	assert.False(t, ok, "Release")
	_, ok, errs["Fence"] = l.Fence(t.Context(), "k", "t")
	assert.False(t, ok, "Fence")
	return errs
}

// failures calls each operation.
func failures(t *testing.T, l *sqllock.Locker) map[string]error {
	t.Helper()
	errs := changes(t, l)
	_, errs["Inspect"] = l.Inspect(t.Context(), "k")
	for _, err := range l.List(t.Context(), "k") {
		errs["List"] = err
	}
	return errs
}

func testEnsureSchema(t *testing.T, db database) {
	for _, table := range []string{"", "other"} {
		errs := make([]error, 20)
		var all sync.WaitGroup
		for i := range errs {
			l := sqllock.New(db.open(t), db.dialect, sqllock.WithTable(table))
			all.Go(func() { errs[i] = l.EnsureSchema(t.Context()) })
		}
		all.Wait()
		for _, err := range errs {
			assert.NoError(t, err)
		}
	}
}

func testTableNames(t *testing.T, db database, pool *sql.DB) {
	for _, name := range []string{
		"Locks", "select", db.schema + ".select", `"`, "a`b", `a"b`, `'; DROP TABLE locks; --`, "{table}", "{now}", ":key",
		"$1", "?", "ключи", strings.Repeat("x", 63),
	} {
		table := sqllock.WithTable(name)
		l := newLocker(t, pool, db.dialect, table)
		_, err := pool.ExecContext(t.Context(), sqllock.Schema(db.dialect, table))
		require.NoError(t, err, "%q: the statement of a migration", name)
		held, err := l.Inspect(t.Context(), "k")
		require.NoError(t, err, name)
		if name == db.schema+".select" {
			require.Equal(t, "t", held.Token)
			continue
		}
		require.Empty(t, held.Token, "%q is another's table", name)
		acquire(t, l, "k", "t", time.Minute)
		_, ok, err := l.Fence(t.Context(), "k", "t")
		require.NoError(t, err)
		require.True(t, ok)
	}
}

func testMissingTable(t *testing.T, db database, pool *sql.DB) {
	for name, err := range failures(t, sqllock.New(pool, db.dialect, sqllock.WithTable("nowhere"))) {
		require.ErrorContains(t, err, "call EnsureSchema", name)
	}
	_, err := pool.ExecContext(t.Context(), "CREATE TABLE foreigner (id int)")
	require.NoError(t, err)
	l := sqllock.New(pool, db.dialect, sqllock.WithTable("foreigner"))
	for name, err := range failures(t, l) {
		require.Error(t, err, name)
	}
	require.Error(t, l.EnsureSchema(t.Context()))
}

func testInspect(t *testing.T, l *sqllock.Locker) {
	free := locker.Info{Key: "k", Waiters: -1}
	info, err := l.Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, free, info)
	acquire(t, l, "k", "t", time.Hour)
	info, err = l.Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.InDelta(t, time.Hour, info.TTL, float64(time.Minute))
	require.Equal(t, locker.Info{Key: "k", Token: "t", TTL: info.TTL, Waiters: -1}, info)
	broken, err := locker.Break(t.Context(), l, "k")
	require.NoError(t, err)
	require.Equal(t, "t", broken.Token)
	info, err = l.Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, free, info)
}

func testList(t *testing.T, l *sqllock.Locker) {
	keys := []string{"a", "A", "a%", "a_", "a/1", "a/2", "a\x00", "a\xff", "a\xff\xff", "b", "\xff", "\xff\xff", "\x00"}
	for _, key := range keys {
		acquire(t, l, key, "t", time.Hour)
	}
	acquire(t, l, "a/free", "t", time.Hour)
	release(t, l, "a/free", "t")
	acquire(t, l, "a/expired", "t", time.Millisecond)
	list := func(prefix string) (found []string) {
		for info, err := range l.List(t.Context(), prefix) {
			require.NoError(t, err)
			require.Equal(t, "t", info.Token)
			found = append(found, info.Key)
		}
		slices.Sort(found)
		return found
	}
	require.Eventually(t, func() bool { return len(list("")) == len(keys) }, long, time.Millisecond)
	for prefix, want := range map[string][]string{
		"": keys, "a": {"a", "a\x00", "a%", "a_", "a/1", "a/2", "a\xff", "a\xff\xff"}, "a/": {"a/1", "a/2"}, "a%": {"a%"},
		"a_": {"a_"}, "a\xff": {"a\xff", "a\xff\xff"}, "\xff": {"\xff", "\xff\xff"}, "c": nil,
	} {
		slices.Sort(want)
		require.Equal(t, want, list(prefix), fmt.Sprintf("%q", prefix))
	}
	for range l.List(t.Context(), "a") {
		break
	}
}

func testLongestTTL(t *testing.T, l *sqllock.Locker) {
	acquire(t, l, "long", "t", math.MaxInt64)
	info, err := l.Inspect(t.Context(), "long")
	require.NoError(t, err)
	require.InDelta(t, math.MaxInt64, int64(info.TTL), float64(time.Minute))
}

// A released lock is free, even if its release is in the future.
func testClockSetBack(t *testing.T, db database, pool *sql.DB, l *sqllock.Locker) {
	acquire(t, l, "back", "t", time.Hour)
	release(t, l, "back", "t")
	_, err := pool.ExecContext(t.Context(), "UPDATE locker_locks SET expires = expires + 3600000000 WHERE token = "+empty(db))
	require.NoError(t, err)
	info, err := l.Inspect(t.Context(), "back")
	require.NoError(t, err)
	require.Empty(t, info.Token)
	acquire(t, l, "back", "u", time.Hour)
}

func empty(db database) string {
	if db.dialect.Name == "SQLite" {
		return "x''"
	}
	return "''"
}

func testFence(t *testing.T, db database, pool *sql.DB, l *sqllock.Locker) {
	last := uint64(0)
	fence := func() {
		t.Helper()
		acquire(t, l, "f", "t", time.Hour)
		n, ok, err := l.Fence(t.Context(), "f", "t")
		require.NoError(t, err)
		require.True(t, ok)
		require.Greater(t, n, last)
		last = n
		release(t, l, "f", "t")
	}
	begun := time.Now().UnixMicro()
	for range 100 { // some in one unit of the clock
		fence()
	}
	require.InDelta(t, begun, last, 60e6)
	for _, loss := range []string{"DELETE FROM locker_locks", "DROP TABLE locker_locks"} {
		time.Sleep(2 * time.Millisecond) // SQLite's clock counts milliseconds
		_, err := pool.ExecContext(t.Context(), loss)
		require.NoError(t, err)
		require.NoError(t, l.EnsureSchema(t.Context()))
		fence()
	}
	// The clock was ahead when the last number was minted: the row stays.
	_, err := pool.ExecContext(t.Context(), "UPDATE locker_locks SET expires = 1, fence = fence + 3600000000")
	require.NoError(t, err)
	last += 3600000000
	sweep(t, l)
	fence()
}

// sweep takes enough locks that a sweep begins.
func sweep(t *testing.T, l *sqllock.Locker) {
	t.Helper()
	for range 64 {
		acquire(t, l, "sweeper", "t", time.Hour)
	}
}

// Rows that were not used for a while are deleted by those who use the table, and no others.
func testSweep(t *testing.T, db database, pool *sql.DB, l *sqllock.Locker) {
	rows := func() (n int) {
		require.NoError(t, pool.QueryRowContext(t.Context(), "SELECT count(*) FROM locker_locks").Scan(&n))
		return n
	}
	tx, err := pool.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	const old, recent = 250, 50
	for i := range old + recent {
		age := 11 * time.Minute
		if i >= old {
			age = 9 * time.Minute
		}
		_, err = tx.ExecContext(t.Context(), fmt.Sprintf(
			"INSERT INTO locker_locks (name, token, expires, fence) VALUES (%s, %s, %s - %d, 0)",
			literal(db, fmt.Sprintf("row %d", i)), literal(db, "t"), db.now, age.Microseconds()))
		require.NoError(t, err)
	}
	require.NoError(t, tx.Commit())
	before := rows()
	sweep(t, l)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		sweep(t, l)
		assert.LessOrEqual(c, rows(), before-old+1) // and the sweeper's own
	}, long, 10*time.Millisecond)
	require.GreaterOrEqual(t, rows(), recent)

	plan := fmt.Sprint(planOf(t, db, pool))
	require.NotContains(t, plan, db.scan)
}

// literal returns a name as a literal of bytes.
func literal(db database, name string) string {
	if db.dialect.Name == "PostgreSQL" {
		return fmt.Sprintf(`'\x%x'::bytea`, name)
	}
	return fmt.Sprintf("x'%x'", name)
}

// planOf explains the statement that deletes rows, on a table of ten thousand.
func planOf(t *testing.T, db database, pool *sql.DB) (plan []string) {
	t.Helper()
	l := newLocker(t, pool, db.dialect, sqllock.WithTable("many"))
	_ = l
	_, text, _ := strings.Cut(db.dialect.SQL, "-- name: sweep\n")
	text, _, _ = strings.Cut(text, "\n\n")
	then := db.now + " - 600000000"
	if db.dialect.Name == "PostgreSQL" {
		then = strings.Replace(then, "clock_", "statement_", 1)
	}
	text = strings.NewReplacer("{table}", "many", "{now} - :age", then, "{then}", then).Replace(text)
	tx, err := pool.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	for i := range 3000 {
		_, err = tx.ExecContext(t.Context(), fmt.Sprintf(
			"INSERT INTO many (name, token, expires, fence) VALUES (%s, %s, %s + %d, 0)",
			literal(db, fmt.Sprintf("row %d", i)), literal(db, "t"), db.now, i))
		require.NoError(t, err)
	}
	require.NoError(t, tx.Commit())
	if db.dialect.Name != "SQLite" {
		analyze := "ANALYZE TABLE many"
		if db.dialect.Name == "PostgreSQL" {
			analyze = "ANALYZE many"
		}
		_, err = pool.ExecContext(t.Context(), analyze)
		require.NoError(t, err)
	}
	rows, err := pool.QueryContext(t.Context(), db.explain+text)
	require.NoError(t, err)
	defer rows.Close()
	columns, err := rows.Columns()
	require.NoError(t, err)
	for rows.Next() {
		values := make([]any, len(columns))
		for i := range values {
			values[i] = new(any)
		}
		require.NoError(t, rows.Scan(values...))
		for _, v := range values {
			v := *v.(*any)
			if b, ok := v.([]byte); ok {
				v = string(b)
			}
			plan = append(plan, fmt.Sprint(v))
		}
	}
	require.NoError(t, rows.Err())
	require.NotEmpty(t, plan)
	t.Log(strings.Join(plan, "\n"))
	return plan
}

// After the pool is closed, every operation is an error.
func testGone(t *testing.T, db database) {
	pool := db.open(t)
	l := newLocker(t, pool, db.dialect)
	require.NoError(t, pool.Close())
	for name, err := range failures(t, l) {
		require.ErrorContains(t, err, "sql: database is closed", name)
	}
}

// storm lets goroutines of several pools take locks, and checks that each has one holder and that
// nothing fails.
func storm(t *testing.T, lockers []*sqllock.Locker, disturb func(ctx context.Context)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	enough, end := context.WithTimeout(t.Context(), long)
	defer end()
	const least = 50
	var holders [4]atomic.Int32
	var grants atomic.Int64
	var all sync.WaitGroup
	for i := range 16 {
		l, token := lockers[i%len(lockers)], fmt.Sprint("t", i)
		all.Go(func() {
			for n := i; ctx.Err() == nil || enough.Err() == nil && grants.Load() <= least; n++ {
				k := n % len(holders)
				key := fmt.Sprint("storm", k)
				ok, err := l.Acquire(t.Context(), key, token, time.Hour)
				if !assert.NoError(t, err) {
					return
				}
				if !ok {
					continue
				}
				grants.Add(1)
				assert.EqualValues(t, 1, holders[k].Add(1), "holders")
				_, ok, err = l.Fence(t.Context(), key, token)
				assert.NoError(t, err)
				assert.True(t, ok)
				holders[k].Add(-1)
				ok, err = l.Release(t.Context(), key, token)
				assert.NoError(t, err)
				assert.True(t, ok)
			}
		})
	}
	if disturb != nil {
		all.Go(func() {
			for ctx.Err() == nil {
				disturb(ctx)
			}
		})
	}
	all.Wait()
	require.Greater(t, grants.Load(), int64(least))
	t.Logf("%d grants", grants.Load())
}
