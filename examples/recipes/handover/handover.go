// Package handover takes a lock in one process and works under it in another.
package handover

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/golockers/locker"
)

// Job is the message to the process that does the work.
type Job struct{ Invoice, Token string }

// Accept takes the lock of the invoice and leaves it to the worker that gets the job. If the
// invoice is being paid already, the error is [locker.ErrHeld]. If enqueue fails, the lock ends with
// its ttl.
func Accept(ctx context.Context, l locker.Locker, invoice string, enqueue func(context.Context, Job) error) error {
	lease, err := locker.TryLock(ctx, l, "invoice/"+invoice, time.Minute)
	if err != nil {
		return err
	}
	lease.Detach() // first, since the worker may have the job even if enqueue fails
	return enqueue(ctx, Job{invoice, lease.Token()})
}

// Pay does the job. If the worker got it too late, the error is [locker.ErrNotHeld].
func Pay(ctx context.Context, l locker.Locker, db *sql.DB, job Job, charge func(context.Context) error) (err error) {
	lease, err := locker.Resume(ctx, l, "invoice/"+job.Invoice, job.Token, time.Minute, locker.WithKeepAlive())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lease.Unlock(ctx)) }()
	ctx, stop := lease.Context(ctx)
	defer stop()
	fence, err := lease.Fence(ctx)
	if err != nil {
		return err
	}
	if err := charge(ctx); err != nil {
		return err
	}
	return markPaid(ctx, db, job.Invoice, fence, lease.Token())
}

var errStale = errors.New("another worker has paid the invoice meanwhile")

// markPaid is refused if a later holder of the lock has written.
func markPaid(ctx context.Context, db *sql.DB, invoice string, fence uint64, token string) error {
	result, err := db.ExecContext(ctx, `UPDATE invoices SET status = 'paid', fence = $1, holder = $2
		WHERE id = $3 AND (fence < $1 OR fence = $1 AND holder = $2)`, fence, token, invoice)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return errors.Join(errStale, err)
	}
	return nil
}
