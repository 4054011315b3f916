// Package sqllock keeps locks in a table of an SQL database, through database/sql and any driver.
//
//	db, err := sql.Open("mysql", "app@tcp(localhost:3306)/app?interpolateParams=true")
//	…
//	l := sqllock.New(db, sqllock.MySQL)
//	err = l.EnsureSchema(ctx)
//	…
//	lease, err := locker.Lock(ctx, l, "invoice/42", 30*time.Second)
//
// The dialects are [MySQL], for MariaDB too, [SQLite] and [PostgreSQL]; a [Dialect] of your own is a
// file of statements. Each operation is one statement in a transaction of its own, independent of the
// program's transactions: a rollback releases no lock, and a lock may end before a commit. It uses no
// state of a session (no GET_LOCK, no advisory locks), so it works behind poolers.
//
// # In the database
//
// The lock of name k is the row of the table whose name is k. It is held while token is not empty and
// expires, in microseconds since 1970 (UTC), is in the future. Names and tokens are binary, so any
// bytes are distinct, whatever the encodings and collations. A released lock keeps its row. An
// Acquire in 64 also deletes, in the background, up to 100 rows of locks that have been free for ten
// minutes, which it finds by an index. So a program that takes locks deletes more rows than it adds,
// however short its processes live.
//
// A user needs SELECT, INSERT, UPDATE and DELETE on the table. Anyone who may change the table can
// free a lock.
//
// # Time
//
// Expiries are times of the server's clock, so the clocks of the processes do not matter. On SQLite,
// which has no server, the clock is that of the machine. A ttl is rounded up to a microsecond, and
// the unit of the clock is added, since a clock is truncated: a microsecond, or a millisecond on
// SQLite. If the clock is set forward, locks end early by as much. If it is set back, they end late.
//
// # What is promised
//
// Mutual exclusion holds as long as all processes use the same server and that server keeps what it
// has committed, at any isolation level. A failover to a replica that lags may lose the last changes,
// locks among them; [locker.Lease.Fence] protects against that. A replica that only reads returns an
// error for every operation except Inspect and List.
//
// There is no queue and no notification: waiters poll. There are no counts for package window and no
// cache for a Loader of package singleflight: for those use a Redis, memcached or, for counts,
// package postgres, or write a Cache over a table and let package conformance judge it.
//
// # MySQL and MariaDB
//
// With interpolateParams=true in the address, an operation is one request; without it the driver
// prepares each statement first, so it is two, and a third message that needs no answer. The first
// operation asks for one setting in addition: if autocommit is off, each operation returns an error
// that says so. All others may be as they are, clientFoundRows and sql_mode among them. A deadlock
// is repeated at most twice. A lock wait timeout is an error. Tests run on MariaDB 10.11.
//
// # SQLite
//
// Processes that share a lock share the file, so they are on one machine, and the file is not on a
// network's file system. Open it with a busy timeout, since SQLite has one writer at a time. With
// modernc.org/sqlite:
//
//	db, err := sql.Open("sqlite", "file:locks.db?_pragma=busy_timeout(5000)"+
//		"&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)")
//
// With github.com/mattn/go-sqlite3:
//
//	db, err := sql.Open("sqlite3", "file:locks.db?_busy_timeout=5000&_journal_mode=WAL&_synchronous=NORMAL")
//
// With synchronous=NORMAL a statement does not wait for the disk. If the machine crashes, the last
// changes are lost, and so are the processes that held the locks. The journal modes DELETE, TRUNCATE and
// PERSIST are several times slower than WAL. A Locker sends one statement at a time, since SQLite has
// one writer at a time. So keep the locks in a file of their own: a process that stops inside a
// transaction stops all locks in the same file, and SQLite cannot end that transaction.
//
// With a busy timeout of less than a second, the journal mode OFF or MEMORY, or a database in memory,
// each operation returns an error that names the setting. Do not use nolock=1 or a VFS without
// locks, which are not noticed.
//
// # PostgreSQL
//
// Use package postgres if the driver is pgx: it has a queue, so waiters need not poll. This dialect is
// for other drivers, and for a program that has database/sql and needs no more.
package sqllock

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/inflight"
	"github.com/golockers/locker/internal/misuse"
)

// Locker keeps locks in a table. Make one with [New], and share it: it is safe for concurrent use
// and need not be closed. Each of its operations is one statement.
type Locker struct {
	db         *sql.DB
	dialect    Dialect
	table      string // quoted
	statements map[string]statement
	err        error // that every operation returns
	calls      inflight.Calls
	turn       chan struct{} // filled while a statement runs that must run alone, or nil
	checked    atomic.Bool   // the settings are right
	uses       atomic.Uint64 // of Acquire, from a random number
}

var (
	_ locker.Fencer    = (*Locker)(nil)
	_ locker.Inspector = (*Locker)(nil)
	_ locker.Lister    = (*Locker)(nil)
)

// Option changes what [New] makes.
type Option func(*options)

type options struct {
	table string
}

