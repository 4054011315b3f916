package locker

import (
	"context"
	"sync/atomic"
	"time"
)

const (
	cleanupWindow = 5 * time.Second // how long a clean-up goes on at most; the lock's ttl ends it, too
	maxCleanups   = 256             // how many run at once in the process
	cleanupRest   = 5 * time.Millisecond
	cleanupCap    = time.Second
)

var cleanups atomic.Int64

// cleanUp releases, in the background, a token that may hold the lock without anybody's knowing: its
// acquisition ended in an error, or too late. The request that took the lock may still be under way when
// the first Release arrives, so it is repeated, until one says true, while the ttl or the window lasts.
//
// Above maxCleanups nothing is started: the lock then ends with its ttl.
func cleanUp(ctx context.Context, l Locker, key, token string, ttl time.Duration) {
	if cleanups.Add(1) > maxCleanups {
		cleanups.Add(-1)
		return
	}
	go func() {
		defer cleanups.Add(-1)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(ttl, cleanupWindow))
		defer cancel()
		for rest := cleanupRest; ; rest = min(2*rest, cleanupCap) {
			if released, err := l.Release(ctx, key, token); released && err == nil {
				return
			}
			if sleep(ctx, rest, nil) != nil {
				return
			}
		}
	}()
}

// sleep returns ctx's error when ctx ends first, and nil after d or when woken. A nil channel never wakes.
func sleep(ctx context.Context, d time.Duration, woken <-chan struct{}) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-woken:
	case <-timer.C:
	}
	return ctx.Err()
}
