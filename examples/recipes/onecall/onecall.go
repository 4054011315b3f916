// Package onecall lets the replicas of a service make an expensive call together.
package onecall

import (
	"context"
	"time"

	"github.com/golockers/locker/redisv9"
	"github.com/golockers/locker/singleflight"
	"github.com/redis/go-redis/v9"
)

// Report is what is expensive.
type Report struct{ Text string }

// NewReports returns what makes the calls of all replicas one.
func NewReports(client redis.UniversalClient) *singleflight.Fleet[Report] {
	slots := redisv9.NewCache(client, redisv9.CacheConfig[Report]{TTL: time.Minute, Prefix: "slot:"})
	return singleflight.NewFleet(redisv9.New(client), slots, singleflight.WithKeyPrefix("report/"))
}

// Get returns the report of a month. make makes it.
func Get(ctx context.Context, reports *singleflight.Fleet[Report], month string,
	make func(context.Context) (Report, error)) (Report, error) {
	report, _, err := reports.Do(ctx, month, make)
	return report, err
}
