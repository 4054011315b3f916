package sqllock

// The table: its name, its creation, and the settings of the database that it is in.

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

const (
	defaultTable = "locker_locks"

	// longestName is what databases keep of a name, in bytes. PostgreSQL cuts off the rest, so two
	// longer names could be one table.
	longestName = 63
)

// complete returns the table, quoted, and the statements for it.
func complete(d Dialect, opts []Option) (table string, statements map[string]statement, err error) {
	o := options{}
	for _, opt := range opts {
		opt(&o)
	}
	if o.table == "" {
		o.table = defaultTable
	}
	if table, err = d.quote(o.table); err != nil {
		return "", nil, err
	}
	statements, err = d.statements(table)
	return table, statements, err
}

// quote quotes a table's name, which may begin with that of its schema.
func (d Dialect) quote(name string) (string, error) {
	mark := d.Quote
	if mark == "" {
		mark = `"`
	}
	parts := strings.Split(name, ".")
	if len(parts) > 2 {
		return "", fmt.Errorf("sqllock: invalid table name %q: it is neither table nor schema.table", name)
	}
	for i, part := range parts {
		switch {
		case part == "":
			return "", fmt.Errorf("sqllock: invalid table name %q: a part of it is empty", name)
		case len(part) > longestName:
			return "", fmt.Errorf("sqllock: invalid table name %q: a part of it is longer than %d bytes",
				name, longestName)
		case strings.ContainsRune(part, 0):
			return "", fmt.Errorf("sqllock: invalid table name %q: it contains a NUL byte", name)
		}
		parts[i] = mark + strings.ReplaceAll(part, mark, mark+mark) + mark
	}
	return strings.Join(parts, "."), nil
}

// Schema returns the statement that creates the table of locks unless it exists, for migrations.
// With an invalid table name or dialect it is empty.
func Schema(d Dialect, opts ...Option) string {
	_, statements, _ := complete(d, opts)
	return statements["schema"].text
}

// EnsureSchema creates the table of locks unless it exists. Several processes may call it at the
// same time. If the name of the table includes a schema, that schema must exist. If the table
// exists, no right to create one is needed.
func (l *Locker) EnsureSchema(ctx context.Context) error {
	for end := time.Now().Add(ioTimeout); ; {
		err := l.ensureSchema(ctx)
		// SQLite does not wait for other processes when a file begins to have a write-ahead log.
		if err == nil || !l.dialect.OneWriter || !strings.Contains(err.Error(), "database is locked") || time.Now().After(end) {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

func (l *Locker) ensureSchema(ctx context.Context) error {
	// CREATE TABLE IF NOT EXISTS fails without the right to create a table even if it exists, and in
	// PostgreSQL also if another session creates it at the same time.
	err := l.exists(ctx)
	if err == nil || !isMissing(err) {
		return err
	}
	_, err = call(ctx, l, "schema", "", func(ctx context.Context, q querier, s statement) (struct{}, error) {
		_, err := q.ExecContext(ctx, s.text)
		return struct{}{}, err
	})
	if err != nil && l.exists(ctx) != nil {
		return fmt.Errorf("sqllock: create the table %s: %w", l.table, err)
	}
	return nil
}

// exists returns nil if the table is there.
func (l *Locker) exists(ctx context.Context) error {
	_, err := l.Inspect(ctx, "")
	return err
}

// check returns what is wrong with the settings of the database or the connection, or nil.
func (l *Locker) check(ctx context.Context, q querier) (wrong, err error) {
	s := l.statements["check"]
	if s.text == "" {
		return nil, nil
	}
	var all []string
	err = query(ctx, q, s.text, nil, func(row scanner) error {
		all = append(all, "")
		return row.Scan(&all[len(all)-1])
	})
	if len(all) > 0 {
		wrong = errors.New("sqllock: " + strings.Join(all, "; "))
	}
	return wrong, err
}
