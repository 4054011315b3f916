package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/golockers/locker/internal/pubsub"
	"github.com/jackc/pgx/v5"
)

var errPooler = fmt.Errorf("a pooler between this process and the server does not pass on notifications: %w",
	errors.ErrUnsupported)

// Watch returns a channel that receives a value when the lock of key is released, and when a
// release may have been missed: once when the connection breaks and once when it is back, in both
// cases a thousand watchers a second. An expiry is not signaled.
//
// All watchers of a Locker share one connection beside the pool's, which is opened for the first
// and kept for half a minute after the last. They mark the rows of their keys once in 20 seconds;
// only releases of marked rows send notifications. If a dial or the server hangs, Watch returns
// within about 6 seconds. Behind a pooler the error is [errors.ErrUnsupported].
func (l *Locker) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	if err := l.checkPath(ctx); err != nil {
		return nil, err
	}
	return pubsub.Watch(ctx, watchChannel(key), l.hub)
}

// What is between this process and the server.
const (
	unknown int32 = iota
	nothing
	pooler
)

// checkPath returns errPooler behind a pooler, which tells clients another process id than the
// server's. It makes a request for the first call only.
func (l *Locker) checkPath(ctx context.Context) error {
	if l.path.Load() == unknown || ctx.Err() != nil || l.err != nil {
		path, err := call(ctx, l, "", func(r *request) (path int32, err error) {
			path = pooler
			err = r.query(func(rows pgx.Rows) error {
				var pid int32
				err := rows.Scan(&pid)
				if uint32(pid) == r.conn.PgConn().PID() {
					path = nothing
				}
				return err
			}, "SELECT pg_backend_pid()")
			return path, err
		})
		if err != nil {
			return err
		}
		l.path.Store(path)
	}
	if l.path.Load() == pooler {
		return errPooler
	}
	return nil
}
