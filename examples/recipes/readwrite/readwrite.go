// Package readwrite changes a row in three steps, a read, some work and a write, with a fencing number.
package readwrite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/sqllock"
)

// ErrUnknown is wrapped by an error after which the change may have been written or not.
var ErrUnknown = errors.New("the commit has no answer")

// Change replaces the balance of an account with what work makes of it. It writes nothing if a later
// holder of the lock has read the account meanwhile. written is true if it has written, even if the
// error is [locker.ErrNotHeld] because the lock was lost after that.
func Change(ctx context.Context, l locker.Locker, db *sql.DB, account string, ttl time.Duration,
	work func(ctx context.Context, balance int) (int, error)) (written bool, err error) {
	key := "account/" + account
	err = locker.Do(ctx, l, key, ttl, func(ctx context.Context) error {
		fence, err := locker.FromContext(ctx).Fence(ctx)
		if err != nil {
			return err
		}
		var balance int
		if err := guarded(ctx, db, key, fence, func(tx *sql.Tx) error {
			return tx.QueryRowContext(ctx, "SELECT balance FROM accounts WHERE id = ?", account).Scan(&balance)
		}); err != nil {
			return err
		}
		if balance, err = work(ctx, balance); err != nil {
			return err
		}
		err = guarded(ctx, db, key, fence, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = ? WHERE id = ?", balance, account)
			return err
		})
		written = err == nil
		return err
	})
	return written, err
}

// guarded runs do in a transaction, unless a later holder of the lock has run one.
func guarded(ctx context.Context, db *sql.DB, key string, fence uint64, do func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // after a commit it does nothing
	if err := sqllock.Guard(ctx, tx, sqllock.SQLite, key, fence); err != nil {
		return err
	}
	if err := do(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return nil
}
