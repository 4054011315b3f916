package backend

import (
	"context"
	"errors"
	"strings"

	"github.com/golockers/locker"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
)

const redisPort, sentinelPort = "6379", "26379"

var redisScheme = scheme{
	names: []string{"redis", "rediss"},
	form:  "redis://[user:password@]host:6379[/database]",
	explains: "One Redis server. rediss:// uses TLS; its options are ca=FILE, cert=FILE, key=FILE,\n" +
		"server-name=NAME and insecure=true. Every backend has the options timeout=2s and\n" +
		"prefix=locker:, which must be the same for all programs that share locks. The timeout\n" +
		"is for connecting and for each request, except that a request has 3 seconds with\n" +
		"redigo, 5 with postgres, mysql and sqlite, and 10 with etcd.",
	open: func(a *address) (locker.Locker, func() error, error) {
		timeout := a.timeout()
		return openRedis(a, redis.NewClient(&redis.Options{
			Addr: a.server(redisPort), DB: a.database(a.path),
			Username: a.user, Password: a.password, TLSConfig: a.tlsConfig(a.scheme == "rediss"),
			DialTimeout: timeout, ReadTimeout: timeout, WriteTimeout: timeout, PoolTimeout: timeout,
			PoolSize: a.connections, ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1,
		}))
	},
}

var sentinelScheme = scheme{
	names: []string{"redis+sentinel", "rediss+sentinel"},
	form:  "redis+sentinel://[user:password@]host:26379,host:26379/master[/database]",
	explains: "The master of that name, which Redis Sentinels know. The password is the server's;\n" +
		"LOCKER_SENTINEL_PASSWORD is the Sentinels'. rediss+sentinel:// uses TLS.",
	open: func(a *address) (locker.Locker, func() error, error) {
		timeout := a.timeout()
		master, database, _ := strings.Cut(a.path, "/")
		if master == "" {
			a.fail(errors.New("no name of a master after the hosts"))
		}
		return openRedis(a, redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: master, SentinelAddrs: a.servers(sentinelPort), SentinelPassword: a.sentinel,
			DB: a.database(database), Username: a.user, Password: a.password,
			TLSConfig:   a.tlsConfig(a.scheme == "rediss+sentinel"),
			DialTimeout: timeout, ReadTimeout: timeout, WriteTimeout: timeout, PoolTimeout: timeout,
			PoolSize: a.connections, ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1,
		}))
	},
}

var clusterScheme = scheme{
	names:    []string{"redis+cluster", "rediss+cluster"},
	form:     "redis+cluster://[user:password@]host:6379,host:6379",
	explains: "A Redis Cluster, of which the URL names some nodes. rediss+cluster:// uses TLS.",
	open: func(a *address) (locker.Locker, func() error, error) {
		timeout := a.timeout()
		if a.path != "" {
			a.fail(errors.New("a cluster has no databases"))
		}
		return openRedis(a, redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: a.servers(redisPort), Username: a.user, Password: a.password,
			TLSConfig:   a.tlsConfig(a.scheme == "rediss+cluster"),
			DialTimeout: timeout, ReadTimeout: timeout, WriteTimeout: timeout, PoolTimeout: timeout,
			PoolSize: a.connections, ContextTimeoutEnabled: true, DialerRetries: 1,
		}))
	},
}

func openRedis(a *address, client redis.UniversalClient) (locker.Locker, func() error, error) {
	l := redisv9.New(client, redisv9.WithPrefix(a.text("prefix")))
	if err := a.check(); err != nil {
		_ = client.Close()
		return nil, nil, err
	}
	return l, client.Close, nil
}

func init() { redis.SetLogger(silent{}) }

// silent drops what go-redis logs: what matters comes back as an error.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
