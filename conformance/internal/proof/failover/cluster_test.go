//go:build linux

package failover

import (
	"net"
	"slices"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/faultproxy"
	"github.com/golockers/locker/conformance/internal/proof/rediscluster"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	rueidislocker "github.com/golockers/locker/rueidis"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
)

var clusterScenarios = []scenario{
	{name: "redisv9, Cluster: master killed", start: killClusterMaster(clusterRedisv9, false), slow: true},
	{
		name: "redisv9, Cluster: master killed, replica 0.2 s behind", loses: true, slow: true,
		start: killClusterMaster(clusterRedisv9, true),
	},
	{name: "redisv9, Cluster: master hangs and comes back", start: hangClusterMaster, slow: true},
	{name: "redisv9, Cluster: master cut off from its clients", start: cutOffClusterMaster, keeps: true, slow: true},
	{
		name: "redisv9, Cluster: master partitioned with half of its clients", slow: true,
		start: partitionCluster,
	},
	{name: "redisv9, Cluster: slots migrate", start: migrate(clusterRedisv9), keeps: true},
	{name: "rueidis, Cluster: master killed", start: killClusterMaster(clusterRueidis, false), slow: true},
	{name: "rueidis, Cluster: slots migrate", start: migrate(clusterRueidis), keeps: true, slow: true},
}

// cluster is a Cluster whose nodes the clients, and the replicas, reach through a proxy each. The
// nodes talk to each other directly.
type cluster struct {
	t               *testing.T
	nodes, replicas []*testserver.Server
	proxies         []*faultproxy.Proxy // of the nodes
	replication     []map[*faultproxy.Link]struct{}
	addrs           []string
}

func newCluster(t *testing.T, replicated bool) *cluster {
	t.Helper()
	c := &cluster{t: t}
	c.nodes, c.replicas = testserver.RedisClusterNodes(t, 3, replicated, "--cluster-node-timeout", "1000")
	for _, node := range c.nodes {
		p := faultproxy.New(t, node.Addr)
		_, port := split(t, p.Addr)
		require.NoError(t, rediscluster.Admin(t, node).ConfigSet(t.Context(), "cluster-announce-port", port).Err())
		c.proxies = append(c.proxies, p)
		c.addrs = append(c.addrs, p.Addr)
	}
	for _, node := range append(c.nodes, c.replicas...) {
		require.Eventually(t, func() bool {
			slots, err := rediscluster.Admin(t, node).ClusterSlots(t.Context()).Result()
			known := make(map[string]bool)
			for _, slot := range slots {
				known[slot.Nodes[0].Addr] = true
			}
			for _, addr := range c.addrs {
				if !known[addr] {
					return false
				}
			}
			return err == nil
		}, patience, 20*time.Millisecond, "the nodes do not know the proxies")
	}
	for i, replica := range c.replicas {
		// It connects again, now through the proxy.
		_, _ = rediscluster.Admin(t, c.nodes[i]).ClientKillByFilter(t.Context(), "type", "replica").Result()
		require.Eventually(t, func() bool {
			info := rediscluster.Admin(t, replica).InfoMap(t.Context(), "replication").Item("Replication", "master_link_status")
			return info == "up" && len(c.proxies[i].Connected()) > 0
		}, patience, 20*time.Millisecond, "the replica is not connected")
		c.replication = append(c.replication, c.proxies[i].Connected())
	}
	return c
}

func clusterRedisv9(tb testing.TB, addrs []string) locker.Locker {
	return openCluster(tb, &redis.ClusterOptions{Addrs: slices.Clone(addrs)}) // go-redis appends to it
}

func openCluster(tb testing.TB, o *redis.ClusterOptions) locker.Locker {
	o.ContextTimeoutEnabled, o.MaxRetries = true, -1
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = timeout, timeout, timeout
	client := redis.NewClusterClient(o)
	tb.Cleanup(func() { _ = client.Close() })
	return redisv9.New(client)
}

func clusterRueidis(tb testing.TB, addrs []string) locker.Locker {
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: addrs, DisableCache: true, Dialer: net.Dialer{Timeout: timeout}, ConnWriteTimeout: timeout,
	})
	require.NoError(tb, err)
	tb.Cleanup(client.Close)
	return rueidislocker.New(client)
}

// awaitFailover waits until all nodes that live agree that the first replica is a master.
func (c *cluster) awaitFailover() {
	c.t.Helper()
	_, port := split(c.t, c.replicas[0].Addr)
	for _, node := range append(c.nodes[1:len(c.nodes):len(c.nodes)], c.replicas...) {
		client := rediscluster.Admin(c.t, node)
		require.Eventually(c.t, func() bool {
			slots, err := client.ClusterSlots(c.t.Context()).Result()
			for _, slot := range slots {
				if slot.Nodes[0].Addr == net.JoinHostPort("127.0.0.1", port) {
					return err == nil
				}
			}
			return false
		}, patience, 20*time.Millisecond, "no failover")
	}
}

// killClusterMaster kills a master, perhaps after its replica has fallen behind.
func killClusterMaster(open func(tb testing.TB, addrs []string) locker.Locker, behind bool) start {
	return func(t *testing.T) *system {
		c := newCluster(t, true)
		return &system{
			open: func(tb testing.TB) locker.Locker { return open(tb, c.addrs) },
			key:  c.onFirst(),
			fail: func(l *load) {
				if behind {
					c.proxies[0].HangThese(c.replication[0])
					l.behind()
				}
				c.nodes[0].Stop()
				c.proxies[0].Cut()
				c.awaitFailover()
			},
		}
	}
}

// hangClusterMaster stops a master until its replica has taken over.
func hangClusterMaster(t *testing.T) *system {
	c := newCluster(t, true)
	return &system{
		open: func(tb testing.TB) locker.Locker { return clusterRedisv9(tb, c.addrs) },
		key:  c.onFirst(),
		fail: func(*load) { c.nodes[0].Pause(); c.awaitFailover() },
		heal: func() { c.nodes[0].Continue() },
	}
}

// cutOffClusterMaster cuts a master off from all clients for a while. The other nodes reach it, so
// there is no failover.
func cutOffClusterMaster(t *testing.T) *system {
	c := newCluster(t, false)
	return &system{
		open: func(tb testing.TB) locker.Locker { return clusterRedisv9(tb, c.addrs) },
		key:  c.onFirst(),
		fail: func(*load) {
			c.proxies[0].Hang()
			time.Sleep(2 * keeperTTL)
			c.proxies[0].Heal(t)
		},
	}
}

// onFirst returns a function that makes names of locks in a slot of the first node.
func (c *cluster) onFirst() func(key string) string {
	tag := rediscluster.Tag(c.t, c.nodes[0])
	return func(key string) string { return key + "{" + tag + "}" }
}

// migrate moves the slot of all locks from node to node, with everything in it.
func migrate(open func(tb testing.TB, addrs []string) locker.Locker) start {
	return func(t *testing.T) *system {
		c := newCluster(t, false)
		tag := rediscluster.Tag(c.t, c.nodes[0])
		return &system{
			open: func(tb testing.TB) locker.Locker { return open(tb, c.addrs) },
			key:  func(key string) string { return key + "{" + tag + "}" },
			fail: func(*load) {
				for i := range 2 * len(c.nodes) {
					rediscluster.Move(t, c.nodes, tag, i%len(c.nodes), (i+1)%len(c.nodes))
				}
			},
		}
	}
}
