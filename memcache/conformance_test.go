package memcache

import (
	"testing"
	"time"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
)

// The client has its defaults, except for the timeout: on a busy machine a proxy can take longer
// than half a second, after which the client considers a server dead.
func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, conformance.Config{
		New: func(tb testing.TB, addr string) locker.Locker {
			client := gomemcache.New(addr)
			client.Timeout = 3 * time.Second
			tb.Cleanup(func() { assert.NoError(tb, client.Close()) })
			return New(client)
		},
		Addr:        testserver.Memcached(t).Addr,
		Granularity: 3 * time.Second,
	})
}
