package rueidis_test

import (
	"testing"
	"time"

	"github.com/golockers/locker/internal/redislock/redistest"
	"github.com/golockers/locker/internal/testserver"
	rueidisclient "github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
)

// A failover keeps what the replica has: the lock and its waiters.
func TestSentinelFailover(t *testing.T) {
	testserver.Variant(t, "only rueidis itself knows of the Sentinel")
	t.Parallel()
	var o rueidisclient.ClientOption
	o.Sentinel.MasterSet = "m"
	l := redistest.FailOver(t, func(sentinel string) redistest.Locker {
		o.InitAddress = []string{sentinel}
		return newLocker(t, o)
	})
	held, errs := list(t, l, "")
	assert.Equal(t, map[string]string{"k": "waiter"}, held)
	assert.Empty(t, errs)
	o.ConnLifetime = time.Hour
	assert.ErrorContains(t, operations(newLocker(t, o))["acquire"](t.Context(), "k", "t"), "ConnLifetime")
}
