package redigo

import (
	"testing"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance"
	"github.com/golockers/locker/internal/testserver"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, conformance.Config{
		New:         func(tb testing.TB, addr string) locker.Locker { return New(newPool(tb, addr)) },
		Addr:        testserver.Redis(t).Addr,
		Granularity: late,
	})
}
