package rueidis_test

import (
	"testing"
	"time"

	"github.com/golockers/locker/conformance"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/golockers/locker/rueidis"
	"github.com/golockers/locker/window"
	rueidisclient "github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCounterConformance(t *testing.T) {
	t.Parallel()
	conformance.RunCounter(t, conformance.CounterConfig{
		Addr: testserver.Redis(t).Addr,
		New: func(tb testing.TB, addr string) window.Counter {
			o := rueidisclient.ClientOption{InitAddress: []string{addr}, ConnWriteTimeout: 5 * time.Second}
			o.Dialer.KeepAlive = 10 * time.Second
			return newLocker(tb, o)
		},
	})
}

// Counts are those of redisv9.
func TestCounterInterop(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	ours, theirs := at(t, addr), redisv9.New(newAdmin(t, addr))
	rule := window.Rule{Limit: 3, Per: window.MaxPer}
	for i, c := range []window.Enforcer{ours, theirs, theirs, ours} {
		_, counted, err := c.CountUnder(t.Context(), "k", 1, rule)
		require.NoError(t, err)
		assert.Equal(t, i < 3, counted)
	}
}

func TestCounterOfNil(t *testing.T) {
	_, err := rueidis.New(nil).Count(t.Context(), "k", 1, time.Second)
	assert.ErrorContains(t, err, "nil client")
}
