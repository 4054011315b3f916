// Package postgres keeps locks in a table of a PostgreSQL database, through
// github.com/jackc/pgx/v5.
//
//	config, err := pgxpool.ParseConfig("postgres://user@localhost:5432/app")
//	…
//	pool, err := pgxpool.NewWithConfig(ctx, postgres.Tuned(config))
//	…
//	err = postgres.EnsureSchema(ctx, pool)
//	…
//	lease, err := locker.Lock(ctx, postgres.New(pool), "invoice/42", 30*time.Second)
//
// It works with PostgreSQL 13 or later, and behind poolers in any mode. Each operation is one
// statement in a transaction of its own, independent of the program's transactions: a rollback
// releases no lock, and a lock may end before a commit. Waiters form a queue: those of a
// process are served in order, and processes take turns.
//
// # In the database
//
// The lock of name k is the row of the table whose key is k. It is held while token is not empty
// and expires is in the future. Names and tokens are bytea, so any bytes are distinct, whatever the
// encodings and collations. The row also contains the queue. A released lock keeps its row, so that
// taking it again changes no index. Every five minutes, each Locker in use deletes rows that were
// not used for ten minutes, up to a thousand of them in one statement, which reads the whole table.
// Of those that live for less than that, one in fifty does.
//
// A user needs SELECT, INSERT, UPDATE and DELETE on the table. Anyone who may change the table can
// free a lock, and anyone who may read it can make a process believe that it was handed a lock, or give one back.
//
// # Time
//
// Expiries are times of the server's clock (clock_timestamp), which every statement reads after it
// has waited for the row. The clocks of the processes do not matter. A ttl is rounded up to a
// microsecond, and one microsecond is added, since the server's clock is truncated. If the server's
// clock is set forward, locks end early by as much. If it is set back, they end late.
//
// # What is promised
//
// Mutual exclusion holds as long as all processes use the same server and that server keeps the
// changes that it has confirmed. A change is on its disk before an operation returns, so locks
// survive a crash, even where synchronous_commit is off by default; see [WithAsyncCommit]. A
// failover to a standby that replicates asynchronously may lose the last changes, locks among them.
// After such a failover, and while an old primary is still running, two processes may hold one
// lock. [locker.Lease.Fence] protects against that.
//
// A standby returns an error for every operation except Inspect and List.
//
// # Poolers
//
// Behind a pooler such as PgBouncer, in any mode, waiters poll: Wait and Watch return
// [errors.ErrUnsupported], since notifications may not arrive. All other operations work. A pooler
// that cannot prepare statements, such as PgBouncer before 1.21 in transaction mode, needs
// [WithoutPreparing] or a pool with default_query_exec_mode=exec.
//
// # Waiting
//
// A Locker that waits or watches has one connection beside the pool's, which is opened for the
// first waiter and closed half a minute after the last. It listens to two channels: one of the
// table, for watchers, and one of its own, for its waiters, "locker/" and a random name. A release
// sends a notification only if it hands the lock over or the row has a mark that the lock is
// watched, since PostgreSQL commits transactions that notify one after the other. Messages are
// hints: a waiter reads the table before it acts on one. The exception is a message with a nonce from
// the table, which proves that the lock was handed to the Locker.
package postgres

