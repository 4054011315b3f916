// Package permits is the interface between package semaphore and backends that keep one queue for
// all permits of a semaphore. Other backends keep a queue for each lock, or none.
//
// The package is internal, since package semaphore works with any Locker: a user's Locker need not
// keep such a queue.
package permits

import (
	"context"
	"time"

	"github.com/golockers/locker"
)

// Keeper is a Locker whose backend keeps one queue for all permits of a semaphore.
type Keeper interface {
	// Permits returns the permits of a semaphore, which are the locks name/1 to name/n. It returns
	// nil if the backend cannot keep a queue for them. It makes no request.
	//
	// Permits also returns nil unless l is the Keeper itself. A Locker that embeds the Keeper has
	// this method as well, but its other methods may do something else.
	Permits(l locker.Locker, name string, n int) Permits
}

// Permits are the permits of a semaphore, numbered from 1. A token holds no more than one of them.
// Each method does with a permit what the Locker's method of the same name does with a lock.
type Permits interface {
	// Acquire returns the number of the permit, or 0 if all permits are taken or others wait.
	Acquire(ctx context.Context, token string, ttl time.Duration) (permit int, err error)
	Wait(ctx context.Context, token string, ttl time.Duration) (permit int, deadline time.Time, err error)
	// Extend returns the number of the permit that the token holds, or 0.
	Extend(ctx context.Context, token string, ttl time.Duration) (permit int, err error)
	Release(ctx context.Context, token string) (released bool, err error)
}
