// Package migrate brings a database's schema up to date from one of several replicas.
package migrate

import (
	"context"
	"time"

	"github.com/golockers/locker"
	"github.com/pressly/goose/v3"
)

// Up runs the migrations that are pending. Replicas that call it meanwhile wait for it.
func Up(ctx context.Context, l locker.Locker, provider *goose.Provider) error {
	return locker.Do(ctx, l, "migrations", time.Minute, func(ctx context.Context) error {
		_, err := provider.Up(ctx)
		return err
	}, locker.WithRetry())
}
