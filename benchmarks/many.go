package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/redisv9"
	"github.com/golockers/locker/singleflight"
	"github.com/redis/go-redis/v9"
)

// A page that shows many items: their values are in the cache, or all of them are missing.

const (
	manyKeys  = 200
	manyQuery = 5 * time.Millisecond // of the source, for one key or for all
)

// source returns the values of some keys from one query.
type source func(ctx context.Context, keys []string) (map[string]string, error)

// loadMany loads some keys.
type loadMany func(ctx context.Context, keys []string) (map[string]string, error)

// pages are the ways to load them.
var pages = []struct {
	name string
	ours bool
	make func(*redis.Client, source) loadMany
}{
	{"LoadMany", true, func(c *redis.Client, query source) loadMany {
		return singleflight.NewBatchLoader(manyLocks(c), manyCache(c), query).LoadMany
	}},
	{"Loads", true, func(c *redis.Client, query source) loadMany {
		l := singleflight.NewLoader(manyLocks(c), manyCache(c), func(ctx context.Context, key string) (string, error) {
			values, err := query(ctx, []string{key})
			return values[key], err
		})
		return func(ctx context.Context, keys []string) (map[string]string, error) {
			var mu sync.Mutex
			values, errs := make(map[string]string, len(keys)), firstOf{}
			var all sync.WaitGroup
			for _, key := range keys {
				all.Go(func() {
					v, err := l.Load(ctx, key)
					errs.add(err)
					mu.Lock()
					defer mu.Unlock()
					values[key] = v
				})
			}
			all.Wait()
			return values, errs.err
		}
	}},
	{"mget-by-hand", false, byHandMany},
}

// manyLocks share requests, as the recipe for such a page has it.
func manyLocks(c *redis.Client) locker.Locker { return redisv9.New(c, redisv9.WithBatching(1)) }

func manyCache(c *redis.Client) *redisv9.Cache[string] {
	return redisv9.NewCache(c, redisv9.CacheConfig[string]{TTL: freshFor})
}

// byHandMany has no locks: each process that misses a key asks the source for it.
func byHandMany(c *redis.Client, query source) loadMany {
	return func(ctx context.Context, keys []string) (map[string]string, error) {
		found, err := c.MGet(ctx, keys...).Result()
		if err != nil {
			return nil, err
		}
		values := make(map[string]string, len(keys))
		var missing []string
		for i, key := range keys {
			if v, ok := found[i].(string); ok {
				values[key] = v
			} else {
				missing = append(missing, key)
			}
		}
		if len(missing) == 0 {
			return values, nil
		}
		loaded, err := query(ctx, missing)
		if err != nil {
			return nil, err
		}
		pipe := c.Pipeline()
		for key, v := range loaded {
			values[key] = v
			pipe.Set(ctx, key, v, freshFor)
		}
		_, err = pipe.Exec(ctx)
		return values, err
	}
}

// requestCounter counts what a client sends. The server reads a pipeline of more than 16 kB in several
// pieces, and counts each.
type requestCounter struct{ n atomic.Int64 }

func (c *requestCounter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *requestCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmd)
	}
}

func (c *requestCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmds)
	}
}

// runMany loads keys that are missing, and then the same ones again.
func runMany(ctx context.Context, b *bench) error {
	var queries atomic.Int64
	query := func(_ context.Context, keys []string) (map[string]string, error) {
		queries.Add(1)
		time.Sleep(manyQuery)
		values := make(map[string]string, len(keys))
		for _, key := range keys {
			values[key] = "the value of " + key
		}
		return values, nil
	}
	loads := make([]loadMany, len(pages))
	var asked requestCounter
	for i, page := range pages {
		client := goredis(job{Redis: b.redis.addr})
		defer client.Close()
		client.AddHook(&asked)
		loads[i] = page.make(client, query)
	}
	for round := range b.rounds + 1 {
		for i, page := range pages {
			prefix, keys := rand.Text()[:10], make([]string, manyKeys)
			for k := range keys {
				keys[k] = prefix + "/" + strconv.Itoa(k)
			}
			for _, scenario := range []string{"missing-200", "cached-200"} {
				s := sample{section: "many", scenario: scenario, who: page.name}
				asked.n.Store(0)
				queries.Store(0)
				begun := time.Now()
				values, err := loads[i](ctx, keys)
				took := time.Since(begun)
				if err == nil && (len(values) != len(keys) || values[keys[0]] != "the value of "+keys[0]) {
					err = fmt.Errorf("%d values", len(values))
				}
				if err != nil {
					return fmt.Errorf("%s: %w", s.name(), err)
				}
				time.Sleep(50 * time.Millisecond) // for what is stored behind the caller's back
				if round == 0 || !b.match.MatchString(s.name()) {
					continue // it opened the connections
				}
				s.metrics = []metric{
					{milliseconds(took), "ms"}, {float64(asked.n.Load()), "requests"}, {float64(queries.Load()), "queries"},
				}
				if err := b.record(s); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
