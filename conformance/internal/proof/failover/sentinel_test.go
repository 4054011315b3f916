//go:build linux

package failover

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/conformance/internal/faultproxy"
	"github.com/golockers/locker/conformance/internal/proof/rediscluster"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redigo"
	"github.com/golockers/locker/redisv9"
	rueidislocker "github.com/golockers/locker/rueidis"
	redigoclient "github.com/gomodule/redigo/redis"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
)

// lag is for how long a replica gets nothing before its master fails, in rows that say so.
const lag = 200 * time.Millisecond

var sentinelScenarios = []scenario{
	{name: "redisv9, Sentinel: master killed", start: killMaster(sentinelRedisv9, false), slow: true},
	{
		name: "redisv9, Sentinel: master killed, replica 0.2 s behind", loses: true,
		start: killMaster(sentinelRedisv9, true),
	},
	{name: "redisv9, Sentinel: master hangs and comes back", start: hangMaster(sentinelRedisv9), slow: true},
	{name: "rueidis, Sentinel: master killed", start: killMaster(sentinelRueidis, false), slow: true},
	{name: "redigo, Sentinel: master killed", start: killMaster(sentinelRedigo, false), slow: true},
	{
		name: "redigo, Sentinel: master killed, replica 0.2 s behind", loses: true, slow: true, repeats: true,
		start: killMaster(sentinelRedigo, true),
	},
	{name: "redigo, Sentinel: master hangs and comes back", start: hangMaster(sentinelRedigo), slow: true},
	{
		name: "redisv9, Sentinel: master partitioned with half of its clients", loses: true, slow: true,
		start: partitionMaster(),
	},
	{
		name:  "redisv9, Sentinel: master partitioned with half of its clients, min-replicas-to-write 1",
		slow:  true,
		start: partitionMaster("--min-replicas-to-write", "1", "--min-replicas-max-lag", "1"),
	},
}

// monitored is a master, its replica and a sentinel.
type monitored struct {
	t               *testing.T
	master, replica *testserver.Server
	replication     *faultproxy.Proxy // between the two
	sentinel        string
}

func newMonitored(t *testing.T, args ...string) *monitored {
	t.Helper()
	m := &monitored{t: t, master: testserver.Redis(t, args...)}
	m.replication = faultproxy.New(t, m.master.Addr)
	host, port := split(t, m.replication.Addr)
	m.replica = testserver.Redis(t, append([]string{"--replicaof", host + " " + port}, args...)...)
	m.startSentinel(m.master.Addr)
	return m
}

// startSentinel starts a sentinel for the master at addr, and returns when it knows a replica that
// may become the master.
func (m *monitored) startSentinel(addr string) {
	m.t.Helper()
	replica := rediscluster.Admin(m.t, m.replica)
	// A sentinel asks a replica only every ten seconds.
	require.Eventually(m.t, func() bool {
		return replica.InfoMap(m.t.Context(), "replication").Item("Replication", "master_link_status") == "up"
	}, patience, 10*time.Millisecond, "the replica is not synchronized")
	m.sentinel = testserver.RedisSentinel(m.t, addr, 500*time.Millisecond).Addr
	client := redis.NewSentinelClient(&redis.Options{Addr: m.sentinel})
	defer client.Close()
	require.Eventually(m.t, func() bool {
		replicas, err := client.Replicas(m.t.Context(), "m").Result()
		return err == nil && len(replicas) == 1 && replicas[0]["master-link-status"] == "ok"
	}, patience, 10*time.Millisecond, "no replica")
}

// awaitFailover waits until the replica is a master.
func (m *monitored) awaitFailover() {
	m.t.Helper()
	client := redis.NewClient(&redis.Options{Addr: m.replica.Addr})
	defer client.Close()
	require.Eventually(m.t, func() bool {
		role, err := client.Do(m.t.Context(), "role").Slice()
		return err == nil && role[0] == "master"
	}, patience, 10*time.Millisecond, "no failover")
}

func split(t *testing.T, addr string) (host, port string) {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	return host, port
}

func sentinelRedisv9(tb testing.TB, sentinel string) locker.Locker {
	return openFailover(tb, &redis.FailoverOptions{SentinelAddrs: []string{sentinel}})
}

func openFailover(tb testing.TB, o *redis.FailoverOptions) locker.Locker {
	o.MasterName, o.MaxRetries, o.ContextTimeoutEnabled = "m", -1, true
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = timeout, timeout, timeout
	client := redis.NewFailoverClient(o)
	tb.Cleanup(func() { _ = client.Close() })
	return redisv9.New(client)
}

