package sqllock

// A driver whose answers a test makes up.

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"sync"
	"testing"
)

// fake is a database that answers each statement with the next of its answers, and the last again.
type fake struct {
	mu      sync.Mutex
	answers []any // an int64 or an error
	sent    []string
	levels  []sql.IsolationLevel // of transactions
}

func (f *fake) open(t *testing.T) *sql.DB {
	t.Helper()
	db := sql.OpenDB(f)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func (f *fake) answer(text string) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent = append(f.sent, text)
	answer := f.answers[0]
	if len(f.answers) > 1 {
		f.answers = f.answers[1:]
	}
	if err, ok := answer.(error); ok {
		return 0, err
	}
	return answer.(int64), nil
}

func (f *fake) Connect(context.Context) (driver.Conn, error) { return fakeConn{f}, nil }
func (f *fake) Driver() driver.Driver                        { return nil }

type fakeConn struct{ *fake }

func (c fakeConn) Close() error                        { return nil }
func (c fakeConn) Prepare(string) (driver.Stmt, error) { return nil, errors.ErrUnsupported }
func (c fakeConn) Begin() (driver.Tx, error)           { return nil, errors.ErrUnsupported }
func (c fakeConn) Commit() error                       { return nil }
func (c fakeConn) Rollback() error                     { return nil }

func (c fakeConn) BeginTx(_ context.Context, o driver.TxOptions) (driver.Tx, error) {
	c.levels = append(c.levels, sql.IsolationLevel(o.Isolation))
	return c, nil
}

func (c fakeConn) ExecContext(_ context.Context, text string, _ []driver.NamedValue) (driver.Result, error) {
	n, err := c.answer(text)
	return fakeResult(n), err
}

func (c fakeConn) QueryContext(_ context.Context, text string, _ []driver.NamedValue) (driver.Rows, error) {
	n, err := c.answer(text)
	if err != nil {
		return nil, err
	}
	return &fakeRows{n: n}, nil
}

type fakeResult int64

func (r fakeResult) LastInsertId() (int64, error) { return int64(r), nil }
func (r fakeResult) RowsAffected() (int64, error) { return 1, nil } // as with clientFoundRows

type fakeRows struct {
	n    int64
	read bool
}

func (r *fakeRows) Columns() []string { return []string{"n"} }
func (r *fakeRows) Close() error      { return nil }
func (r *fakeRows) Next(dest []driver.Value) error {
	if r.read || r.n == 0 {
		return io.EOF
	}
	dest[0], r.read = r.n, true
	return nil
}
