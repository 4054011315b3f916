package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/golockers/locker/redigo"
	"github.com/golockers/locker/redisv9"
	"github.com/golockers/locker/rueidis"
	"github.com/golockers/locker/window"
	redigoclient "github.com/gomodule/redigo/redis"
	"github.com/redis/go-redis/v9"
	rueidisclient "github.com/redis/rueidis"
	"github.com/ulule/limiter/v3"
	limiterredis "github.com/ulule/limiter/v3/drivers/store/redis"
)

// allow reports whether one more call of key is within a limiter's limit.
type allow func(ctx context.Context, key string) (bool, error)

// limiting is a contender, which allows limit calls in a period of length per.
type limiting struct {
	name string
	ours bool
	open func(addr string, limit int64, per time.Duration) (allow, func(), error)
}

var limitings = []limiting{
	{"redisv9", true, ofWindow(func(c *redis.Client) window.Counter { return redisv9.New(c) })},
	{"redisv9-fixed", true, ofWindow(func(c *redis.Client) window.Counter { return redisv9.New(c) }, window.WithFixed())},
	{"redisv9-batching", true, ofWindow(func(c *redis.Client) window.Counter { return redisv9.New(c, redisv9.WithBatching(8)) })},
	{"rueidis", true, openRueidisLimiter},
	{"redigo", true, openRedigoLimiter},
	{"redis_rate", false, onGoRedis(func(c *redis.Client, limit int64, per time.Duration) (allow, error) {
		l := redis_rate.NewLimiter(c)
		return func(ctx context.Context, key string) (bool, error) {
			r, err := l.Allow(ctx, key, redis_rate.Limit{Rate: int(limit), Burst: int(limit), Period: per})
			return err == nil && r.Allowed > 0, err
		}, nil
	})},
	{"ulule-limiter", false, onGoRedis(func(c *redis.Client, limit int64, per time.Duration) (allow, error) {
		store, err := limiterredis.NewStore(c)
		if err != nil {
			return nil, err
		}
		l := limiter.New(store, limiter.Rate{Limit: limit, Period: per})
		return func(ctx context.Context, key string) (bool, error) {
			r, err := l.Get(ctx, key)
			return err == nil && !r.Reached, err
		}, nil
	})},
	{"by-hand-exists", false, onGoRedis(func(c *redis.Client, limit int64, per time.Duration) (allow, error) {
		return func(ctx context.Context, key string) (bool, error) { // EXISTS, then SETEX or INCR
			if n, err := c.Exists(ctx, key).Result(); err != nil || n == 0 {
				return err == nil, errors.Join(err, c.Set(ctx, key, 1, per).Err())
			}
			n, err := c.Incr(ctx, key).Result()
			return err == nil && n <= limit, err
		}, nil
	})},
	{"by-hand-expire", false, onGoRedis(func(c *redis.Client, limit int64, per time.Duration) (allow, error) {
		return func(ctx context.Context, key string) (bool, error) { // INCR, and EXPIRE for the first
			n, err := c.Incr(ctx, key).Result()
			if n == 1 {
				err = c.PExpire(ctx, key, per).Err()
			}
			return err == nil && n <= limit, err
		}, nil
	})},
}

func onGoRedis(make func(c *redis.Client, limit int64, per time.Duration) (allow, error)) func(string, int64, time.Duration) (allow, func(), error) {
	return func(addr string, limit int64, per time.Duration) (allow, func(), error) {
		client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true, PoolSize: limitWorkers})
		a, err := make(client, limit, per)
		return a, func() { client.Close() }, err
	}
}

func ofWindow(counter func(*redis.Client) window.Counter, opts ...window.Option) func(string, int64, time.Duration) (allow, func(), error) {
	return onGoRedis(func(c *redis.Client, limit int64, per time.Duration) (allow, error) {
		return allowBy(window.New(counter(c), limit, per, append(opts, window.WithFailClosed())...)), nil
	})
}

func allowBy(l *window.Limiter) allow {
	return func(ctx context.Context, key string) (bool, error) {
		d, err := l.Allow(ctx, key)
		return d.Allowed, err
	}
}

func openRueidisLimiter(addr string, limit int64, per time.Duration) (allow, func(), error) {
	client, err := rueidisclient.NewClient(rueidisclient.ClientOption{InitAddress: []string{addr}})
	if err != nil {
		return nil, nil, err
	}
	return allowBy(window.New(rueidis.New(client), limit, per, window.WithFailClosed())), client.Close, nil
}

