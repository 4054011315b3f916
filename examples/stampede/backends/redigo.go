package main

import (
	"context"
	"errors"

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
	return redigoCache{pool}, redigo.New(pool), nil
}

type redigoCache struct{ pool *client.Pool }

func (c redigoCache) do(ctx context.Context, command string, args ...any) (string, bool, error) {
	conn, err := c.pool.GetContext(ctx)
	if err != nil {
		return "", false, err
	}
	defer conn.Close()
	v, err := client.String(client.DoContext(conn, ctx, command, args...))
	if errors.Is(err, client.ErrNil) {
		return "", false, nil
	}
	return v, err == nil, err
}

func (c redigoCache) Get(ctx context.Context, key string) (string, bool, error) {
	return c.do(ctx, "GET", key)
}

func (c redigoCache) Set(ctx context.Context, key, v string) error {
	_, _, err := c.do(ctx, "SET", key, v, "PX", stampede.FreshFor.Milliseconds())
	return err
}

func (c redigoCache) Add(ctx context.Context, key, v string) (bool, error) {
	_, added, err := c.do(ctx, "SET", key, v, "PX", stampede.FreshFor.Milliseconds(), "NX")
	return added, err
}
