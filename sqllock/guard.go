package sqllock

// The guard of data in the same database against holders whose time has passed.

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"

	"github.com/golockers/locker"
)

// Guard protects the data that a transaction reads or writes under a lock of any backend with fencing
// numbers. Call it first in each of these transactions, with the lock's key and one number of
// [locker.Lease.Fence] for the whole lease, minted before the transaction begins:
//
//	fence, err := lease.Fence(ctx)
//	…
//	tx, err := db.BeginTx(ctx, nil)
//	…
//	defer tx.Rollback()
//	if err := sqllock.Guard(ctx, tx, sqllock.MySQL, lease.Key(), fence); err != nil {
//		return err
//	}
//	… // read or write
//	return tx.Commit()
//
// It is one statement, which leaves the number in a table that [EnsureGuardSchema] creates. If a later
// holder has left a greater one, the error is [locker.ErrNotHeld]: roll back. Until the transaction
// ends, Guard of others waits for it. So what a holder reads stays as it is until it writes, or its
// write is refused. On PostgreSQL above read committed, and on MariaDB with innodb_snapshot_isolation, that wait may end
// with a serialization failure, after which the transaction can be repeated. A process that stops inside its transaction holds up
// every later holder, until ctx ends or the server ends the session.
//
// The number stays in the table after the lock has ended: delete its row when the data is deleted. The
// only option with an effect is [WithTable], with the name of a Locker's table.
func Guard(ctx context.Context, tx *sql.Tx, d Dialect, key string, fence uint64, opts ...Option) error {
	g, err := guardOf(d, opts)
	var last int64
	if err == nil && (fence == 0 || fence > math.MaxInt64) {
		err = fmt.Errorf("%d is no fencing number: they are from 1 to 2^63-1", fence)
	}
	if err == nil {
		last, err = d.number(ctx, tx, g["guard"], parameters{"key": []byte(key), "fence": int64(fence)})
	}
	switch {
	case err != nil && isMissing(err):
		return fmt.Errorf("sqllock: guard %.100q: call EnsureGuardSchema, or run sqllock.GuardSchema: %w", key, err)
	case err != nil:
		return fmt.Errorf("sqllock: guard %.100q: %w", key, err)
	case last != int64(fence):
		return fmt.Errorf("sqllock: guard %.100q: a later holder has the number %d, not %d: %w",
			key, last, fence, locker.ErrNotHeld)
	}
	return nil
}

// GuardSchema returns the statement that creates the table of [Guard] unless it exists, for
// migrations. With an invalid table name or dialect it is empty.
func GuardSchema(d Dialect, opts ...Option) string {
	g, _ := guardOf(d, opts)
	return g["guard_schema"].text
}

// EnsureGuardSchema creates the table of [Guard] unless it exists. Its name is that of the table of
// locks and "_fences".
func EnsureGuardSchema(ctx context.Context, db *sql.DB, d Dialect, opts ...Option) error {
	if db == nil {
		return errNoDB
	}
	g, err := guardOf(d, opts)
	if err != nil {
		return err
	}
	// Where sessions that create it at the same time disturb each other, the second try finds it.
	for range 2 {
		if _, err = db.ExecContext(ctx, g["guard_schema"].text); err == nil {
			return nil
		}
	}
	return fmt.Errorf("sqllock: create the table of Guard: %w", err)
}

// guardOf returns the statements for the table of Guard.
func guardOf(d Dialect, opts []Option) (map[string]statement, error) {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	if o.table == "" {
		o.table = defaultTable
	}
	table, err := d.quote(o.table + "_fences")
	if err != nil {
		return nil, err
	}
	statements, err := d.statements(table)
	if err == nil && (statements["guard"].text == "" || statements["guard_schema"].text == "") {
		err = fmt.Errorf("sqllock: the dialect %q has no guard: %w", d.Name, errors.ErrUnsupported)
	}
	return statements, err
}
