package etcd

import (
	"testing"
	"time"

	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

func TestTuned(t *testing.T) {
	t.Parallel()
	given := clientv3.Config{Endpoints: []string{testserver.Etcd(t).Addr}, DialTimeout: time.Minute, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithUserAgent("u")}}
	tuned := Tuned(given)
	assert.Len(t, given.DialOptions, 1, "the caller's configuration was changed")
	assert.Equal(t, time.Minute, tuned.DialTimeout)
	assert.Equal(t, 10*time.Second, tuned.DialKeepAliveTime)
	assert.Equal(t, 3*time.Second, tuned.DialKeepAliveTimeout)
	assert.Len(t, tuned.DialOptions, 2)
	client, err := clientv3.New(tuned)
	require.NoError(t, err)
	defer func() { assert.NoError(t, client.Close()) }()
	isOK(t)(New(client).Acquire(t.Context(), "k", "t", time.Minute))
}
