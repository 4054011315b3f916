package redigo

import (
	"context"
	"testing"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance"
	"github.com/golockers/locker/internal/testserver"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	admin := newPool(t, addr)
	conformance.Run(t, conformance.Config{
		New:         func(tb testing.TB, addr string) locker.Locker { return New(newPool(tb, addr)) },
		Addr:        addr,
		Granularity: late,
		LoseData: func(ctx context.Context) error {
			conn, err := admin.GetContext(ctx)
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = conn.Do("FLUSHALL")
			return err
		},
	})
}
