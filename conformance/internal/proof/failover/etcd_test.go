//go:build linux

package failover

import (
	"context"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/etcd"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

var etcdScenarios = []scenario{
	{
		name: "etcd: leader killed", keeps: true, slow: true,
		start: disturbEtcd((*testserver.Server).Stop, (*testserver.Server).Restart),
	},
	{
		name: "etcd: leader stopped and continued", keeps: true, slow: true,
		start: disturbEtcd((*testserver.Server).Pause, (*testserver.Server).Continue),
	},
}

func openEtcd(tb testing.TB, addrs ...string) *clientv3.Client {
	tb.Helper()
	client, err := clientv3.New(clientv3.Config{
		Endpoints: addrs, Logger: zap.NewNop(),
		// Or it goes on asking a member that hangs. Servers do not allow more frequent ones.
		DialKeepAliveTime: 5 * time.Second, DialKeepAliveTimeout: timeout,
	})
	require.NoError(tb, err)
	tb.Cleanup(func() { client.Close() })
	return client
}

// disturbEtcd does something to the leader of three members, and undoes it when there is another.
func disturbEtcd(do, undo func(*testserver.Server)) start {
	return func(t *testing.T) *system {
		members := testserver.EtcdCluster(t, 3)
		var addrs []string
		for _, m := range members {
			addrs = append(addrs, m.Addr)
		}
		var old *testserver.Server
		return &system{
			open: func(tb testing.TB) locker.Locker { return etcd.New(openEtcd(tb, addrs...)) },
			fail: func(*load) {
				old = leader(t, members)
				do(old)
				var others []*testserver.Server
				for _, m := range members {
					if m != old {
						others = append(others, m)
					}
				}
				leader(t, others)
			},
			heal: func() { undo(old) },
		}
	}
}

// leader waits until one of members says that it leads.
func leader(t *testing.T, members []*testserver.Server) (found *testserver.Server) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, m := range members {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			status, err := openEtcd(t, m.Addr).Status(ctx, m.Addr)
			cancel()
			if err == nil && status.Leader == status.Header.MemberId {
				found = m
				return true
			}
		}
		return false
	}, patience, 20*time.Millisecond, "no leader")
	return found
}
