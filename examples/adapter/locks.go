// Package locks keeps locks in a table of a SQLite database: the worked example of docs/adapters.md,
// which prints it. Each operation is one statement.
package locks

import (
	"context"
	"database/sql"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/golockers/locker"
)

// A lock is a row. It is held until expires, in milliseconds of the database's clock. Names and
// tokens are blobs, which compare byte for byte; text may be compared by a collation.
const schema = `
CREATE TABLE IF NOT EXISTS locks (
	name    BLOB PRIMARY KEY,
	token   BLOB NOT NULL,
	expires INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS locks_expires ON locks (expires)`

// now is the database's clock: the processes' own may differ.
const now = `CAST(round(unixepoch('subsec') * 1000) AS INTEGER)`

const (
	acquire = `
INSERT INTO locks (name, token, expires) VALUES (?1, ?2, ` + now + ` + ?3)
ON CONFLICT (name) DO UPDATE SET token = excluded.token, expires = excluded.expires
WHERE token = excluded.token OR expires <= ` + now

	extend = `
UPDATE locks SET expires = ` + now + ` + ?3
WHERE name = ?1 AND token = ?2 AND expires > ` + now

	release = `
DELETE FROM locks
WHERE name = ?1 AND token = ?2 AND expires > ` + now

	sweep = `
DELETE FROM locks WHERE expires <= ` + now
)

// Locker keeps locks in a table. Its methods are locker.Locker's; they return ctx's error within the
// time that the driver takes to interrupt a statement, and the driver's error when the database fails.
type Locker struct {
	db    *sql.DB
	swept atomic.Int64 // when, by this process's clock
}

var _ locker.Locker = (*Locker)(nil)

// New returns a Locker on db, in which Migrate has made the table.
func New(db *sql.DB) *Locker { return &Locker{db: db} }

// Migrate makes the table unless it is there.
func Migrate(ctx context.Context, db *sql.DB) error {
	if _, err := db.ExecContext(ctx, schema); err != nil {
		return fmt.Errorf("locks: migrate: %w", err)
	}
	return nil
}

// Acquire takes the lock of key in one attempt.
func (l *Locker) Acquire(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	if err := l.sweep(ctx); err != nil {
		return false, err
	}
	return l.exec(ctx, acquire, key, token, milliseconds(ttl))
}

// Extend replaces the remaining time of a lock that token holds.
func (l *Locker) Extend(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	return l.exec(ctx, extend, key, token, milliseconds(ttl))
}

// Release frees a lock that token holds.
func (l *Locker) Release(ctx context.Context, key, token string) (bool, error) {
	return l.exec(ctx, release, key, token)
}

// exec runs a statement that changes one row, or none when the answer is no.
func (l *Locker) exec(ctx context.Context, statement, key, token string, more ...any) (bool, error) {
	changed, err := l.rows(ctx, statement, append([]any{[]byte(key), []byte(token)}, more...)...)
	return changed > 0, err
}

// rows runs a statement and returns how many rows it has changed. If ctx has ended, it returns ctx's
// error, whatever the driver returned.
func (l *Locker) rows(ctx context.Context, statement string, args ...any) (changed int64, err error) {
	result, err := l.db.ExecContext(ctx, statement, args...)
	if ctxErr := ctx.Err(); ctxErr != nil {
		return 0, ctxErr
	}
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// milliseconds rounds up, and adds one because the database's clock is truncated: it may be behind by
// up to a millisecond.
func milliseconds(ttl time.Duration) int64 {
	return int64((ttl-1)/time.Millisecond) + 2
}

const sweepEvery = time.Minute

// sweep deletes expired locks from time to time.
func (l *Locker) sweep(ctx context.Context) error {
	last, now := l.swept.Load(), time.Now().UnixNano()
	if time.Duration(now-last) < sweepEvery || !l.swept.CompareAndSwap(last, now) {
		return nil
	}
	_, err := l.rows(ctx, sweep)
	return err
}
