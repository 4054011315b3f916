package sqllock

// Rows that are no longer needed are deleted by those who add rows.

import (
	"context"
	"database/sql"
	"runtime/pprof"
	"time"
)

const (
	sweepEvery = 64 // successful calls of Acquire; a sweep deletes up to 100 rows
	sweepAge   = 10 * time.Minute
)

// sweepLater deletes unused rows in the background, one time in sweepEvery.
func (l *Locker) sweepLater() {
	if l.uses.Add(1)%sweepEvery != 0 || l.statements["sweep"].text == "" {
		return
	}
	go func() {
		pprof.SetGoroutineLabels(context.Background()) // it is not the work of the caller
		_ = l.sweep(context.Background())              // if it fails, the next one may succeed
	}()
}

// sweep deletes some rows that were not used for sweepAge.
func (l *Locker) sweep(ctx context.Context) error {
	_, err := call(ctx, l, "sweep", "", func(ctx context.Context, q querier, s statement) (sql.Result, error) {
		return q.ExecContext(ctx, s.text, s.args(parameters{"age": sweepAge.Microseconds()})...)
	})
	return err
}
