package singleflight

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/golockers/locker"
)

// This file has the last step of a load: to release its lock.

// unlock releases the lock, and tries once more if that fails. The error does not concern the
// callers: they have the value, and the lock ends with its ttl.
func (l *Loader[V]) unlock(ctx context.Context, lease *locker.Lease) {
	defer l.lifetime.drop(lease)
	for range 2 {
		began := time.Now()
		err := lease.Unlock(ctx)
		if err == nil || errors.Is(err, locker.ErrNotHeld) {
			return
		}
		key := strings.TrimPrefix(lease.Key(), l.keyPrefix)
		_ = l.lockBreaker.failed(context.WithoutCancel(ctx), key, began, err)
	}
}

// unlockBehind is unlock in the background. Close waits for it.
func (l *Loader[V]) unlockBehind(ctx context.Context, lease *locker.Lease) {
	l.lifetime.follow()
	go func() {
		defer l.lifetime.end(nil)
		l.unlock(ctx, lease)
	}()
}

// isHeld reports whether lease is not known to be lost.
func isHeld(lease *locker.Lease) bool {
	select {
	case <-lease.Lost():
		return false
	default:
		return time.Now().Before(lease.Deadline())
	}
}
