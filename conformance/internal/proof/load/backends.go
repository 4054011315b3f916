package load

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker"
	"github.com/golockers/locker/etcd"
	"github.com/golockers/locker/memcache"
	"github.com/golockers/locker/postgres"
	"github.com/golockers/locker/redigo"
	"github.com/golockers/locker/redisv9"
	rueidislocker "github.com/golockers/locker/rueidis"
	redigoclient "github.com/gomodule/redigo/redis"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// Open makes a Locker with a client of its own, which is closed when the test ends.
type Open func(tb testing.TB, addr string) locker.Locker

// Redisv9 opens a Locker of go-redis.
func Redisv9(opts ...redisv9.Option) Open {
	return func(tb testing.TB, addr string) locker.Locker {
		client := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, ContextTimeoutEnabled: true,
			DialTimeout: time.Second, ReadTimeout: time.Second, WriteTimeout: time.Second, PoolSize: 10})
		tb.Cleanup(func() { _ = client.Close() })
		return redisv9.New(client, opts...)
	}
}

// Redisv9Cluster opens a Locker of go-redis on a Cluster. The addresses of its nodes are separated by
// commas.
func Redisv9Cluster(tb testing.TB, addrs string) locker.Locker {
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: strings.Split(addrs, ","), ContextTimeoutEnabled: true,
		MaxRetries: -1, DialTimeout: time.Second, ReadTimeout: time.Second, WriteTimeout: time.Second, PoolSize: 10})
	tb.Cleanup(func() { _ = client.Close() })
	return redisv9.New(client)
}

// Rueidis opens a Locker of rueidis, whose client connects at once, or tries again on a busy machine.
// The addresses of a Cluster's nodes are separated by commas.
func Rueidis(tb testing.TB, addr string) locker.Locker {
	tb.Helper()
	connect := func() (rueidis.Client, error) {
		return rueidis.NewClient(rueidis.ClientOption{InitAddress: strings.Split(addr, ","), DisableCache: true,
			Dialer: net.Dialer{Timeout: time.Second}, ConnWriteTimeout: time.Second})
	}
	client, err := connect()
	for end := time.Now().Add(patience); err != nil && time.Now().Before(end); {
		time.Sleep(50 * time.Millisecond)
		client, err = connect()
	}
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(client.Close)
	return rueidislocker.New(client)
}

// Redigo opens a Locker of redigo.
func Redigo(tb testing.TB, addr string) locker.Locker {
	pool := &redigoclient.Pool{MaxIdle: 10, MaxActive: 10, Wait: true,
		DialContext: func(ctx context.Context) (redigoclient.Conn, error) {
			return redigoclient.DialContext(ctx, "tcp", addr, redigoclient.DialConnectTimeout(time.Second),
				redigoclient.DialReadTimeout(time.Second), redigoclient.DialWriteTimeout(time.Second))
		}}
	tb.Cleanup(func() { _ = pool.Close() })
	return redigo.New(pool)
}

// Memcache opens a Locker of gomemcache.
func Memcache(tb testing.TB, addr string) locker.Locker {
	client := gomemcache.New(addr)
	client.Timeout, client.MaxIdleConns = time.Second, 10
	tb.Cleanup(func() { _ = client.Close() })
	return memcache.New(client)
}

// Postgres opens a Locker of pgx, and makes its tables.
func Postgres(opts ...postgres.Option) Open {
	return func(tb testing.TB, addr string) locker.Locker { return openPostgres(tb, addr, opts) }
}

func openPostgres(tb testing.TB, addr string, opts []postgres.Option) locker.Locker {
	tb.Helper()
	config, err := pgxpool.ParseConfig("postgres://postgres@" + addr + "/postgres?sslmode=disable&connect_timeout=2")
	if err != nil {
		tb.Fatal(err)
	}
	config.MaxConns = 10
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(pool.Close)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := makeTables(ctx, config.Copy()); err != nil {
		tb.Fatal(err)
	}
	return postgres.New(pool, opts...)
}

// makeTables has a pool of its own, which waits longer for a connection than others.
func makeTables(ctx context.Context, config *pgxpool.Config) error {
	config.ConnConfig.ConnectTimeout = patience
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	return errors.Join(postgres.EnsureSchema(ctx, pool), postgres.EnsureWindowSchema(ctx, pool))
}

// Etcd opens a Locker of etcd's client.
func Etcd(tb testing.TB, addr string) locker.Locker {
	tb.Helper()
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"http://" + addr}, DialTimeout: time.Second, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: 500 * time.Millisecond},
		})},
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = client.Close() })
	return etcd.New(client)
}
