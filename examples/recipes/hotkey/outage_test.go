package hotkey

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// quickTable answers at once.
type quickTable struct{ Table }

func (quickTable) Query(_ context.Context, id string) (*User, error) { return &User{ID: id}, nil }

// BenchmarkOutage measures how long the first 1,000 calls of Load take, by 50 callers for 100 keys,
// when the Redis of the locks and the cache does not work.
func BenchmarkOutage(b *testing.B) {
	settings := map[string]redis.Options{
		"defaults": {ContextTimeoutEnabled: true},
		"docs": {
			ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1,
			DialTimeout: time.Second, ReadTimeout: time.Second, WriteTimeout: time.Second, PoolTimeout: time.Second,
		},
	}
	for _, outage := range []string{"refuses", "hangs"} {
		listener, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never replies
		require.NoError(b, err)
		defer listener.Close()
		if outage == "refuses" {
			require.NoError(b, listener.Close())
		}
		for name, options := range settings {
			b.Run(fmt.Sprintf("server=%s/settings=%s", outage, name), func(b *testing.B) {
				var took []time.Duration
				for b.Loop() {
					options.Addr = listener.Addr().String()
					took = append(took, loads(b, &options)...)
				}
				slices.Sort(took)
				for _, percent := range []int{50, 99, 100} {
					at := took[len(took)*percent/100-1]
					b.ReportMetric(float64(at)/float64(time.Millisecond), fmt.Sprintf("p%d-ms", percent))
				}
			})
		}
	}
}

// loads returns how long 1,000 calls take with a new client.
func loads(tb testing.TB, options *redis.Options) []time.Duration {
	tb.Helper()
	client := redis.NewClient(options)
	users := NewUsers(redisv9.New(client), client, quickTable{})
	took := make([]time.Duration, 1000)
	var callers sync.WaitGroup
	for caller := range 50 {
		callers.Go(func() {
			for i := caller; i < len(took); i += 50 {
				began := time.Now()
				_, err := users.Load(context.Background(), fmt.Sprint(i/10))
				took[i] = time.Since(began)
				assert.NoError(tb, err)
			}
		})
	}
	callers.Wait()
	require.NoError(tb, users.Close(context.Background()))
	require.NoError(tb, client.Close())
	return took
}
