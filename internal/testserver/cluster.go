package testserver

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const slots = 16384

// RedisCluster starts a Redis Cluster of as many masters, without replicas, and returns their
// addresses once each of them knows all the others and reports that the cluster is complete.
func RedisCluster(tb testing.TB, masters int) (addrs []string) {
	tb.Helper()
	nodes, _ := RedisClusterNodes(tb, masters, false)
	for _, node := range nodes {
		addrs = append(addrs, node.Addr)
	}
	return addrs
}

// RedisClusterNodes starts a Redis Cluster as [RedisCluster] does. If replicated is true, each
// master has a replica at the same place in the other slice. args are added to the command line of
// each node, for instance "--cluster-node-timeout", "1000". A node keeps its place in the cluster
// over a Restart, but not its data.
func RedisClusterNodes(tb testing.TB, masters int, replicated bool, args ...string) (nodes, replicas []*Server) {
	tb.Helper()
	nodeKind := redisKind
	nodeKind.spare = 10_000 // the nodes talk to each other there
	args = append([]string{"--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1"}, args...)
	for range masters {
		nodes = append(nodes, start(tb, nodeKind, args))
		if replicated {
			replicas = append(replicas, start(tb, nodeKind, args))
		}
	}
	for i, node := range nodes {
		if err := join(node.Addr, i, masters, nodes[0].Addr); err != nil {
			tb.Fatalf("testserver: cluster: %v", err)
		}
	}
	for _, replica := range replicas {
		if err := meet(replica.Addr, nodes[0].Addr); err != nil {
			tb.Fatalf("testserver: cluster: %v", err)
		}
	}
	all := append(slices.Clone(nodes), replicas...)
	eventually(tb, func() error { return complete(all) })
	for i, replica := range replicas {
		eventually(tb, func() error { return replicate(replica.Addr, nodes[i].Addr) })
	}
	for _, replica := range replicas {
		eventually(tb, func() error { return synchronized(replica.Addr) })
	}
	return nodes, replicas
}

// eventually waits until check returns nil.
func eventually(tb testing.TB, check func() error) {
	tb.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	tb.Fatalf("testserver: cluster: %v", err)
}

// join gives node i its share of the slots and, on all but the first, makes it known to the
// first, which tells the others.
func join(node string, i, masters int, first string) error {
	add := []string{"CLUSTER", "ADDSLOTS"}
	for slot := i * slots / masters; slot < (i+1)*slots/masters; slot++ {
		add = append(add, strconv.Itoa(slot))
	}
	for _, command := range [][]string{{"CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i + 1)}, add} {
		if _, err := redisCommand(node, command...); err != nil {
			return fmt.Errorf("%s: %w", node, err)
		}
	}
	if i == 0 {
		return nil
	}
	return meet(node, first)
}

// meet makes a node known to the first one, which tells the others.
func meet(node, first string) error {
	host, port, err := net.SplitHostPort(first)
	if err != nil {
		return err
	}
	if _, err := redisCommand(node, "CLUSTER", "MEET", host, port); err != nil {
		return fmt.Errorf("%s: %w", node, err)
	}
	return nil
}

// replicate makes a node the replica of a master.
func replicate(replica, master string) error {
	id, err := redisCommand(master, "CLUSTER", "MYID")
	if err != nil {
		return err
	}
	_, err = redisCommand(replica, "CLUSTER", "REPLICATE", id)
	return err
}

// synchronized returns nil if a replica has all that its master has.
func synchronized(replica string) error {
	info, err := redisCommand(replica, "INFO", "replication")
	if err == nil && !strings.Contains(info, "master_link_status:up\r\n") {
		err = fmt.Errorf("%s: not synchronized: %q", replica, info)
	}
	return err
}

// complete is nil when every node sees all nodes and all slots.
func complete(nodes []*Server) error {
	for _, node := range nodes {
		info, err := redisCommand(node.Addr, "CLUSTER", "INFO")
		if err != nil {
			return err
		}
		for _, want := range []string{
			"cluster_state:ok\r\n",
			fmt.Sprintf("cluster_slots_ok:%d\r\n", slots),
			fmt.Sprintf("cluster_known_nodes:%d\r\n", len(nodes)),
		} {
			if !strings.Contains(info, want) {
				return fmt.Errorf("%s: no %q in %q", node.Addr, want, info)
			}
		}
	}
	return nil
}
