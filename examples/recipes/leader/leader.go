// Package leader elects one of several replicas.
package leader

import (
	"context"
	"log/slog"
	"time"

	"github.com/golockers/locker"
)

// Lead runs lead in one replica at a time, until ctx ends.
func Lead(ctx context.Context, l locker.Locker, replica string, lead func(context.Context) error) {
	for ctx.Err() == nil {
		err := locker.Do(ctx, l, "leader", 15*time.Second, lead, locker.WithRetry(), locker.WithOwner(replica))
		slog.InfoContext(ctx, "not the leader", "replica", replica, "error", err)
		select {
		case <-time.After(time.Second): // in case lead fails immediately
		case <-ctx.Done():
		}
	}
}
