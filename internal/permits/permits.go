// Package permits is how package semaphore uses the queue that a backend keeps for the permits of a
// semaphore. A backend without such a queue has one for each lock, or none.
//
// The package is internal because a user's Locker need not have such a queue: package semaphore
// works with any Locker.
package permits

import (
	"context"
	"time"

	"github.com/golockers/locker"
)

// Keeper is a Locker whose backend keeps such queues.
type Keeper interface {
	// Permits returns the permits of a semaphore, which are the locks name/1 to name/n. It returns
	// nil if the backend cannot keep a queue for them. It makes no request.
	//
	// It also returns nil unless l is the Keeper. A Locker that embeds the Keeper has this method as
	// well, but its other methods may do something else.
	Permits(l locker.Locker, name string, n int) Permits
}

// Permits are the permits of a semaphore. A token holds no more than one of them. The methods do what
// those of the Locker with the same names do with a lock. Permits are numbered from 1 on.
type Permits interface {
	// Acquire returns the number of the permit, or 0 if all are taken or waiters are before the caller.
	Acquire(ctx context.Context, token string, ttl time.Duration) (permit int, err error)
	Wait(ctx context.Context, token string, ttl time.Duration) (permit int, deadline time.Time, err error)
	// Extend returns the number of the permit that the token holds, or 0.
	Extend(ctx context.Context, token string, ttl time.Duration) (permit int, err error)
	Release(ctx context.Context, token string) (released bool, err error)
}
