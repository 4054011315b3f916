package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	defaultTable = "locker_locks"

	// longestName is what PostgreSQL keeps of an identifier, in bytes. It cuts off the rest, so two
	// longer names could be one table.
	longestName = 63
)

// identifier splits a table's name, which may begin with that of its schema.
func identifier(name string) (pgx.Identifier, error) {
	id := pgx.Identifier(strings.Split(name, "."))
	if len(id) > 2 {
		return nil, fmt.Errorf("postgres: invalid table name %q: it is neither table nor schema.table", name)
	}
	for _, part := range id {
		switch {
		case part == "":
			return nil, fmt.Errorf("postgres: invalid table name %q: a part of it is empty", name)
		case len(part) > longestName:
			return nil, fmt.Errorf("postgres: invalid table name %q: a part of it is longer than %d bytes",
				name, longestName)
		case strings.ContainsRune(part, 0):
			return nil, fmt.Errorf("postgres: invalid table name %q: it contains a NUL byte", name)
		}
	}
	return id, nil
}

// A released lock keeps its row, and every change of a row finds room on its page, since half of
// each page is left free and the change affects no index. So the table does not grow with the
// number of changes.
const schema = `CREATE TABLE IF NOT EXISTS {table} (
	key     bytea NOT NULL PRIMARY KEY,
	token   bytea NOT NULL,              -- of the holder; empty: the lock is free
	expires timestamptz NOT NULL,        -- when the lock ends, or was released
	fence   bigint NOT NULL DEFAULT 0,   -- the last fencing number
	watched timestamptz,                 -- until then, releases tell the watchers
	-- The queue: what waiters have asked for, the backends that show whether they are alive, and
	-- how they know that a message about a grant is true.
	queue_token bytea[],
	queue_ttl   interval[],
	queue_pid   int[],
	queue_start timestamptz[],
	queue_nonce text[],
	granted     text                     -- the nonce of the waiter that was last handed the lock
) WITH (fillfactor = 50)`

// Schema returns the statement that creates the table of locks unless it exists, for migrations.
// The only option with an effect is [WithTable]. With an invalid name the statement is empty.
func Schema(opts ...Option) string {
	_, id, err := complete(opts)
	if err != nil {
		return ""
	}
	return inTable(id, schema)
}

// EnsureSchema creates the table of locks unless it exists. Several processes may call it at the
// same time. The only option with an effect is [WithTable]. If its name includes a schema, that
// schema must exist. If the table exists, no right to create one is needed.
func EnsureSchema(ctx context.Context, pool *pgxpool.Pool, opts ...Option) error {
	_, id, err := complete(opts)
	if err != nil {
		return err
	}
	return ensure(ctx, pool, id, schema)
}

// ensure creates a table unless it exists.
func ensure(ctx context.Context, pool *pgxpool.Pool, id pgx.Identifier, schema string) error {
	if pool == nil {
		return errNoPool
	}
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		// CREATE TABLE IF NOT EXISTS fails if another session creates the table at the same time,
		// and without the right to create one even if the table exists.
		const isThere = `SELECT to_regclass($1) IS NOT NULL, pg_advisory_xact_lock($2)::text`
		var exists bool
		var locked string
		const lockID = 0x6c6f636b6572 // "locker"
		err := tx.QueryRow(ctx, isThere, pgx.QueryExecModeExec, id.Sanitize(), int64(lockID)).Scan(&exists, &locked)
		if err != nil || exists {
			return err
		}
		_, err = tx.Exec(ctx, inTable(id, schema), pgx.QueryExecModeExec)
		return err
	})
	if err != nil {
		return fmt.Errorf("postgres: create the table %s: %w", id.Sanitize(), err)
	}
	return nil
}

// inTable puts the name of the table into a statement.
func inTable(id pgx.Identifier, statement string) string {
	return strings.ReplaceAll(statement, "{table}", id.Sanitize())
}