func sentinelRueidis(tb testing.TB, sentinel string) locker.Locker {
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{sentinel}, Sentinel: rueidis.SentinelOption{MasterSet: "m"}, DisableCache: true,
		Dialer: net.Dialer{Timeout: timeout}, ConnWriteTimeout: timeout,
	})
	require.NoError(tb, err)
	tb.Cleanup(client.Close)
	return rueidislocker.New(client)
}

// sentinelRedigo asks the sentinel for the master whenever it dials. redigo has no client for that,
// so this is what its users write. A connection is used only as long as its server is a master.
func sentinelRedigo(tb testing.TB, sentinel string) locker.Locker {
	dial := func(ctx context.Context, addr string) (redigoclient.Conn, error) {
		return redigoclient.DialContext(ctx, "tcp", addr, redigoclient.DialConnectTimeout(timeout),
			redigoclient.DialReadTimeout(timeout), redigoclient.DialWriteTimeout(timeout))
	}
	isMaster := func(conn redigoclient.Conn) error {
		role, err := redigoclient.Values(conn.Do("ROLE"))
		if err == nil && string(role[0].([]byte)) != "master" {
			err = errors.New("the server is no longer the master")
		}
		return err
	}
	pool := &redigoclient.Pool{
		MaxIdle: 16,
		DialContext: func(ctx context.Context) (redigoclient.Conn, error) {
			asked, err := dial(ctx, sentinel)
			if err != nil {
				return nil, err
			}
			defer asked.Close()
			master, err := redigoclient.Strings(asked.Do("SENTINEL", "get-master-addr-by-name", "m"))
			if err != nil {
				return nil, err
			}
			conn, err := dial(ctx, net.JoinHostPort(master[0], master[1]))
			if err != nil {
				return nil, err
			}
			if err := isMaster(conn); err != nil {
				_ = conn.Close()
				return nil, err
			}
			return conn, nil
		},
		TestOnBorrow: func(conn redigoclient.Conn, _ time.Time) error { return isMaster(conn) },
	}
	tb.Cleanup(func() { _ = pool.Close() })
	return redigo.New(pool)
}

// killMaster kills the master, perhaps after its replica has fallen behind.
func killMaster(open func(tb testing.TB, sentinel string) locker.Locker, behind bool) start {
	return func(t *testing.T) *system {
		m := newMonitored(t)
		return &system{
			open: func(tb testing.TB) locker.Locker { return open(tb, m.sentinel) },
			fail: func(l *load) {
				if behind {
					m.replication.Hang()
					l.behind()
				}
				m.master.Stop()
				m.replication.Cut()
				m.awaitFailover()
			},
		}
	}
}

// hangMaster stops the master until its replica has taken over.
func hangMaster(open func(tb testing.TB, sentinel string) locker.Locker) start {
	return func(t *testing.T) *system {
		m := newMonitored(t)
		return &system{
			open: func(tb testing.TB) locker.Locker { return open(tb, m.sentinel) },
			fail: func(*load) { m.master.Pause(); m.awaitFailover() },
			heal: func() { m.master.Continue() },
		}
	}
}

// partitionMaster cuts the master and every second client off from the replica, the other clients and
// the sentinel, until the replica has taken over and for a while after that.
func partitionMaster(args ...string) start {
	return func(t *testing.T) *system {
		master := testserver.Redis(t, args...)
		toMaster := faultproxy.New(t, master.Addr)
		host, port := split(t, toMaster.Addr)
		m := &monitored{t: t, master: master, replication: toMaster}
		m.replica = testserver.Redis(t, append([]string{"--replicaof", host + " " + port}, args...)...)
		m.startSentinel(toMaster.Addr)
		toSentinel, toReplica := faultproxy.New(t, m.sentinel), faultproxy.New(t, m.replica.Addr)
		opened := 0
		return &system{
			open: func(tb testing.TB) locker.Locker {
				opened++
				if opened%2 == 0 {
					return sentinelRedisv9(tb, m.sentinel)
				}
				return openFailover(tb, &redis.FailoverOptions{
					SentinelAddrs: []string{toSentinel.Addr},
					Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
						switch addr {
						case toMaster.Addr:
							addr = master.Addr
						case m.replica.Addr:
							addr = toReplica.Addr
						}
						return (&net.Dialer{Timeout: timeout}).DialContext(ctx, network, addr)
					},
				})
			},
			fail: func(*load) {
				for _, p := range []*faultproxy.Proxy{toMaster, toSentinel, toReplica} {
					p.Hang()
				}
				m.awaitFailover()
				time.Sleep(2 * keeperTTL)
				for _, p := range []*faultproxy.Proxy{toMaster, toSentinel, toReplica} {
					p.Heal(t)
				}
			},
		}
	}
}
