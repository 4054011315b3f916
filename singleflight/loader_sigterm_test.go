package singleflight

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/fleet"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
)

// staleRedisCache claims to have a stale value for every key.
type staleRedisCache struct{ redisCache }

func (staleRedisCache) Stale(context.Context, string) (string, bool, error) {
	return "stale", true, nil
}

// refreshing is the report of a process that a refresh has begun, or of how its Close ended.
type refreshing struct {
	Closed bool
	Took   time.Duration // by Close
	Error  string        // of Close
}

// refresh is the order of a process that gets SIGTERM while it refreshes a stale value.
type refresh struct {
	Addr     string
	Stubborn bool          // the source ignores its context
	Patience time.Duration // of Close
}

func runRefresher(c *fleet.Child) {
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	var o refresh
	c.Receive(&o)
	client := redis.NewClient(&redis.Options{Addr: o.Addr, ContextTimeoutEnabled: true})
	loader := NewLoader(redisv9.New(client), Cache[string](staleRedisCache{redisCache{client}}),
		func(ctx context.Context, _ string) (string, error) {
			c.Report(refreshing{})
			if o.Stubborn {
				time.Sleep(time.Hour)
			}
			<-ctx.Done()
			return "", ctx.Err()
		})
	if _, err := loader.Load(context.Background(), fleetKey); err != nil {
		c.Report(refreshing{Error: err.Error()})
	}
	<-terminated
	ctx, cancel := context.WithTimeout(context.Background(), o.Patience)
	defer cancel()
	start := time.Now()
	r := refreshing{Closed: true}
	if err := loader.Close(ctx); err != nil {
		r.Error = err.Error()
	}
	r.Took = time.Since(start)
	_ = client.Close()
	c.Report(r)
}

// A process that gets SIGTERM during the refresh of a stale value, and calls Close, leaves no lock behind.
func TestCloseOnSIGTERM(t *testing.T) {
	server := testserver.Redis(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	t.Cleanup(func() { client.Close() })
	locks := redisv9.New(client)
	for name, o := range map[string]refresh{
		"source honors its context":  {server.Addr, false, time.Minute},
		"source ignores its context": {server.Addr, true, 100 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			f, err := fleet.Start("refresher", 1)
			require.NoError(t, err)
			t.Cleanup(f.Kill)
			require.NoError(t, f.Send(o))
			var r refreshing
			require.NoError(t, f[0].Receive(ctx, &r))
			require.Zero(t, r)
			_, err = locker.TryLock(ctx, locks, fleetKey, time.Second)
			require.ErrorIs(t, err, locker.ErrHeld, "by the refresh")

			require.NoError(t, f[0].Signal(syscall.SIGTERM))
			require.NoError(t, f[0].Receive(ctx, &r))
			require.True(t, r.Closed)
			t.Logf("Close took %v", r.Took)
			if o.Stubborn {
				require.Equal(t, "singleflight: close: context deadline exceeded", r.Error)
			} else {
				require.Empty(t, r.Error)
			}
			require.ErrorIs(t, f[0].Receive(ctx, &r), fleet.ErrEnded)

			lease, err := locker.TryLock(ctx, locks, fleetKey, time.Minute)
			require.NoError(t, err, "a lock is left behind")
			require.NoError(t, lease.Unlock(ctx))
		})
	}
}
