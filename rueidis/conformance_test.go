package rueidis_test

import (
	"context"
	"crypto/tls"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/golockers/locker/rueidis"
	"github.com/golockers/locker/semaphore"
	"github.com/redis/go-redis/v9"
	rueidisclient "github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
)

// variants is why the suite runs once for most changes.
const variants = "the suite runs on a single server, and other tests cover what differs"

// TestConformance runs the suite on every kind of client and server: with faults in between if
// there is a single address. rueidis's pings would be taken for requests of the Locker there, so
// they are rare; and a Cluster's nodes are reached through the proxy although it has another
// address.
func TestConformance(t *testing.T) {
	for name, o := range map[string]rueidisclient.ClientOption{
		"single":                {},
		"DisableRetry":          {DisableRetry: true},
		"AlwaysPipelining":      {AlwaysPipelining: true},
		"DisableAutoPipelining": {DisableAutoPipelining: true},
		"RESP2":                 {AlwaysRESP2: true, DisableCache: true},
		"Cluster client":        {},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "single" {
				testserver.Variant(t, variants)
			}
			t.Parallel()
			start := func() string { return testserver.Redis(t).Addr }
			if name == "Cluster client" {
				start = func() string { return testserver.RedisCluster(t, 1)[0] }
			}
			admin := newAdmin(t, start())
			conformance.Run(t, conformance.Config{
				Addr:     admin.Options().Addr,
				LoseData: func(ctx context.Context) error { return admin.FlushAll(ctx).Err() },
				New: func(tb testing.TB, addr string) locker.Locker {
					o := o
					o.InitAddress = []string{addr}
					o.Dialer.KeepAlive, o.ConnWriteTimeout = 10*time.Second, 5*time.Second
					o.DialCtxFn = func(ctx context.Context, _ string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
						return d.DialContext(ctx, "tcp", addr)
					}
					return newLocker(tb, o)
				},
			})
		})
	}
	t.Run("defaults", func(t *testing.T) {
		testserver.Variant(t, variants)
		t.Parallel()
		addr := testserver.Redis(t).Addr
		conformance.Run(t, conformance.Config{New: func(tb testing.TB, _ string) locker.Locker { return at(tb, addr) }})
	})
	t.Run("Cluster", func(t *testing.T) {
		testserver.Variant(t, variants)
		t.Parallel()
		nodes := testserver.RedisCluster(t, 3)
		admin := redis.NewClusterClient(&redis.ClusterOptions{Addrs: nodes})
		t.Cleanup(func() { _ = admin.Close() })
		conformance.Run(t, conformance.Config{
			New: func(tb testing.TB, _ string) locker.Locker {
				return newLocker(tb, rueidisclient.ClientOption{InitAddress: nodes})
			},
			LoseData: func(ctx context.Context) error {
				return admin.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error { return c.FlushAll(ctx).Err() })
			},
		})
	})
}

// newClient returns a client that is closed when the test ends. Its connections have smaller
// buffers than the default of 1 MiB, which is a lot for all the clients of the suite.
func newClient(tb testing.TB, o rueidisclient.ClientOption) rueidisclient.Client {
	tb.Helper()
	o.ReadBufferEachConn, o.WriteBufferEachConn = 1<<15, 1<<15
	client, err := rueidisclient.NewClient(o)
	require.NoError(tb, err)
	tb.Cleanup(client.Close)
	return client
}

func newLocker(tb testing.TB, o rueidisclient.ClientOption) *rueidis.Locker {
	tb.Helper()
	return rueidis.New(newClient(tb, o))
}

// at returns a Locker with default options.
func at(tb testing.TB, addr string) *rueidis.Locker {
	tb.Helper()
	return newLocker(tb, rueidisclient.ClientOption{InitAddress: []string{addr}})
}

// lockQueues hides from a semaphore that rueidis keeps one queue for all permits, so that it uses
// the queue of an additional lock.
type lockQueues struct{ *rueidis.Locker }

func TestSemaphore(t *testing.T) {
	t.Parallel()
	patient := func(tb testing.TB, addr string) *rueidis.Locker {
		o := rueidisclient.ClientOption{InitAddress: []string{addr}, ConnWriteTimeout: 5 * time.Second}
		o.Dialer.KeepAlive = 10 * time.Second
		return newLocker(tb, o)
	}
	for name, open := range map[string]func(tb testing.TB, addr string) locker.Locker{
		"one queue":       func(tb testing.TB, addr string) locker.Locker { return patient(tb, addr) },
		"queues of locks": func(tb testing.TB, addr string) locker.Locker { return lockQueues{patient(tb, addr)} },
	} {
		t.Run(name, func(t *testing.T) {
			if name != "one queue" {
				testserver.Variant(t, "package semaphore has it on redisv9, which shares the queues")
			}
			t.Parallel()
			conformance.RunSemaphore(t, conformance.SemaphoreConfig{Addr: testserver.Redis(t).Addr, New: open})
		})
	}
	t.Run("one permit", func(t *testing.T) {
		testserver.Variant(t, "package semaphore has it on redisv9, which shares the queues")
		t.Parallel()
		conformance.Run(t, conformance.Config{
			Addr: testserver.Redis(t).Addr,
			New:  func(tb testing.TB, addr string) locker.Locker { return semaphore.NewLocker(patient(tb, addr), 1) },
		})
	})
	// A process of either package releases, and hands the permit to one of the same or the other
	// package.
	t.Run("with redisv9", func(t *testing.T) {
		testserver.Variant(t, "package semaphore has it on redisv9, which shares the queues")
		t.Parallel()
		var opened atomic.Int64
		conformance.RunSemaphore(t, conformance.SemaphoreConfig{
			Addr: testserver.Redis(t).Addr,
			New: func(tb testing.TB, addr string) locker.Locker {
				if opened.Add(1)%2 == 0 {
					return patient(tb, addr)
				}
				return redisv9.New(newAdmin(tb, addr))
			},
		})
	})
}
