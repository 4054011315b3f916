//go:build linux

package failover

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/faultproxy"
	"github.com/golockers/locker/conformance/internal/proof/rediscluster"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// partitionCluster cuts a master, with every second client, off from everything else, until its
// replica has taken over and for a while after that.
func partitionCluster(t *testing.T) *system {
	c := newCluster(t, true)
	buses := c.interceptBus()
	// These clients reach the master directly, and all else through proxies of their own.
	var others []*faultproxy.Proxy
	towards := map[string]string{c.addrs[0]: c.nodes[0].Addr}
	for i, addr := range c.addrs[1:] {
		p := faultproxy.New(t, c.nodes[i+1].Addr)
		others, towards[addr] = append(others, p), p.Addr
	}
	for _, replica := range c.replicas {
		p := faultproxy.New(t, replica.Addr)
		others, towards[replica.Addr] = append(others, p), p.Addr
	}
	opened := 0
	return &system{
		key: c.onFirst(),
		open: func(tb testing.TB) locker.Locker {
			opened++
			if opened%2 == 0 {
				return clusterRedisv9(tb, c.addrs)
			}
			return openCluster(tb, &redis.ClusterOptions{
				Addrs: append([]string(nil), c.addrs...),
				Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
					return (&net.Dialer{Timeout: timeout}).DialContext(ctx, network, towards[addr])
				},
			})
		},
		fail: func(*load) {
			buses.isolate(true)
			c.proxies[0].Hang() // its replica is on the other side as well
			for _, p := range others {
				p.Hang()
			}
			c.awaitFailover()
			time.Sleep(2 * keeperTTL)
			buses.isolate(false)
			for _, p := range append(others, c.proxies[0]) {
				p.Heal(t)
			}
		},
	}
}

// buses are relays between the nodes of a Cluster. They recognize a node by the address from which
// it connects.
type buses struct {
	mu       sync.Mutex
	isolated bool // the first node is cut off
	links    map[net.Conn]bool
}

const firstSource = "127.0.0.10" // of the first node

// interceptBus makes the nodes talk to each other through relays.
func (c *cluster) interceptBus() *buses {
	c.t.Helper()
	b := &buses{links: make(map[net.Conn]bool)}
	all := append(c.nodes[:len(c.nodes):len(c.nodes)], c.replicas...)
	for i, node := range all {
		source := fmt.Sprintf("127.0.0.%d", 10+i)
		require.NoError(c.t, rediscluster.Admin(c.t, node).ConfigSet(c.t.Context(), "bind-source-addr", source).Err())
	}
	ports := make(map[string]bool)
	for i, node := range all {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(c.t, err)
		c.t.Cleanup(func() { _ = listener.Close() })
		host, port := split(c.t, node.Addr)
		var bus int
		_, err = fmt.Sscan(port, &bus)
		require.NoError(c.t, err)
		target := net.JoinHostPort(host, fmt.Sprint(bus+10_000))
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				go b.relay(conn, target, i == 0)
			}
		}()
		_, relay := split(c.t, listener.Addr().String())
		ports[relay] = true
		require.NoError(c.t, rediscluster.Admin(c.t, node).ConfigSet(c.t.Context(), "cluster-announce-bus-port", relay).Err())
	}
	for _, node := range all {
		require.Eventually(c.t, func() bool {
			nodes, err := rediscluster.Admin(c.t, node).ClusterNodes(c.t.Context()).Result()
			known := 0
			for line := range strings.Lines(nodes) { // <id> <ip>:<port>@<bus port>[,…] …
				_, rest, _ := strings.Cut(line, "@")
				if port, _, _ := strings.Cut(rest, " "); ports[strings.TrimSuffix(port, ",")] {
					known++
				}
			}
			return err == nil && known == len(all)
		}, patience, 20*time.Millisecond, "the nodes do not use the relays")
	}
	return b
}

// relay connects a node with another one unless one of them is isolated.
func (b *buses) relay(from net.Conn, target string, toFirst bool) {
	defer from.Close()
	host, _, err := net.SplitHostPort(from.RemoteAddr().String())
	crosses := toFirst != (host == firstSource)
	b.mu.Lock()
	refused := err != nil || crosses && b.isolated
	b.links[from] = crosses
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.links, from)
	}()
	if refused {
		return
	}
	to, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer to.Close()
	go func() {
		defer to.Close()
		_, _ = io.Copy(to, from)
	}()
	_, _ = io.Copy(from, to)
}

// isolate cuts the first node off from the others, or ends that.
func (b *buses) isolate(on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.isolated = on
	for link, crosses := range b.links {
		if on && crosses {
			_ = link.Close()
		}
	}
}
