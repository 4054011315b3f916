package main

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"slices"

	_ "github.com/go-sql-driver/mysql"
	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/sqllock"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"
)

// sqlLocks are on three databases. Beside them run the locks of other packages, for comparison.
var sqlLocks = []contender{
	ours("sqllock-mariadb", newMariaDB),
	ours("sqllock-mariadb+cohort", newMariaDB),
	ours("sqllock-sqlite", func(j job) (locker.Locker, error) { return onSQL("sqlite", j.SQLite, sqllock.SQLite) }),
	ours("sqllock-postgresql", func(j job) (locker.Locker, error) { return onSQL("pgx", j.Postgres, sqllock.PostgreSQL) }),
}

func newMariaDB(j job) (locker.Locker, error) { return onSQL("mysql", j.MariaDB, sqllock.MySQL) }

func onSQL(driver, address string, d sqllock.Dialect) (locker.Locker, error) {
	db, err := sql.Open(driver, address)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return sqllock.New(db, d, sqlTable), nil
}

// sqlTable is another one than package postgres has.
var sqlTable = sqllock.WithTable("sql_locks")

// runSQL starts servers that write every commit to their disks. SQLite has the settings that package
// sqllock recommends, with which it does not.
func runSQL(ctx context.Context, b *bench) error {
	pool, err := b.openPostgres(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	addr, err := b.host.start(testserver.MariaDB, "--innodb-flush-log-at-trx-commit=1")
	if err != nil {
		return err
	}
	b.mariadb = testserver.MariaDBUser + "@tcp(" + addr + ")/" + testserver.MariaDBDatabase + "?interpolateParams=true"
	b.sqlite = "file:" + filepath.Join(b.host.TempDir(), "locks.db") +
		"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)"
	for _, on := range []struct {
		driver, address string
		dialect         sqllock.Dialect
	}{
		{"mysql", b.mariadb, sqllock.MySQL}, {"sqlite", b.sqlite, sqllock.SQLite}, {"pgx", b.postgres, sqllock.PostgreSQL},
	} {
		db, err := sql.Open(on.driver, on.address)
		if err != nil {
			return err
		}
		if err := errors.Join(sqllock.New(db, on.dialect, sqlTable).EnsureSchema(ctx), db.Close()); err != nil {
			return err
		}
	}
	contenders := append(slices.Clone(sqlLocks), postgresLocks[0], redisLocks[0])
	return b.takeTurns(ctx, "sql", lockScenarios, contenders, nil)
}
