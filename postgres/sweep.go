package postgres

import (
	"context"
	"runtime/pprof"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

const (
	sweepEvery = 5 * time.Minute // of a Locker that is used
	sweepAge   = 10 * time.Minute
	sweepMost  = 1000 // rows of one statement
	sweepLong  = time.Minute

	// Processes may live for less than sweepEvery. So one of this many Lockers sweeps at its first use.
	sweepFirst = 50
)

// sweepLater deletes unused rows from time to time, in the background. at is when it last did.
func (l *Locker) sweepLater(at *atomic.Int64, sweep func(context.Context) (int64, error)) {
	last, now := at.Load(), time.Since(l.start)
	if now-time.Duration(last) < sweepEvery || !at.CompareAndSwap(last, int64(now)) {
		return
	}
	go func() {
		pprof.SetGoroutineLabels(context.Background()) // it is not the work of the caller
		ctx, cancel := context.WithTimeout(context.Background(), sweepLong)
		defer cancel()
		for {
			swept, err := sweep(ctx)
			if err != nil || swept < sweepMost {
				return // if it failed, the next one may succeed
			}
		}
	}()
}

// sweepLocksLater is sweepLater for the table of locks.
func (l *Locker) sweepLocksLater() {
	l.sweepLater(&l.swept, func(ctx context.Context) (int64, error) { return l.sweep(ctx, sweepAge) })
}

// sweep deletes rows that were not used for that long, and returns how many.
func (l *Locker) sweep(ctx context.Context, age time.Duration) (int64, error) {
	return call(ctx, l, "", func(r *request) (int64, error) {
		return r.exec(l.sql.sweep, pgtype.Interval{Microseconds: age.Microseconds(), Valid: true}, sweepMost)
	})
}
