//go:build linux

package leases

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"testing"
	"time"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/golockers/locker/etcd"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/memcache"
	"github.com/golockers/locker/postgres"
	"github.com/golockers/locker/redigo"
	"github.com/golockers/locker/redisv9"
	rueidislocker "github.com/golockers/locker/rueidis"
	"github.com/golockers/locker/semaphore"
	"github.com/golockers/locker/sqllock"
	redigoclient "github.com/gomodule/redigo/redis"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// backend is what the processes keep locks on.
type backend struct {
	server func(tb testing.TB) string // its address
	open   func(addr string) (locker.Locker, error)
	ttl    time.Duration
	left   func(t *assert.CollectT, addr string) // checks that nothing is left; nil: see isClean
}

const (
	timeout  = time.Second // of a request
	redisTTL = 400 * time.Millisecond
)

var backends = map[string]backend{
	"redisv9": {server: redisServer, open: openRedisv9, ttl: redisTTL, left: redisIsClean},
	"rueidis": {server: redisServer, ttl: redisTTL, left: redisIsClean, open: func(addr string) (locker.Locker, error) {
		client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true,
			Dialer: net.Dialer{Timeout: timeout}, ConnWriteTimeout: timeout})
		if err != nil {
			return nil, err
		}
		return rueidislocker.New(client), nil
	}},
	"redigo": {server: redisServer, ttl: redisTTL, open: func(addr string) (locker.Locker, error) {
		return redigo.New(&redigoclient.Pool{MaxIdle: 64, DialContext: func(ctx context.Context) (redigoclient.Conn, error) {
			return redigoclient.DialContext(ctx, "tcp", addr, redigoclient.DialConnectTimeout(timeout),
				redigoclient.DialReadTimeout(timeout), redigoclient.DialWriteTimeout(timeout))
		}}), nil
	}},
	"memcache": {
		server: func(tb testing.TB) string { return testserver.Memcached(tb).Addr }, ttl: time.Second,
		open: func(addr string) (locker.Locker, error) {
			client := gomemcache.New(addr)
			client.Timeout, client.MaxIdleConns = timeout, 64
			return memcache.New(client), nil
		},
	},
	"postgres": {ttl: redisTTL, open: openPostgres, server: func(tb testing.TB) string {
		addr := testserver.Postgres(tb).Addr
		pool, err := pgxpool.New(tb.Context(), "postgres://"+testserver.PostgresUser+"@"+addr+"/postgres?sslmode=disable")
		require.NoError(tb, err)
		defer pool.Close()
		require.NoError(tb, postgres.EnsureSchema(tb.Context(), pool))
		return addr
	}},
	"sqllock on MariaDB": {
		ttl: redisTTL, open: openMariaDB,
		server: func(tb testing.TB) string {
			addr := testserver.MariaDB(tb).Addr
			l, err := openMariaDB(addr)
			require.NoError(tb, err)
			require.NoError(tb, l.(*sqllock.Locker).EnsureSchema(tb.Context()))
			return addr
		},
	},
	"etcd": {
		server: func(tb testing.TB) string { return testserver.Etcd(tb).Addr }, ttl: 2 * time.Second, left: etcdIsClean,
		open: func(addr string) (locker.Locker, error) {
			client, err := openEtcd(addr)
			if err != nil {
				return nil, err
			}
			return etcd.New(client), nil
		},
	},
}

// wrap is what the Locker of a process is, over a backend's.
type wrap struct {
	make    func(l locker.Locker) locker.Locker
	holders int  // of a lock at the same time
	keys    int  // few of them if several may hold one, so that there are waiters
	local   bool // other processes cannot resume its leases
}

// wraps has a row for each of them.
var wraps = map[string]wrap{
	"":           {func(l locker.Locker) locker.Locker { return l }, 1, keys, false},
	"+cohort":    {func(l locker.Locker) locker.Locker { return cohort.New(l) }, 1, keys, true},
	"+semaphore": {func(l locker.Locker) locker.Locker { return semaphore.NewLocker(l, 2) }, 2, 2, false},
}

func redisServer(tb testing.TB) string { return testserver.Redis(tb).Addr }

func openRedisv9(addr string) (locker.Locker, error) {
	return redisv9.New(redisClient(addr)), nil
}

func redisClient(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, ContextTimeoutEnabled: true,
		DialTimeout: timeout, ReadTimeout: timeout, WriteTimeout: timeout})
}

func postgresURL(addr string) string {
	return "postgres://" + testserver.PostgresUser + "@" + addr +
		"/postgres?sslmode=disable&connect_timeout=1&pool_max_conns=16"
}

func openPostgres(addr string) (locker.Locker, error) {
	pool, err := pgxpool.New(context.Background(), postgresURL(addr))
	if err != nil {
		return nil, err
	}
	return postgres.New(pool), nil
}

func openMariaDB(addr string) (locker.Locker, error) {
	db, err := sql.Open("mysql", testserver.MariaDBUser+"@tcp("+addr+")/"+testserver.MariaDBDatabase+
		"?interpolateParams=true&timeout=1s&readTimeout=1s&writeTimeout=1s")
	if err != nil {
		return nil, err
	}
	db.SetMaxIdleConns(16)
	return sqllock.New(db, sqllock.MySQL), nil
}

func openEtcd(addr string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{addr}, Logger: zap.NewNop(), DialTimeout: timeout})
}

// isClean checks that no lock is held and that no waiter is left in a queue.
func isClean(t *assert.CollectT, l locker.Locker) {
	for i := range keys {
		info, err := l.(locker.Inspector).Inspect(context.Background(), keyName(i))
		assert.NoError(t, err)
		assert.Empty(t, info.Token, info.Key)
		assert.LessOrEqual(t, info.Waiters, 0, info.Key)
	}
	if lister, ok := l.(locker.Lister); ok {
		for info, err := range lister.List(context.Background(), "") {
			assert.NoError(t, err)
			assert.Empty(t, info)
		}
	}
}

// redisIsClean checks that no key is left that does not expire, but the one that counts fencing
// numbers.
func redisIsClean(t *assert.CollectT, addr string) {
	ctx, client := context.Background(), redisClient(addr)
	defer client.Close()
	for _, key := range client.Keys(ctx, "*").Val() {
		if ttl := client.PTTL(ctx, key).Val(); ttl == -1 {
			assert.Fail(t, "it never expires", key)
		}
	}
}

// etcdIsClean checks that no key and no lease is left.
func etcdIsClean(t *assert.CollectT, addr string) {
	client, err := openEtcd(addr)
	if !assert.NoError(t, err) {
		return
	}
	defer client.Close()
	entries, err := client.Get(context.Background(), "", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if assert.NoError(t, err) {
		assert.Zero(t, entries.Count, "keys")
	}
	leases, err := client.Leases(context.Background())
	if assert.NoError(t, err) {
		assert.Empty(t, leases.Leases, "leases")
	}
}

func keyName(i int) string { return fmt.Sprint("leases/", i) }
