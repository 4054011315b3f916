package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/golockers/locker/internal/inflight"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// ioTimeout is how long the server may take to answer.
	ioTimeout = 5 * time.Second

	// A caller whose deadline is nearer than nearTimeout can leave its call behind. That takes a
	// goroutine, which an Unlock with its own deadline does not need.
	nearTimeout = 3 * time.Second
)

// request sends statements over a connection that no other call uses meanwhile.
type request struct {
	l       *Locker
	near    bool // the caller leaves the call behind when ctx ends
	ctx     context.Context
	conn    *pgx.Conn
	repeats bool // a statement that could not be serialized, at another level
}

// call takes a connection and makes a call for token on it, after those for token whose callers
// have left. A call that concerns no token waits for none.
//
// pgx closes a connection on which a context ends. So statements do not get ctx, and a caller whose
// deadline is near leaves its call behind instead. Others wait for the server's answer, for as long
// as ioTimeout or until their deadline.
func call[T any](ctx context.Context, l *Locker, token string, do func(*request) (T, error)) (T, error) {
	var zero T
	if err := ctx.Err(); err != nil {
		return zero, err
	}
	if l.err != nil {
		return zero, l.err
	}
	if token != "" {
		if err := l.calls.Wait(ctx, token); err != nil {
			return zero, err
		}
	}
	deadline, ok := ctx.Deadline()
	near, timeout := ok && time.Until(deadline) < nearTimeout, time.Duration(0)
	if near {
		timeout = math.MaxInt64
	}
	return inflight.Do(ctx, &l.calls, token, timeout, func() (T, error) {
		conn, err := l.pool.Acquire(ctx)
		if isClosed(err) {
			l.close()
		}
		if err != nil {
			return zero, err
		}
		defer conn.Release()
		r := &request{l: l, near: near, ctx: ctx, conn: conn.Conn()}
		v, err := do(r)
		if isUnserializable(err) {
			r.repeats = true
			v, err = do(r)
		}
		return v, l.explain(err)
	})
}

// close is called when the pool is closed. It ends the connection that listens, so that the server
// sees that nobody waits here any more.
func (l *Locker) close() {
	l.closed.Store(true)
	if c := l.self.Load(); c != nil {
		c.Close()
	}
}

// exec runs a statement and returns how many rows it has changed.
func (r *request) exec(sql string, args ...any) (int64, error) {
	var changed int64
	err := r.send(sql, args, func(ctx context.Context, args []any) error {
		tag, err := r.conn.Exec(ctx, sql, args...)
		changed = tag.RowsAffected()
		return err
	})
	return changed, err
}

// query runs a statement and calls scan for each row that it returns.
func (r *request) query(scan func(pgx.Rows) error, sql string, args ...any) error {
	return r.send(sql, args, func(ctx context.Context, args []any) error {
		rows, err := r.conn.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			if err := scan(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	})
}

// send runs a statement, unless ctx ends before its last step.
func (r *request) send(sql string, args []any, run func(ctx context.Context, args []any) error) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	if err := r.limit(); err != nil {
		return err
	}
	ctx := context.WithoutCancel(r.ctx) // with its values, for tracers
	err := func() error {
		if r.l.isPrepared {
			// The first time on a connection, this is a round trip.
			if _, err := r.conn.Prepare(ctx, sql, sql); err != nil {
				return err
			}
			if err := r.limit(); err != nil {
				return err
			}
		} else {
			args = append([]any{r.l.mode}, args...)
		}
		if r.repeats {
			return r.readCommitted(ctx, func() error { return run(ctx, args) })
		}
		if err := r.ctx.Err(); err != nil {
			return err
		}
		return run(ctx, args)
	}()
	var refused *pgconn.PgError
	if err != nil && !errors.Is(err, r.ctx.Err()) && !errors.As(err, &refused) {
		// What is left of the exchange must not be taken for the answer to the next statement.
		r.close()
	}
	if r.conn.IsClosed() {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = fmt.Errorf("no answer within %v: %w", ioTimeout, err)
		}
		return err
	}
	return errors.Join(err, r.conn.PgConn().Conn().SetDeadline(time.Time{}))
}

// limit bounds the time of what is sent and received next.
func (r *request) limit() error {
	end := time.Now().Add(ioTimeout)
	if deadline, ok := r.ctx.Deadline(); ok && !r.near && deadline.Before(end) {
		end = deadline
	}
	return r.conn.PgConn().Conn().SetDeadline(end)
}

// readCommitted runs a statement at a level at which a change by another one since it began is no
// error. That is three requests.
func (r *request) readCommitted(ctx context.Context, run func() error) error {
	tx, err := r.conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return err
	}
	for _, step := range []func() error{run, func() error { return tx.Commit(ctx) }} {
		err := r.ctx.Err()
		if err == nil {
			err = step()
		}
		if err != nil {
			_ = tx.Rollback(ctx) // or the pool drops the connection
			return err
		}
	}
	return nil
}

// close ends the connection without waiting for the server.
func (r *request) close() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = r.conn.Close(ctx)
}
