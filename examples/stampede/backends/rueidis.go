package main

import (
	"github.com/golockers/locker"
	"github.com/golockers/locker/examples/stampede/internal/stampede"
	"github.com/golockers/locker/rueidis"
	client "github.com/redis/rueidis"
)

// connectRueidis has its cache on go-redis, since package rueidis has none.
func connectRueidis(a stampede.Address) (stampede.Cache, locker.Locker, error) {
	c, err := client.NewClient(client.ClientOption{InitAddress: []string{a.Host}})
	if err != nil {
		return nil, nil, err
	}
	cache, _, err := stampede.ConnectRedis(a)
	return cache, rueidis.New(c), err
}