// WithTable sets the name of the table, which may begin with that of a schema or a database and a
// dot. The default, used if name is empty, is "locker_locks". The name is quoted, so it may have any
// characters. With an invalid name every operation returns an error. Lockers with different tables
// are independent.
func WithTable(name string) Option { return func(o *options) { o.table = name } }

// New returns a Locker that keeps its locks in a database, in a table that [Locker.EnsureSchema]
// creates. The caller closes db when the Locker is no longer used. With a nil db every operation
// returns an error.
//
// Each call takes a connection of db while it runs, and waits for one up to 5 seconds. If the program
// waits for locks in transactions that use the same db, those may take all its connections, and then
// the holder of a lock cannot release it. In that case give the Locker a db of its own. A call whose
// caller has left keeps its connection until the database answers, at most 5 seconds, so limit their
// number (SetMaxOpenConns) to what the server permits.
func New(db *sql.DB, d Dialect, opts ...Option) *Locker {
	l := &Locker{db: db, dialect: d}
	l.uses.Store(rand.Uint64N(sweepEvery))
	if d.OneWriter {
		l.turn = make(chan struct{}, 1)
	}
	table, statements, err := complete(d, opts)
	l.table, l.statements = table, statements
	switch {
	case err != nil:
		l.err = misuse.New(err.Error())
	case db == nil:
		l.err = errNoDB
	}
	return l
}

// Acquire takes the lock of key for token, for ttl rounded up to a microsecond and one unit of the
// database's clock more. See [locker.Locker] for the results.
//
// Acquire and all other methods return ctx's error when ctx is done. The other errors wrap the
// cause: one of the driver if the database is down or refuses, for instance because it only reads or
// because the statement waited too long for a row, and an error within 5 seconds if it does not
// answer. A statement that the database has undone because of a deadlock or a serialization failure
// is repeated at most twice, the second time in a transaction that is read committed.
func (l *Locker) Acquire(ctx context.Context, key, token string, ttl time.Duration) (acquired bool, err error) {
	acquired, err = l.change(ctx, "acquire", key, token, ttl)
	if acquired {
		l.sweepLater()
	}
	return acquired, err
}

// Extend sets the remaining time of the lock of key to ttl if token holds it. See [locker.Locker]
// for the results, and [Locker.Acquire] for rounding and errors. It waits, as long as ctx lasts,
// for calls for the same token that their callers have left behind, and so do all other methods.
func (l *Locker) Extend(ctx context.Context, key, token string, ttl time.Duration) (extended bool, err error) {
	return l.change(ctx, "extend", key, token, ttl)
}

// Release frees the lock of key if token holds it. See [locker.Locker] for the results, and
// [Locker.Acquire] for errors. After a Release that returned an error but took effect, the next
// Release reports false.
func (l *Locker) Release(ctx context.Context, key, token string) (released bool, err error) {
	number, err := l.number(ctx, "release", key, token, nil)
	return number > 0, err
}

// Fence returns a fencing number for the lock of key if token holds it: one more than the last, and
// at least the server's time in microseconds since 1970. So numbers keep growing after the row or
// the table was deleted, after old data was restored, and after a change from or to another backend
// of this library that counts so, unless the clock is then behind the one that the last number came
// from. See [Locker.Acquire] for errors. It is [errors.ErrUnsupported] if the dialect has no numbers.
func (l *Locker) Fence(ctx context.Context, key, token string) (fence uint64, ok bool, err error) {
	number, err := l.number(ctx, "fence", key, token, nil)
	return uint64(number), number > 0, err
}

// change runs a statement that changes the expiry of the row of key, or nothing when the answer is no.
func (l *Locker) change(ctx context.Context, name, key, token string, ttl time.Duration) (bool, error) {
	if ttl < time.Millisecond {
		return false, fmt.Errorf("%w: %v is less than 1ms", locker.ErrInvalidTTL, ttl)
	}
	number, err := l.number(ctx, name, key, token, parameters{"ttl": microseconds(ttl)})
	return number > 0, err
}

// number runs a statement and returns its number, which is 0 with an error.
func (l *Locker) number(ctx context.Context, name, key, token string, p parameters) (int64, error) {
	if p == nil {
		p = make(parameters)
	}
	p["key"], p["token"] = []byte(key), []byte(token)
	return call(ctx, l, name, token, func(ctx context.Context, q querier, s statement) (int64, error) {
		return l.dialect.number(ctx, q, s, p)
	})
}

// number sends a statement and returns its number, which is 0 with an error.
func (d Dialect) number(ctx context.Context, q querier, s statement, p parameters) (number int64, err error) {
	if d.Number != nil {
		result, err := q.ExecContext(ctx, s.text, s.args(p)...)
		if err != nil {
			return 0, err
		}
		return d.Number(result)
	}
	err = query(ctx, q, s.text, s.args(p), func(row scanner) error { return row.Scan(&number) })
	if err != nil {
		return 0, err
	}
	return number, nil
}

// microseconds rounds up.
func microseconds(ttl time.Duration) int64 { return int64((ttl-1)/time.Microsecond) + 1 }