import (
	"context"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/inflight"
	"github.com/golockers/locker/internal/line"
	"github.com/golockers/locker/internal/misuse"
	"github.com/golockers/locker/internal/pubsub"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Locker keeps locks in a table. Make one with [New], and share it: it is safe for concurrent use
// and need not be closed. Each of its operations is one statement, and so one request, and is
// prepared once for each connection. Extend and Release take a second request if the lock is not
// held or other processes wait for it.
type Locker struct {
	pool       *pgxpool.Pool
	table      string // quoted
	sql        statements
	isPrepared bool
	mode       pgx.QueryExecMode // of statements that are not prepared
	err        error             // that every operation returns
	name       string            // of the Locker, in channels and nonces
	calls      inflight.Calls

	start time.Time
	swept atomic.Int64 // when: nanoseconds after start

	windows windows

	path atomic.Int32             // what is between this process and the server
	hub  *pubsub.Hub              // of those who wait and watch
	self atomic.Pointer[listener] // the hub's connection; nil: there is none

	lines  line.Lines[string, *place] // by key
	places places
	nonces atomic.Int64 // the number of the last
	leaves chan struct{}
	left   lefts
	closed atomic.Bool // the pool is known to be
}

var (
	_ locker.Fencer    = (*Locker)(nil)
	_ locker.Watcher   = (*Locker)(nil)
	_ locker.Waiter    = (*Locker)(nil)
	_ locker.Inspector = (*Locker)(nil)
	_ locker.Lister    = (*Locker)(nil)
)

// Option changes what [New] makes.
type Option func(*options)

type options struct {
	table     string
	async     bool
	unprepare bool
}

// WithTable sets the name of the table, which may begin with that of a schema and a dot. Upper and
// lower case differ. The default, used if name is empty, is "locker_locks", in the first schema of
// the search path that has it. With an invalid name every operation returns an error. Lockers with
// different tables are independent.
func WithTable(name string) Option { return func(o *options) { o.table = name } }

// WithAsyncCommit lets the server answer before a change is on its disk (synchronous_commit off),
// which saves the time of the write. If the server then crashes, it loses the changes of its last
// moments, usually less than a second. A lock that was acquired or extended in that time may be
// granted to another process while its holder continues, and one that was released may stay held
// until its ttl has passed. Fencing numbers are not affected.
func WithAsyncCommit() Option { return func(o *options) { o.async = true } }

// WithoutPreparing sends each statement unprepared, instead of preparing it once for each
// connection. It is for poolers that cannot prepare statements, such as PgBouncer before 1.21 in
// transaction mode. A pool whose DefaultQueryExecMode is not [pgx.QueryExecModeCacheStatement] does
// not need it.
func WithoutPreparing() Option { return func(o *options) { o.unprepare = true } }

// complete returns the options with their defaults, and the table.
func complete(opts []Option) (o options, id pgx.Identifier, err error) {
	for _, opt := range opts {
		opt(&o)
	}
	if o.table == "" {
		o.table = defaultTable
	}
	id, err = identifier(o.table)
	return o, id, err
}

// New returns a Locker that keeps its locks in a database, in a table that [EnsureSchema] creates.
// The caller closes the pool when the Locker is no longer used. With a nil pool every operation
// returns an error.
//
// Each call takes a connection of the pool while it runs, and waits for one as long as its context
// lasts. If the program waits for locks in transactions that use the same pool, those may take all
// its connections, and then the holder of a lock cannot release it. In that case give the Locker a
// pool of its own.
func New(pool *pgxpool.Pool, opts ...Option) *Locker {
	l := &Locker{pool: pool, name: rand.Text(), start: time.Now(), leaves: make(chan struct{}, maxLeaves)}
	if mathrand.IntN(sweepFirst) == 0 {
		l.start = l.start.Add(-sweepEvery)
	}
	o, id, err := complete(opts)
	switch {
	case err != nil:
		l.err = misuse.New(err.Error())
		return l
	case pool == nil:
		l.err = errNoPool
		return l
	}
	l.table, l.sql = id.Sanitize(), newStatements(id, o.async)
	l.windows.complete(id)
	l.hub = pubsub.New(l.listen, ioTimeout)
	switch mode := pool.Config().ConnConfig.DefaultQueryExecMode; {
	case mode == pgx.QueryExecModeSimpleProtocol:
		l.mode = mode
	case mode == pgx.QueryExecModeCacheStatement && !o.unprepare:
		l.isPrepared = true
	default: // the others take two steps each time, or need not
		l.mode = pgx.QueryExecModeExec
	}
	return l
}

// Acquire takes the lock of key for token, for ttl rounded up to a microsecond and one more. See
// [locker.Locker] for the results. While another token holds the lock, Acquire writes nothing.
//
// Acquire and all other methods return ctx's error when ctx is done: immediately if its deadline is
// nearer than 5 seconds, and otherwise within 5 seconds. The other errors wrap the cause: one from
// pgx if the server is down, a [pgconn.PgError] if it refuses, for instance because it is a
// standby, and an error within 5 seconds if it hangs. Where transactions are serializable or
// repeatable read by default, a statement that fails because of that is repeated once, in a
// transaction that is read committed.
func (l *Locker) Acquire(ctx context.Context, key, token string, ttl time.Duration) (acquired bool, err error) {
	us, err := microsecondsOf(ttl)
	if err != nil {
		return false, err
	}
	acquired, err = l.change(ctx, l.sql.acquire, key, token, us)
	if err == nil {
		l.sweepLocksLater()
	}
	return acquired, err
}

// Extend sets the remaining time of the lock of key to ttl if token holds it. See [locker.Locker]
// for the results, and [Locker.Acquire] for rounding and errors. It waits, as long as ctx lasts,
// for calls for the same token that their callers have left behind, and so do all other methods.
func (l *Locker) Extend(ctx context.Context, key, token string, ttl time.Duration) (extended bool, err error) {
	us, err := microsecondsOf(ttl)
	if err != nil {
		return false, err
	}
	return l.changeAlone(ctx, l.sql.extendAlone, l.sql.extend, key, token, us)
}

// Release frees the lock of key if token holds it. See [locker.Locker] for the results, and
// [Locker.Acquire] for errors. After a Release that returned an error but took effect, the next
// Release reports false.
func (l *Locker) Release(ctx context.Context, key, token string) (released bool, err error) {
	return l.changeAlone(ctx, l.sql.releaseAlone, l.sql.release, key, token)
}

// Fence returns a fencing number for the lock of key if token holds it: one more than the last, and
// at least the server's time in microseconds since 1970. So numbers keep growing after the row or
// the table was deleted, after old data was restored, and after a failover to a standby that lags,
// unless the server's clock is then behind the clock that the last number came from. See
// [Locker.Acquire] for errors. Numbers are on the server's disk before they are returned, even with
// [WithAsyncCommit].
func (l *Locker) Fence(ctx context.Context, key, token string) (fence uint64, ok bool, err error) {
	number, err := call(ctx, l, token, func(r *request) (number int64, err error) {
		err = r.query(func(rows pgx.Rows) error { return rows.Scan(&number, nil) },
			l.sql.fence, []byte(key), []byte(token))
		return number, err
	})
	return uint64(number), number > 0 && err == nil, err
}

// change runs a statement that changes the row of key, or none when the answer is no.
func (l *Locker) change(ctx context.Context, sql, key, token string, more ...any) (bool, error) {
	return call(ctx, l, token, func(r *request) (bool, error) {
		changed, err := r.exec(sql, append([]any{[]byte(key), []byte(token)}, more...)...)
		return err == nil && changed > 0, err
	})
}

// changeAlone tries a statement that changes the row only if no client waits for the lock. A Locker
// whose clients wait expects that others' do as well.
func (l *Locker) changeAlone(ctx context.Context, alone, sql, key, token string, more ...any) (bool, error) {
	return call(ctx, l, token, func(r *request) (bool, error) {
		args := append([]any{[]byte(key), []byte(token)}, more...)
		if l.self.Load() == nil {
			if changed, err := r.exec(alone, args...); err != nil || changed > 0 {
				return err == nil, err
			}
		}
		changed, err := r.exec(sql, args...)
		return err == nil && changed > 0, err
	})
}

// microsecondsOf rounds up, and adds one because the server's clock is truncated: it may be behind
// by up to a microsecond.
func microsecondsOf(ttl time.Duration) (pgtype.Interval, error) {
	if ttl < time.Millisecond {
		return pgtype.Interval{}, fmt.Errorf("%w: %v is less than 1ms", locker.ErrInvalidTTL, ttl)
	}
	return pgtype.Interval{Microseconds: int64((ttl-1)/time.Microsecond) + 2, Valid: true}, nil
}
