package postgres

import (
	"context"
	"iter"
	"math"
	"time"

	"github.com/golockers/locker"
	"github.com/jackc/pgx/v5"
)

// Inspect reports who holds the lock of key, for how long, and how many wait in the queue, in one
// request. Waiters whose process has gone are counted until the queue passes them over. Inspect and
// List are the only operations that also work on a standby, which may lag. [locker.Break] returns
// an error there and changes nothing. The error is [locker.ErrNotHeld] if the standby does not know
// the lock.
func (l *Locker) Inspect(ctx context.Context, key string) (locker.Info, error) {
	found, err := l.infos(ctx, l.sql.inspect, key)
	if err != nil || len(found) == 0 {
		return locker.Info{Key: key}, err
	}
	return found[0], nil
}

// List yields the locks that are held and whose keys begin with prefix, as they were at one moment.
// It reads all of them in one request before it yields the first.
func (l *Locker) List(ctx context.Context, prefix string) iter.Seq2[locker.Info, error] {
	return func(yield func(locker.Info, error) bool) {
		found, err := l.infos(ctx, l.sql.list, prefix)
		if err != nil {
			yield(locker.Info{}, err)
			return
		}
		for _, info := range found {
			if !yield(info, nil) {
				return
			}
		}
	}
}

func (l *Locker) infos(ctx context.Context, sql, key string) ([]locker.Info, error) {
	return call(ctx, l, "", func(r *request) (found []locker.Info, err error) {
		err = r.query(func(rows pgx.Rows) error {
			var key, token []byte
			var left int64
			var waiters int
			if err := rows.Scan(&key, &token, &left, &waiters); err != nil {
				return err
			}
			found = append(found, locker.Info{
				Key: string(key), Token: string(token), TTL: fromMicroseconds(left), Waiters: waiters,
			})
			return nil
		}, sql, []byte(key))
		return found, err
	})
}

func fromMicroseconds(us int64) time.Duration {
	return time.Duration(min(us, math.MaxInt64/int64(time.Microsecond))) * time.Microsecond
}
