package disturb

import (
	"strings"
	"testing"
	"time"

	"github.com/golockers/locker/conformance/internal/proof/load"
	"github.com/golockers/locker/conformance/internal/proof/rediscluster"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/require"
)

var onNodes = map[string][]load.Open{"redisv9 and rueidis": {load.Redisv9Cluster, load.Rueidis}}

// onCluster is three masters. All locks are in one slot.
var onCluster = backend{
	start:    startCluster(false),
	adapters: onNodes,
	base:     load.Redisv9Cluster,
	slow:     true,
	repeats:  true,
	variant:  true,
	disturbances: map[string]disturbance{
		"Cluster, CLIENT KILL": {finds: []string{hearsOnce}, do: func(e *env) {
			for range 3 {
				for _, node := range e.nodes {
					for _, kind := range []string{"normal", "pubsub"} {
						e.on(node, "CLIENT", "KILL", "TYPE", kind)
					}
				}
				time.Sleep(20 * time.Millisecond)
			}
		}},
		"Cluster, slots migrate": {finds: []string{keepsNodeAndErrs}, do: func(e *env) {
			for i := range e.nodes { // and back
				rediscluster.Move(e, e.nodes, e.tag, i, (i+1)%len(e.nodes))
			}
		}},
		"Cluster, SIGSTOP of the master": {slow: true, finds: []string{slowIsSuccess}, do: func(e *env) {
			suspendServer(e.nodes[0])
		}},
		"Cluster, SCRIPT FLUSH": {slow: true, finds: []string{runsByHash}, do: func(e *env) {
			for range 20 {
				e.on(e.nodes[0], "SCRIPT", "FLUSH")
				time.Sleep(5 * time.Millisecond)
			}
		}},
	},
}

// onReplicatedCluster is three masters with a replica each.
var onReplicatedCluster = backend{
	start:    startCluster(true),
	adapters: onNodes,
	base:     load.Redisv9Cluster,
	slow:     true,
	repeats:  true,
	variant:  true,
	disturbances: map[string]disturbance{
		"Cluster, master killed": {loses: true, fails: true, slow: true, finds: []string{keepsNode}, do: func(e *env) {
			killed := e.master()
			killed.Stop()
			require.Eventually(e, func() bool { return e.master() != nil }, time.Minute, 20*time.Millisecond, "no failover")
			killed.Restart()
			client := rediscluster.Admin(e, killed)
			require.Eventually(e, func() bool {
				status := client.InfoMap(e.ctx, "replication").Item("Replication", "master_link_status")
				return status == "up"
			}, time.Minute, 20*time.Millisecond, "it does not become a replica")
		}},
	},
}

func startCluster(replicated bool) func(t *testing.T, args []string) *system {
	return func(t *testing.T, args []string) *system {
		args = append([]string{"--cluster-node-timeout", "2000"}, args...)
		nodes, replicas := testserver.RedisClusterNodes(t, 3, replicated, args...)
		s := &system{nodes: append(nodes, replicas...), tag: rediscluster.Tag(t, nodes[0])}
		var addrs []string
		for _, node := range s.nodes {
			addrs = append(addrs, node.Addr)
		}
		s.addr = strings.Join(addrs, ",")
		return s
	}
}

// master returns the node that has the slot of all locks, or nil if the nodes that answer do not
// agree that one of them has it.
func (e *env) master() (master *testserver.Server) {
	for _, node := range e.nodes {
		if node.PID() == 0 {
			continue
		}
		client := rediscluster.Admin(e, node)
		slots, err := client.ClusterSlots(e.ctx).Result()
		if err != nil {
			return nil
		}
		known := false
		number := int(client.ClusterKeySlot(e.ctx, e.tag).Val())
		for _, slot := range slots {
			if number < slot.Start || number > slot.End {
				continue
			}
			for _, n := range e.nodes {
				if n.Addr == slot.Nodes[0].Addr && n.PID() != 0 {
					if master != nil && master != n {
						return nil
					}
					master, known = n, true
				}
			}
		}
		if !known {
			return nil
		}
	}
	return master
}

func (e *env) on(node *testserver.Server, command ...any) {
	e.Helper()
	require.NoError(e, rediscluster.Admin(e, node).Do(e.ctx, command...).Err())
}
