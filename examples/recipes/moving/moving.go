// Package moving moves locks from one backend to another while the service runs.
package moving

import (
	"context"
	"fmt"
	"time"

	"github.com/golockers/locker"
)

// Check returns an error if l cannot replace a backend whose locks have fencing numbers. Call it when
// the program starts.
func Check(l locker.Locker) error {
	if !locker.CanFence(l) {
		return fmt.Errorf("locks on %T have no fencing numbers", l)
	}
	return nil
}

// Both runs work under the lock of key on the old backend and on the new one, so it excludes processes
// that take it on either. All take them in this order.
func Both(ctx context.Context, before, after locker.Locker, key string, ttl time.Duration,
	work func(context.Context) error) error {
	return locker.Do(ctx, before, key, ttl, func(ctx context.Context) error {
		return locker.Do(ctx, after, key, ttl, work)
	})
}
