package etcd

import (
	"context"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// newClient returns a client as ExampleNew makes it, without a log.
func newClient(tb testing.TB, addrs ...string) *clientv3.Client {
	tb.Helper()
	client, err := clientv3.New(Tuned(clientv3.Config{Endpoints: addrs, Logger: zap.NewNop()}))
	require.NoError(tb, err)
	tb.Cleanup(func() { assert.NoError(tb, client.Close()) })
	return client
}

// withBackoff makes a client try again every few seconds to reach a server that was down for long.
func withBackoff() grpc.DialOption {
	params := backoff.DefaultConfig
	params.MaxDelay = 3 * time.Second
	return grpc.WithConnectParams(grpc.ConnectParams{Backoff: params, MinConnectTimeout: 3 * time.Second})
}

func TestConformance(t *testing.T) {
	srv := testserver.Etcd(t)
	admin := newClient(t, srv.Addr)
	conformance.Run(t, conformance.Config{
		New:         func(tb testing.TB, addr string) locker.Locker { return New(newClient(tb, addr)) },
		Addr:        srv.Addr,
		Granularity: 3 * time.Second,
		LoseData: func(ctx context.Context) error {
			_, err := admin.Delete(ctx, "", clientv3.WithPrefix())
			return err
		},
	})
}

func TestSemaphore(t *testing.T) {
	t.Parallel()
	conformance.RunSemaphore(t, conformance.SemaphoreConfig{
		New:         func(tb testing.TB, addr string) locker.Locker { return New(newClient(tb, addr)) },
		Addr:        testserver.Etcd(t).Addr,
		Granularity: 3 * time.Second,
	})
}
