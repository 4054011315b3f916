package postgres

// The guard of data in the same database against holders whose time has passed.

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/golockers/locker"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const guardSchema = `CREATE TABLE IF NOT EXISTS {table} (
	key   bytea NOT NULL PRIMARY KEY,
	fence bigint NOT NULL -- the largest that a transaction has left
)`

// greatest locks the row until the transaction ends, even if it changes nothing.
const guardSQL = `INSERT INTO {table} AS f (key, fence) VALUES ($1::bytea, $2::bigint)
ON CONFLICT (key) DO UPDATE SET fence = greatest(f.fence, $2) RETURNING fence`

// guardTable returns the name of the table.
func guardTable(opts []Option) (pgx.Identifier, error) {
	_, locks, err := complete(opts)
	if err != nil {
		return nil, err
	}
	return identifier(strings.Join(locks, ".") + "_fences")
}

// Guard protects the data that a transaction reads or writes under a lock of any backend with fencing
// numbers. Call it first in each of these transactions, with the lock's key and one number of
// [locker.Lease.Fence] for the whole lease, minted before the transaction begins:
//
//	fence, err := lease.Fence(ctx)
//	…
//	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		if err := postgres.Guard(ctx, tx, lease.Key(), fence); err != nil {
//			return err
//		}
//		… // read or write
//	})
//
// It is one statement, which leaves the number in a table that [EnsureGuardSchema] creates. If a later
// holder has left a greater one, the error is [locker.ErrNotHeld]: roll back. Until the transaction
// ends, Guard of others waits for it. So what a holder reads stays as it is until it writes, or its
// write is refused. At a level above read committed, that wait may end with a serialization failure,
// after which the transaction can be repeated. A process that stops inside its transaction holds up
// every later holder, until ctx ends or the server ends the session (idle_in_transaction_session_timeout).
//
// The number stays in the table after the lock has ended: delete its row when the data is deleted. The
// only option with an effect is [WithTable], with the name of a Locker's table.
func Guard(ctx context.Context, tx pgx.Tx, key string, fence uint64, opts ...Option) error {
	id, err := guardTable(opts)
	var last int64
	if err == nil && (fence == 0 || fence > math.MaxInt64) {
		err = fmt.Errorf("%d is no fencing number: they are from 1 to 2^63-1", fence)
	}
	if err == nil {
		err = tx.QueryRow(ctx, inTable(id, guardSQL), []byte(key), int64(fence)).Scan(&last)
		if code := codeOf(err); code == undefinedTable || code == undefinedSchema {
			err = fmt.Errorf("there is no table %s; call postgres.EnsureGuardSchema: %w", id.Sanitize(), err)
		}
	}
	switch {
	case err != nil:
		return fmt.Errorf("postgres: guard %.100q: %w", key, err)
	case last != int64(fence):
		return fmt.Errorf("postgres: guard %.100q: a later holder has the number %d, not %d: %w",
			key, last, fence, locker.ErrNotHeld)
	}
	return nil
}

// GuardSchema returns the statement that creates the table of [Guard] unless it exists, for
// migrations. The only option with an effect is [WithTable]. With an invalid name it is empty.
func GuardSchema(opts ...Option) string {
	id, err := guardTable(opts)
	if err != nil {
		return ""
	}
	return inTable(id, guardSchema)
}

// EnsureGuardSchema creates the table of [Guard] unless it exists, as [EnsureSchema] does for that of
// locks. Its name is that of the table of locks and "_fences".
func EnsureGuardSchema(ctx context.Context, pool *pgxpool.Pool, opts ...Option) error {
	id, err := guardTable(opts)
	if err != nil {
		return err
	}
	return ensure(ctx, pool, id, guardSchema)
}
