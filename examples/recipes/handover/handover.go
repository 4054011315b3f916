// Package handover takes a lock in one process and works under it in another.
package handover

import (
	"context"
	"database/sql"
	"time"

	"github.com/golockers/locker"
)

// Job is the message to the process that does the work.
type Job struct{ Invoice, Token string }

// Accept takes the lock of the invoice and leaves it to the worker that gets the job. It reports
// false if the invoice is being paid already. If enqueue fails, the lock ends with its ttl.
func Accept(ctx context.Context, l locker.Locker, invoice string, enqueue func(context.Context, Job) error) (bool, error) {
	return locker.TryDo(ctx, l, "invoice/"+invoice, time.Minute, func(ctx context.Context) error {
		lease := locker.FromContext(ctx)
		lease.Detach() // first, since the worker may have the job even if enqueue fails
		return enqueue(ctx, Job{invoice, lease.Token()})
	})
}

// Pay does the job. If the worker got it too late, the error is [locker.ErrNotHeld].
func Pay(ctx context.Context, l locker.Locker, db *sql.DB, job Job, charge func(context.Context) error) error {
	return locker.ResumeDo(ctx, l, "invoice/"+job.Invoice, job.Token, time.Minute, func(ctx context.Context) error {
		fence, err := locker.FromContext(ctx).Fence(ctx)
		if err != nil {
			return err
		}
		if err := charge(ctx); err != nil {
			return err
		}
		return markPaid(ctx, db, job, fence)
	})
}

// markPaid returns [sql.ErrNoRows] if a later holder of the lock has written.
func markPaid(ctx context.Context, db *sql.DB, job Job, fence uint64) error {
	return db.QueryRowContext(ctx, `UPDATE invoices SET status = 'paid', fence = $1, holder = $2
		WHERE id = $3 AND (fence < $1 OR fence = $1 AND holder = $2) RETURNING id`,
		fence, job.Token, job.Invoice).Scan(new(string))
}
