package sqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/sqllock"
)

func Example() {
	ctx := context.Background()
	// The program imports a driver: _ "github.com/go-sql-driver/mysql".
	db, err := sql.Open("mysql", "app@tcp(localhost:3306)/app?interpolateParams=true")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	l := sqllock.New(db, sqllock.MySQL)
	if err := l.EnsureSchema(ctx); err != nil {
		log.Fatal(err)
	}

	pay := func(ctx context.Context) (err error) {
		lease, err := locker.Lock(ctx, l, "invoice/42", 30*time.Second)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, lease.Unlock(ctx)) }()

		fmt.Println("holding", lease.Key())
		return nil
	}
	fmt.Println(pay(ctx))
}

// The statement that creates the table, for a migration.
func ExampleSchema() {
	fmt.Println(sqllock.Schema(sqllock.SQLite, sqllock.WithTable("locks")))
	// Output:
	// CREATE TABLE IF NOT EXISTS "locks" (
	// 	name    BLOB NOT NULL PRIMARY KEY,
	// 	token   BLOB NOT NULL,
	// 	expires INTEGER NOT NULL,
	// 	fence   INTEGER NOT NULL,
	// 	UNIQUE (expires, name)
	// ) WITHOUT ROWID
}

// A dialect with another statement: PostgreSQL writes no log for this table, so operations are faster,
// and a crash of the server frees all locks.
func ExampleDialect() {
	unlogged := sqllock.PostgreSQL
	unlogged.SQL += `
-- name: schema
CREATE UNLOGGED TABLE IF NOT EXISTS {table} (
	name bytea PRIMARY KEY, token bytea NOT NULL, expires bigint NOT NULL, fence bigint NOT NULL, UNIQUE (expires, name))
`
	fmt.Println(sqllock.Schema(unlogged))
	// Output:
	// CREATE UNLOGGED TABLE IF NOT EXISTS "locker_locks" (
	// 	name bytea PRIMARY KEY, token bytea NOT NULL, expires bigint NOT NULL, fence bigint NOT NULL, UNIQUE (expires, name))
}
