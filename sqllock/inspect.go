package sqllock

// Who holds which lock.

import (
	"context"
	"iter"
	"math"
	"time"

	"github.com/golockers/locker"
)

// Inspect reports who holds the lock of key and for how long. How many wait is not known. Inspect
// and List are the only operations that also work on a replica that only reads, which may lag.
// [locker.Break] returns an error there and changes nothing.
func (l *Locker) Inspect(ctx context.Context, key string) (locker.Info, error) {
	found, err := l.infos(ctx, "inspect", parameters{"key": []byte(key)})
	if err != nil || len(found) == 0 {
		info := locker.Info{Key: key}
		if err == nil {
			info.Waiters = -1
		}
		return info, err
	}
	return found[0], nil
}

// List yields the locks that are held and whose keys begin with prefix, as they were at one moment.
// It reads all of them in one request before it yields the first.
func (l *Locker) List(ctx context.Context, prefix string) iter.Seq2[locker.Info, error] {
	return func(yield func(locker.Info, error) bool) {
		found, err := l.infos(ctx, "list", parameters{"prefix": []byte(prefix)})
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

func (l *Locker) infos(ctx context.Context, name string, p parameters) ([]locker.Info, error) {
	return call(ctx, l, name, "", func(ctx context.Context, q querier, s statement) (found []locker.Info, err error) {
		err = query(ctx, q, s.text, s.args(p), func(row scanner) error {
			var key, token []byte
			var left int64
			if err := row.Scan(&key, &token, &left); err != nil {
				return err
			}
			ttl := time.Duration(min(left, math.MaxInt64/int64(time.Microsecond))) * time.Microsecond
			found = append(found, locker.Info{Key: string(key), Token: string(token), TTL: ttl, Waiters: -1})
			return nil
		})
		return found, err
	})
}
