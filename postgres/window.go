package postgres

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/golockers/locker/window"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

var _ window.Enforcer = (*Locker)(nil)

// Count adds n to the count of key in the current window, for a Limiter of package window. It takes
// one statement, which reads the server's clock after it has locked the row. The counts are rows of
// a separate table, which [EnsureWindowSchema] creates. Rows that are no longer needed are deleted
// like rows of locks. The server answers before a count is on disk, so a crash may lose the latest
// counts.
func (l *Locker) Count(ctx context.Context, key string, n int64, per time.Duration) (window.Counts, error) {
	c, _, err := l.CountUnder(ctx, key, n, window.Rule{Per: per, Limit: unlimited})
	return c, err
}

// unlimited is a limit that no count reaches.
const unlimited = 1 << 62

// CountUnder is Count if the rule allows n more, and otherwise changes nothing. It takes one
// statement.
func (l *Locker) CountUnder(ctx context.Context, key string, n int64, r window.Rule) (
	c window.Counts, counted bool, err error) {
	reply, err := call(ctx, l, "", func(q *request) (reply windowReply, err error) {
		if l.windows.err != nil {
			return reply, l.windows.err
		}
		sql, args := l.windows.look, []any{[]byte(key), r.Per.Microseconds()}
		if n > 0 {
			sql, args = l.windows.count, append(args, n, r.Limit, !r.Fixed)
		}
		var left int64
		err = q.query(func(rows pgx.Rows) error {
			return rows.Scan(&reply.counted, &reply.counts.Current, &reply.counts.Previous, &left, nil)
		}, sql, args...)
		reply.counts.Left = time.Duration(left) * time.Microsecond
		if n == 0 {
			reply.counted = r.Allows(reply.counts, 0)
		}
		if code := codeOf(err); code == undefinedTable || code == undefinedSchema {
			err = noWindows{fmt.Errorf("there is no table %s; call postgres.EnsureWindowSchema, "+
				"or run postgres.WindowSchema: %w", l.windows.table, err)}
		}
		return reply, err
	})
	if err == nil && n > 0 {
		l.sweepLater(&l.windows.swept, l.sweepWindows)
	}
	return reply.counts, reply.counted && err == nil, err
}

// windowReply is the outcome of CountUnder.
type windowReply struct {
	counts  window.Counts
	counted bool
}

// windows is the part of a Locker that counts.
type windows struct {
	table              string // quoted
	count, look, sweep string // statements
	err                error  // that every count returns
	swept              atomic.Int64
}

func (w *windows) complete(locks pgx.Identifier) {
	id, err := windowTable(locks)
	if err != nil {
		w.err = err
		return
	}
	w.table = id.Sanitize()
	w.count, w.look, w.sweep = assemble(id, windowCountSQL), assemble(id, windowLookSQL), assemble(id, windowSweepSQL)
}

// noWindows is the error for a missing table. Its message says how to create the table.
type noWindows struct{ error }

// sweepWindows deletes counts that are no longer needed, and returns their number.
func (l *Locker) sweepWindows(ctx context.Context) (int64, error) {
	return call(ctx, l, "", func(r *request) (int64, error) { return r.exec(l.windows.sweep, sweepMost) })
}

// Every change of a row finds room on its page, as in the table of locks.
const windowSchema = `CREATE TABLE IF NOT EXISTS {table} (
	key      bytea NOT NULL,
	per      bigint NOT NULL,   -- the length of a window in microseconds
	at       bigint NOT NULL,   -- when it was last counted, in microseconds since 1970
	current  bigint NOT NULL,   -- the count in the window at that time
	previous bigint NOT NULL,   -- the count in the window before that
	counted  boolean NOT NULL,  -- whether the last count was under its limit
	PRIMARY KEY (key, per)
) WITH (fillfactor = 50)`

const (
	// count changes the row once. PostgreSQL computes the new values from the old ones after it has
	// locked the row. OFFSET 0 makes it read the clock only once. If the clock was set back, the
	// counts still count as those of the current window.
	windowCountSQL = `
INSERT INTO {table} AS w (key, per, at, current, previous, counted)
SELECT $1::bytea, $2::bigint, {microseconds}, CASE WHEN $3::bigint <= $4::bigint THEN $3 ELSE 0 END, 0, $3 <= $4
ON CONFLICT (key, per) DO UPDATE SET (at, current, previous, counted) = (
	SELECT t.now, CASE WHEN u.counted THEN least(s.current::numeric + $3, 9e18)::bigint ELSE s.current END, s.previous, u.counted
	FROM (SELECT {microseconds} AS now OFFSET 0) AS t,
	LATERAL (SELECT CASE WHEN w.at / w.per >= t.now / w.per THEN w.current ELSE 0 END AS current,
		CASE WHEN w.at / w.per >= t.now / w.per THEN w.previous
			WHEN w.at / w.per = t.now / w.per - 1 THEN w.current ELSE 0 END AS previous) AS s,
	LATERAL (SELECT s.current::numeric + CASE WHEN $5::boolean
		THEN div(s.previous::numeric * (w.per - t.now % w.per), w.per) ELSE 0 END <= $4 - $3 AS counted) AS u)
RETURNING w.counted, w.current, w.previous, w.per - w.at % w.per, {hasty}`

	windowLookSQL = `
SELECT true, CASE WHEN w.at / t.per >= t.now / t.per THEN w.current ELSE 0 END,
	CASE WHEN w.at / t.per >= t.now / t.per THEN w.previous
		WHEN w.at / t.per = t.now / t.per - 1 THEN w.current ELSE 0 END,
	t.per - t.now % t.per, pg_is_in_recovery()
FROM (SELECT {microseconds} AS now, $2::bigint AS per OFFSET 0) AS t
LEFT JOIN {table} AS w ON w.key = $1::bytea AND w.per = t.per`

	// sweep skips rows that are being used.
	windowSweepSQL = `
DELETE FROM {table} WHERE ctid = ANY (ARRAY(
	SELECT w.ctid FROM {table} AS w WHERE w.at / w.per + 1 < {microseconds} / w.per
	LIMIT $1 FOR UPDATE SKIP LOCKED))`
)

// windowTable returns the name of the table of counts that belongs to a table of locks.
func windowTable(id pgx.Identifier) (pgx.Identifier, error) {
	return identifier(strings.Join(id, ".") + "_windows")
}

// WindowSchema returns the statement that creates the table of counts for package window unless it
// exists, for use in migrations. The table has the name of the table of locks followed by
// "_windows". Only the option [WithTable] has an effect. If the name is invalid or too long, the
// statement is empty.
func WindowSchema(opts ...Option) string {
	_, id, err := complete(opts)
	if err == nil {
		id, err = windowTable(id)
	}
	if err != nil {
		return ""
	}
	return inTable(id, windowSchema)
}

// EnsureWindowSchema creates the table of counts for package window unless it exists, as
// [EnsureSchema] creates the table of locks. The two tables are independent.
func EnsureWindowSchema(ctx context.Context, pool *pgxpool.Pool, opts ...Option) error {
	_, id, err := complete(opts)
	if err == nil {
		id, err = windowTable(id)
	}
	if err != nil {
		return err
	}
	return ensure(ctx, pool, id, windowSchema)
}
