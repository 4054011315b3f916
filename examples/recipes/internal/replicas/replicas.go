// Package replicas gives the tests of the recipes the Lockers of several replicas of one service.
package replicas

import (
	"testing"
	"time"

	"github.com/golockers/locker/internal/testserver"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
)

// Clients starts a Redis server and returns n clients of it, one for each replica, with the
// settings of docs/operations.md and more patience for a busy machine.
func Clients(tb testing.TB, n int) []redis.UniversalClient {
	tb.Helper()
	addr := testserver.Redis(tb).Addr
	clients := make([]redis.UniversalClient, n)
	for i := range clients {
		client := redis.NewClient(&redis.Options{
			Addr:                  addr,
			ContextTimeoutEnabled: true,
			MaxRetries:            -1,
			DialTimeout:           10 * time.Second,
			ReadTimeout:           10 * time.Second,
			WriteTimeout:          10 * time.Second,
			PoolTimeout:           10 * time.Second,
		})
		tb.Cleanup(func() { assert.NoError(tb, client.Close()) })
		clients[i] = client
	}
	return clients
}