func openRedigoLimiter(addr string, limit int64, per time.Duration) (allow, func(), error) {
	pool := &redigoclient.Pool{MaxIdle: limitWorkers, DialContext: func(ctx context.Context) (redigoclient.Conn, error) {
		return redigoclient.DialContext(ctx, "tcp", addr)
	}}
	return allowBy(window.New(redigo.New(pool), limit, per, window.WithFailClosed())), func() { pool.Close() }, nil
}

const limitWorkers = 32

// runWindow compares limiters by the number of their decisions, requests and wrong decisions.
func runWindow(ctx context.Context, b *bench) error {
	for range b.rounds {
		for _, sc := range []struct {
			name string
			run  func(ctx context.Context, b *bench, l limiting) ([]metric, error)
		}{
			{"own-keys", func(ctx context.Context, b *bench, l limiting) ([]metric, error) { return b.decide(ctx, l, 1e9, false) }},
			{"one-key", func(ctx context.Context, b *bench, l limiting) ([]metric, error) { return b.decide(ctx, l, 1e9, true) }},
			{"one-key-denied", func(ctx context.Context, b *bench, l limiting) ([]metric, error) { return b.decide(ctx, l, 10, true) }},
			{"accuracy", func(_ context.Context, b *bench, l limiting) ([]metric, error) { return b.judge(ctx, l) }},
		} {
			for _, l := range limitings {
				s := sample{section: "window", scenario: sc.name, who: l.name}
				if err := b.try(ctx, s, l.ours, func() ([]metric, error) { return sc.run(ctx, b, l) }); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// decide makes decisions in many goroutines at the same time.
func (b *bench) decide(ctx context.Context, l limiting, limit int64, oneKey bool) ([]metric, error) {
	allowed, closeClient, err := l.open(b.redis.addr, limit, time.Hour)
	if err != nil {
		return nil, err
	}
	defer closeClient()
	key := newKey("limit")
	if _, err := allowed(ctx, key); err != nil {
		return nil, err
	}
	before, err := b.redis.requests(ctx)
	if err != nil {
		return nil, err
	}
	var decisions atomic.Int64
	var mu sync.Mutex
	var errs []error
	var all sync.WaitGroup
	begun := time.Now()
	until := begun.Add(b.scaled(time.Second))
	for i := range limitWorkers {
		key := key
		if !oneKey {
			key += strconv.Itoa(i)
		}
		all.Go(func() {
			for time.Now().Before(until) {
				if _, err := allowed(ctx, key); err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
					return
				}
				decisions.Add(1)
			}
		})
	}
	all.Wait()
	took := time.Since(begun)
	after, err := b.redis.requests(ctx)
	n := float64(max(decisions.Load(), 1))
	return []metric{
		{float64(decisions.Load()) / took.Seconds(), "decisions/s"},
		{float64(after-before-1) / n, "requests/decision"},
	}, errors.Join(append(errs, err)...)
}

// judge compares decisions with those of an exact log of the calls that were allowed in the last
// second, while calls come at random, at 1.6 times the limit on average.
func (b *bench) judge(ctx context.Context, l limiting) ([]metric, error) {
	const limit, per = 50, time.Second
	allowed, closeClient, err := l.open(b.redis.addr, limit, per)
	if err != nil {
		return nil, err
	}
	defer closeClient()
	key := newKey("limit")
	var log []time.Time
	var all, tooMany, tooFew, most float64
	for begun := time.Now(); time.Since(begun) < b.scaled(5*time.Second); {
		time.Sleep(time.Duration(rand.ExpFloat64() * float64(per) / (1.6 * limit)))
		ok, err := allowed(ctx, key)
		if err != nil {
			return nil, fmt.Errorf("a decision: %w", err)
		}
		now := time.Now()
		for len(log) > 0 && now.Sub(log[0]) >= per {
			log = log[1:]
		}
		switch all++; {
		case ok && len(log) >= limit:
			tooMany++
		case !ok && len(log) < limit:
			tooFew++
		}
		if ok {
			log = append(log, now)
			most = max(most, float64(len(log)))
		}
	}
	return []metric{
		{100 * tooMany / all, "%-wrongly-allowed"},
		{100 * tooFew / all, "%-wrongly-denied"},
		{most, "most-in-a-window"},
	}, nil
}
