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
	granted text,                        -- the nonce of the waiter that was last handed the lock
	queue   jsonb                        -- a place for each process that waits; NULL: none does
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

// ensure creates a table unless it exists. It takes no transaction, which a pooler may not allow.
func ensure(ctx context.Context, pool *pgxpool.Pool, id pgx.Identifier, schema string) error {
	if pool == nil {
		return errNoPool
	}
	exists := func() (exists bool, err error) {
		err = pool.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", pgx.QueryExecModeExec, id.Sanitize()).Scan(&exists)
		return exists, err
	}
	// Without the right to create a table, CREATE TABLE IF NOT EXISTS fails even if it exists.
	there, err := exists()
	if err == nil && !there {
		// This fails if another session creates the table at the same time, after that has ended.
		if _, err = pool.Exec(ctx, inTable(id, schema), pgx.QueryExecModeExec); isDuplicate(err) {
			if there, again := exists(); there || again != nil {
				err = again
			}
		}
	}
	if err != nil {
		return fmt.Errorf("postgres: create the table %s: %w", id.Sanitize(), err)
	}
	return nil
}

// inTable puts the name of the table into a statement.
func inTable(id pgx.Identifier, statement string) string {
	return strings.ReplaceAll(statement, "{table}", id.Sanitize())
}
