package main

import (
	"context"

	"github.com/golockers/locker"
	"github.com/golockers/locker/examples/stampede/internal/stampede"
	"github.com/golockers/locker/redigo"
	client "github.com/gomodule/redigo/redis"
)

func connectRedigo(a stampede.Address) (stampede.Cache, locker.Locker, error) {
	pool := &client.Pool{
		MaxIdle: 20, MaxActive: 20, Wait: true,
		DialContext: func(ctx context.Context) (client.Conn, error) {
			return client.DialContext(ctx, "tcp", a.Host, client.DialConnectTimeout(stampede.Patience),
				client.DialReadTimeout(stampede.Patience), client.DialWriteTimeout(stampede.Patience))
		},
	}
	cache := redigo.NewCache(pool, redigo.CacheConfig[string]{TTL: stampede.FreshFor, Prefix: stampede.Prefix})
	return cache, redigo.New(pool), nil
}
