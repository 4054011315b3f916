package postgres

import (
	"context"
	"encoding/hex"
	"iter"
	"math"
	"time"

	"github.com/golockers/locker"
	"github.com/jackc/pgx/v5"
)

// Inspect reports who holds the lock of key, for how long, and how many processes wait in the queue,
// in one request. Those that have gone are counted until the queue passes them over. Inspect and
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
			var names [2]string
			var left int64
			var waiters int
			err := rows.Scan(&names[0], &names[1], &left, &waiters)
			for i := range names {
				if err == nil {
					var name []byte
					name, err = hex.DecodeString(names[i])
					names[i] = string(name)
				}
			}
			found = append(found, locker.Info{Key: names[0], Token: names[1], TTL: fromMicroseconds(left), Waiters: waiters})
			return err
		}, sql, []byte(key))
		return found, err
	})
}

func fromMicroseconds(us int64) time.Duration {
	return time.Duration(min(us, math.MaxInt64/int64(time.Microsecond))) * time.Microsecond
}
