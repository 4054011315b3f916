package main

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/dtm-labs/rockscache"
	"github.com/go-redis/cache/v9"
	"github.com/golockers/locker/redisv9"
	"github.com/golockers/locker/singleflight"
	"github.com/redis/go-redis/v9"
	xsync "golang.org/x/sync/singleflight"
)

// strategies are ways to get the value of a key that may be missing from the cache. All have the same
// client and the same source.
var strategies = []strategy{
	{"Loader", true, loader},
	{"Fleet", true, fleetCalls},
	{"setnx-10ms", false, func(s service) load { return setnx(s, 10*time.Millisecond) }},
	{"setnx-50ms", false, func(s service) load { return setnx(s, 50*time.Millisecond) }},
	{"setnx-pubsub", false, setnxPubSub},
	{"rockscache", false, rocks},
	{"go-redis-cache", false, goRedisCache},
	{"no-protection", false, unprotected},
}

type strategy struct {
	name  string
	ours  bool
	build func(service) load
}

// load is what every caller calls.
type load func(context.Context) (string, error)

// service is what an application has.
type service struct {
	client  *redis.Client
	key     string
	source  func() (string, error)
	lockTTL time.Duration // 0 is the strategy's default
}

// freshFor is how long a value stays in the cache; no run takes that long.
const freshFor = 10 * time.Minute

func (s service) Get(ctx context.Context, key string) (string, bool, error) {
	v, err := s.client.Get(ctx, key).Result()
	if errors.Is(err, redis.Nil) {
		return "", false, nil
	}
	return v, err == nil, err
}

func (s service) Set(ctx context.Context, key, v string) error {
	return s.client.Set(ctx, key, v, freshFor).Err()
}

func loader(s service) load {
	l := singleflight.NewLoader(redisv9.New(s.client), redisv9.NewCache(s.client, redisv9.CacheConfig[string]{TTL: freshFor}),
		func(context.Context, string) (string, error) { return s.source() }, singleflight.WithLockTTL(s.lockTTL))
	return func(ctx context.Context) (string, error) { return l.Load(ctx, s.key) }
}

// fleetCalls has no cache: the value is in a slot for a moment.
func fleetCalls(s service) load {
	f := singleflight.NewFleet(redisv9.New(s.client), redisv9.NewCache(s.client, redisv9.CacheConfig[string]{TTL: freshFor}),
		singleflight.WithLockTTL(s.lockTTL))
	return func(ctx context.Context) (string, error) {
		v, _, err := f.Do(ctx, s.key, func(context.Context) (string, error) { return s.source() })
		return v, err
	}
}

// cached are the keys on the server that the strategies use for one key.
func cached(key string) []string { return []string{key, "cache:" + key, "!load:{cache:" + key + "}"} }

// setnx is what one writes by hand: x/sync within a process, SET NX PX between processes. A process that does not
// get that lock looks again after a pause.
func setnx(s service, poll time.Duration) load {
	return setnxWith(s, compareAndDelete, func() {}, func() { time.Sleep(poll) })
}

// setnxPubSub waits for a message where setnx pauses: about the least code that delivers the value immediately.
// A connection that breaks, or a message that is missed, goes unnoticed for a second.
func setnxPubSub(s service) load {
	pubsub := s.client.Subscribe(context.Background(), s.key+":lock")
	_, _ = pubsub.Receive(context.Background()) // now it is subscribed
	messages := pubsub.Channel()
	return setnxWith(s, compareDeleteAndTell, func() {
		for len(messages) > 0 {
			<-messages // from an earlier round
		}
	}, func() {
		select {
		case <-messages:
		case <-time.After(time.Second):
		}
	})
}

var compareDeleteAndTell = redis.NewScript(
	`if redis.call("GET", KEYS[1]) == ARGV[1] then redis.call("DEL", KEYS[1]) redis.call("PUBLISH", KEYS[1], "") end`)

// setnxWith calls begin before it first looks for the value, and rest before it looks again.
func setnxWith(s service, release *redis.Script, begin, rest func()) load {
	var flights xsync.Group
	lockKey, lockTTL := s.key+":lock", s.lockTTL
	if lockTTL == 0 {
		lockTTL = 10 * time.Second
	}
	one := func(ctx context.Context) (string, error) {
		begin()
		for {
			if v, ok, err := s.Get(ctx, s.key); ok || err != nil {
				return v, err
			}
			token := rand.Text()
			ok, err := s.client.SetNX(ctx, lockKey, token, lockTTL).Result()
			if err != nil {
				return "", err
			}
			if ok {
				defer release.Run(ctx, s.client, []string{lockKey}, token)
				if v, ok, err := s.Get(ctx, s.key); ok || err != nil {
					return v, err
				}
				v, err := s.source()
				if err != nil {
					return "", err
				}
				return v, s.Set(ctx, s.key, v)
			}
			rest()
		}
	}
	return func(ctx context.Context) (string, error) {
		v, err, _ := flights.Do(s.key, func() (any, error) { return one(ctx) })
		if err != nil {
			return "", err
		}
		return v.(string), nil
	}
}

func rocks(s service) load {
	options := rockscache.NewDefaultOptions()
	if s.lockTTL > 0 {
		options.LockExpire = s.lockTTL // whole seconds
	}
	client := rockscache.NewClient(s.client, options)
	return func(ctx context.Context) (string, error) { return client.Fetch2(ctx, s.key, freshFor, s.source) }
}

func goRedisCache(s service) load {
	c := cache.New(&cache.Options{Redis: s.client})
	return func(ctx context.Context) (string, error) {
		var v string
		err := c.Once(&cache.Item{
			Ctx: ctx, Key: s.key, Value: &v, TTL: freshFor,
			Do: func(*cache.Item) (any, error) { return s.source() },
		})
		return v, err
	}
}

func unprotected(s service) load {
	return func(ctx context.Context) (string, error) {
		if v, ok, err := s.Get(ctx, s.key); ok || err != nil {
			return v, err
		}
		v, err := s.source()
		if err != nil {
			return "", err
		}
		return v, s.Set(ctx, s.key, v)
	}
}
