// Package listpage loads the missing items of a page with one query.
package listpage

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/golockers/locker/redisv9"
	"github.com/golockers/locker/singleflight"
	"github.com/redis/go-redis/v9"
)

// Item is what a page shows.
type Item struct{ Name string }

// NewItems returns the cached items. query returns those that exist.
func NewItems(client redis.UniversalClient,
	query func(ctx context.Context, ids []string) (map[string]Item, error)) *singleflight.Loader[Item] {
	cache := redisv9.NewCache(client, redisv9.CacheConfig[Item]{TTL: time.Minute, Jitter: 0.2})
	locks := redisv9.New(client, redisv9.WithBatching(1))
	return singleflight.NewBatchLoader(locks, cache, query, singleflight.WithKeyPrefix("item/"),
		singleflight.WithSentinels(singleflight.ErrNotLoaded))
}

// Page returns the items of a page that exist, in order.
func Page(ctx context.Context, items *singleflight.Loader[Item], ids []string) ([]Item, error) {
	loaded, err := items.LoadMany(ctx, ids)
	if err != nil && !onlyAbsent(err) {
		return nil, err
	}
	var page []Item
	for _, id := range ids {
		if item, ok := loaded[id]; ok {
			page = append(page, item)
		}
	}
	return page, nil
}

// onlyAbsent reports whether each of the errors that err joins is that of an item that does not exist.
func onlyAbsent(err error) bool {
	joined, ok := err.(interface{ Unwrap() []error })
	return ok && !slices.ContainsFunc(joined.Unwrap(), func(err error) bool {
		return !errors.Is(err, singleflight.ErrNotLoaded)
	})
}
