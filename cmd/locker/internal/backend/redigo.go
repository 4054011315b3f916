package backend

import (
	"context"

	"github.com/golockers/locker"
	"github.com/golockers/locker/redigo"
	"github.com/gomodule/redigo/redis"
)

var redigoScheme = scheme{
	names: []string{"redigo", "redigos"},
	form:  "redigo://[user:password@]host:6379[/database]",
	explains: "One Redis server, or a proxy or look-alike without scripts, with the format of package\n" +
		"redigo: it does not share locks with redis://. redigos:// uses TLS.",
	open: func(a *address) (locker.Locker, func() error, error) {
		server, timeout, tlsConfig := a.server(redisPort), a.timeout(), a.tlsConfig(a.scheme == "redigos")
		options := []redis.DialOption{
			redis.DialConnectTimeout(timeout), redis.DialDatabase(a.database(a.path)),
			redis.DialUsername(a.user), redis.DialPassword(a.password),
			redis.DialUseTLS(tlsConfig != nil), redis.DialTLSConfig(tlsConfig),
		}
		pool := &redis.Pool{
			MaxIdle: a.connections, // more are opened when they are needed
			DialContext: func(ctx context.Context) (redis.Conn, error) {
				return redis.DialContext(ctx, "tcp", server, options...)
			},
		}
		l := redigo.New(pool, redigo.WithPrefix(a.text("prefix")))
		return l, pool.Close, a.check()
	},
}
