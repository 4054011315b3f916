package sqllock

// How a statement is sent: on which connection, for how long, and how often.

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/golockers/locker/internal/inflight"
	"github.com/golockers/locker/internal/undo"
)

const (
	// ioTimeout is how long the database may take to answer, and how long a call waits for a
	// connection.
	ioTimeout = 5 * time.Second

	// attempts is how often a statement is sent that the database undoes.
	attempts = 3
)

// querier is a connection or a transaction.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

type scanner interface{ Scan(dest ...any) error }

// call takes a connection and sends a statement, after the calls for token whose callers have left.
// A call that concerns no token waits for none.
//
// A driver closes a connection, or interrupts a statement that may be done, when a context ends. So
// statements do not get ctx: when it ends, the caller leaves its call behind instead.
func call[T any](ctx context.Context, l *Locker, name, token string,
	do func(context.Context, querier, statement) (T, error)) (T, error) {
	var zero T
	if err := ctx.Err(); err != nil {
		return zero, err
	}
	if l.err != nil {
		return zero, l.err
	}
	s := l.statements[name]
	if s.text == "" {
		return zero, fmt.Errorf("the dialect %q has no statement %s: %w", l.dialect.Name, name, errors.ErrUnsupported)
	}
	if token != "" {
		if err := l.calls.Wait(ctx, token); err != nil {
			return zero, err
		}
	}
	var answered atomic.Bool
	v, err := inflight.Do(ctx, &l.calls, token, inflight.Never, func() (v T, err error) {
		sent := false
		for attempt := 1; ; attempt++ {
			err = l.once(ctx, attempt == attempts && l.isUndone(err), func(ctx context.Context, q querier) error {
				sent = true
				v, err = do(ctx, q, s)
				return err
			})
			if attempt == attempts || ctx.Err() != nil || !l.isUndone(err) && !errors.Is(err, driver.ErrBadConn) {
				break
			}
		}
		switch {
		case err == nil:
			answered.Store(true)
			return v, nil
		case !sent:
			return zero, undo.Needless(err)
		}
		return zero, err
	})
	if err != nil && name == "acquire" {
		err = undo.Pending(err, answered.Load)
	}
	return v, err
}

// once takes a connection and makes one attempt on it. A connection that turns out to be broken
// before anything was sent is [driver.ErrBadConn].
func (l *Locker) once(ctx context.Context, readCommitted bool, do func(context.Context, querier) error) error {
	limited, cancel := context.WithTimeout(ctx, ioTimeout)
	defer cancel()
	if l.turn != nil {
		select {
		case l.turn <- struct{}{}:
			defer func() { <-l.turn }()
		case <-limited.Done():
			return l.late(limited, limited.Err())
		}
	}
	conn, err := l.db.Conn(limited)
	if err != nil {
		return l.late(limited, err)
	}
	defer conn.Close()
	if err := ctx.Err(); err != nil {
		return err
	}
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), ioTimeout) // with its values, for tracers
	defer cancel()
	if !l.checked.Load() {
		wrong, err := l.check(own, conn)
		if wrong != nil {
			return wrong
		}
		l.checked.Store(err == nil) // if it failed, so will the statement
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	if readCommitted {
		err = inTx(ctx, own, conn, do)
	} else {
		err = do(own, conn)
	}
	if err != nil && !l.isUndone(err) && !errors.Is(err, driver.ErrBadConn) {
		err = l.late(own, l.explain(own, conn, err))
	}
	return err
}

// late returns the error for an end of the Locker's own time, which is not the end of the caller's.
func (l *Locker) late(own context.Context, err error) error {
	if errors.Is(err, context.DeadlineExceeded) && own.Err() != nil {
		return errNoAnswer
	}
	return err
}

// inTx makes an attempt at a level at which a change by another since it began is no error.
func inTx(ctx, own context.Context, conn *sql.Conn, do func(context.Context, querier) error) error {
	tx, err := conn.BeginTx(own, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	defer tx.Rollback() // after a commit it does nothing
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := do(own, tx); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return tx.Commit()
}

// query calls scan for each row that a statement returns. It reads to the end, since SQLite commits
// only there.
func query(ctx context.Context, q querier, text string, args []any, scan func(scanner) error) error {
	rows, err := q.QueryContext(ctx, text, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return errors.Join(rows.Err(), rows.Close())
}
