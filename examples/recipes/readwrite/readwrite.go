// Package readwrite changes a row in three steps, a read, some work and a write, with a fencing number.
package readwrite

import (
	"context"
	"database/sql"
	"time"

	"github.com/golockers/locker"
)

// Change replaces the balance of an account with what work makes of it. The error is [sql.ErrNoRows]
// if a later holder of the lock has read the account meanwhile: then nothing is written.
func Change(ctx context.Context, l locker.Locker, db *sql.DB, account string, ttl time.Duration,
	work func(ctx context.Context, balance int) (int, error)) error {
	return locker.Do(ctx, l, "account/"+account, ttl, func(ctx context.Context) error {
		fence, err := locker.FromContext(ctx).Fence(ctx)
		if err != nil {
			return err
		}
		var balance int
		if err := db.QueryRowContext(ctx, `UPDATE accounts SET fence = $1 WHERE id = $2 AND fence < $1
			RETURNING balance`, fence, account).Scan(&balance); err != nil {
			return err
		}
		if balance, err = work(ctx, balance); err != nil {
			return err
		}
		return db.QueryRowContext(ctx, `UPDATE accounts SET balance = $1 WHERE id = $2 AND fence = $3
			RETURNING id`, balance, account, fence).Scan(new(string))
	})
}
