package testserver

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"
)

const slots = 16384

// RedisCluster starts a Redis Cluster of as many masters, without replicas, and returns their
// addresses once each of them knows all the others and reports that the cluster is complete.
func RedisCluster(tb testing.TB, masters int) []string {
	tb.Helper()
	nodeKind := redisKind
	nodeKind.spare = 10_000 // the nodes talk to each other there
	nodes := make([]string, masters)
	for i := range nodes {
		nodes[i] = start(tb, nodeKind, []string{
			"--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1",
		}).Addr
	}
	for i, node := range nodes {
		if err := join(node, i, nodes); err != nil {
			tb.Fatalf("testserver: cluster: %v", err)
		}
	}
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err = complete(nodes); err == nil {
			return nodes
		}
	}
	tb.Fatalf("testserver: cluster: %v", err)
	return nil
}

// join gives node i its share of the slots and, on all but the first, makes it known to the
// first, which tells the others.
func join(node string, i int, nodes []string) error {
	add := []string{"CLUSTER", "ADDSLOTS"}
	for slot := i * slots / len(nodes); slot < (i+1)*slots/len(nodes); slot++ {
		add = append(add, strconv.Itoa(slot))
	}
	commands := [][]string{{"CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i + 1)}, add}
	if i > 0 {
		host, port, err := net.SplitHostPort(nodes[0])
		if err != nil {
			return err
		}
		commands = append(commands, []string{"CLUSTER", "MEET", host, port})
	}
	for _, command := range commands {
		if _, err := redisCommand(node, command...); err != nil {
			return fmt.Errorf("%s: %w", node, err)
		}
	}
	return nil
}

// complete is nil when every node sees all nodes and all slots.
func complete(nodes []string) error {
	for _, node := range nodes {
		info, err := redisCommand(node, "CLUSTER", "INFO")
		if err != nil {
			return err
		}
		for _, want := range []string{
			"cluster_state:ok\r\n",
			fmt.Sprintf("cluster_slots_ok:%d\r\n", slots),
			fmt.Sprintf("cluster_known_nodes:%d\r\n", len(nodes)),
		} {
			if !strings.Contains(info, want) {
				return fmt.Errorf("%s: no %q in %q", node, want, info)
			}
		}
	}
	return nil
}
