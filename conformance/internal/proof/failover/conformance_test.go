//go:build linux

package failover

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance"
	"github.com/golockers/locker/conformance/internal/proof"
	"github.com/golockers/locker/conformance/internal/proof/rediscluster"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	rueidislocker "github.com/golockers/locker/rueidis"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
)

// The suite injects faults on the way to one address, while the clients of a Cluster connect to each
// of its nodes. Here each connection goes to one address, and begins with a line that names the
// node, so that every fault affects the links to all nodes.
func TestConformanceOfCluster(t *testing.T) {
	if os.Getenv("LOCKER_PROVE") == "" {
		t.Skip("only in make prove")
	}
	for name, open := range map[string]func(tb testing.TB, nodes []string, dial dialer) locker.Locker{
		"redisv9": func(tb testing.TB, nodes []string, dial dialer) locker.Locker {
			slots, err := rediscluster.Admin(t, &testserver.Server{Addr: nodes[0]}).ClusterSlots(tb.Context()).Result()
			require.NoError(tb, err)
			client := redis.NewClusterClient(&redis.ClusterOptions{
				// Requests of the client's own would be taken for the Locker's.
				ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) { return slots, nil },
				Dialer: func(ctx context.Context, _, addr string) (net.Conn, error) {
					return dial(ctx, &net.Dialer{Timeout: 5 * time.Second}, addr)
				},
			})
			tb.Cleanup(func() { _ = client.Close() })
			return redisv9.New(client)
		},
		"rueidis": func(tb testing.TB, nodes []string, dial dialer) locker.Locker {
			client, err := rueidis.NewClient(rueidis.ClientOption{
				InitAddress: nodes, ConnWriteTimeout: 5 * time.Second,
				// Pings would be taken for requests of the Locker.
				Dialer: net.Dialer{Timeout: 5 * time.Second, KeepAlive: 10 * time.Second},
				DialCtxFn: func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
					return dial(ctx, d, addr)
				},
			})
			require.NoError(tb, err)
			tb.Cleanup(client.Close)
			return rueidislocker.New(client)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodes := testserver.RedisCluster(t, 3)
			addr, connections := switchboard(t)
			conformance.Run(t, conformance.Config{
				Addr: addr,
				LoseData: func(ctx context.Context) error {
					for _, node := range nodes {
						if err := rediscluster.Admin(t, &testserver.Server{Addr: node}).FlushAll(ctx).Err(); err != nil {
							return err
						}
					}
					return nil
				},
				New: func(tb testing.TB, addr string) locker.Locker {
					return open(tb, nodes, func(ctx context.Context, d *net.Dialer, node string) (net.Conn, error) {
						conn, err := d.DialContext(ctx, "tcp", addr)
						if err != nil {
							return nil, err
						}
						if _, err := fmt.Fprintln(conn, node); err != nil {
							_ = conn.Close()
							return nil, err
						}
						return conn, nil
					})
				},
			})
			proof.Record(t, "Cluster", name, proof.Of("nodes", len(nodes)), proof.Of("connections", connections.Load()))
		})
	}
}

// dialer connects to a node.
type dialer func(ctx context.Context, d *net.Dialer, node string) (net.Conn, error)

// switchboard returns the address of a server that reads the address of another one, in a line, and
// then connects its client with that. It counts the connections.
func switchboard(t *testing.T) (addr string, connections *atomic.Int64) {
	t.Helper()
	connections = new(atomic.Int64)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			go connect(conn.(*net.TCPConn))
		}
	}()
	return listener.Addr().String(), connections
}

func connect(client *net.TCPConn) {
	defer client.Close()
	requests := bufio.NewReader(client)
	node, err := requests.ReadString('\n')
	if err != nil {
		return
	}
	conn, err := net.Dial("tcp", strings.TrimSpace(node))
	if err != nil {
		return
	}
	server := conn.(*net.TCPConn)
	defer server.Close()
	go func() {
		_, _ = io.Copy(server, requests)
		_ = server.CloseWrite()
	}()
	_, _ = io.Copy(client, server)
}
