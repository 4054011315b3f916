package main

import (
	"context"

	"github.com/golockers/locker"
	"github.com/golockers/locker/examples/stampede/internal/stampede"
	"github.com/golockers/locker/rueidis"
	client "github.com/redis/rueidis"
)

func connectRueidis(a stampede.Address) (stampede.Cache, locker.Locker, error) {
	c, err := client.NewClient(client.ClientOption{InitAddress: []string{a.Host}})
	if err != nil {
		return nil, nil, err
	}
	return rueidisCache{c}, rueidis.New(c), nil
}

type rueidisCache struct{ client client.Client }

func (c rueidisCache) Get(ctx context.Context, key string) (string, bool, error) {
	v, err := c.client.Do(ctx, c.client.B().Get().Key(key).Build()).ToString()
	if client.IsRedisNil(err) {
		return "", false, nil
	}
	return v, err == nil, err
}

func (c rueidisCache) Set(ctx context.Context, key, v string) error {
	return c.client.Do(ctx, c.client.B().Set().Key(key).Value(v).Px(stampede.FreshFor).Build()).Error()
}

func (c rueidisCache) Add(ctx context.Context, key, v string) (bool, error) {
	err := c.client.Do(ctx, c.client.B().Set().Key(key).Value(v).Nx().Px(stampede.FreshFor).Build()).Error()
	if client.IsRedisNil(err) {
		return false, nil
	}
	return err == nil, err
}
