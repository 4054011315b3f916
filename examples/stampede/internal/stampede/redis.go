package stampede

import (
	"context"
	"errors"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
)

// OpenRedis is Open of every backend on Redis.
func OpenRedis(ctx context.Context, a Address) (Server, Address, error) {
	client := redis.NewClient(&redis.Options{Addr: a.Host, MaxRetries: -1, DialTimeout: Patience})
	if err := client.Ping(ctx).Err(); err != nil {
		client.Close()
		return nil, a, err
	}
	return &redisServer{client: client}, a, nil
}

type redisServer struct {
	client *redis.Client
	asked  int64
}

func (s *redisServer) Expire(ctx context.Context, key string) error {
	if err := s.client.PExpire(ctx, key, time.Millisecond).Err(); err != nil {
		return err
	}
	return Gone(ctx, func() (bool, error) {
		n, err := s.client.Exists(ctx, key).Result()
		return n > 0, err
	})
}

// Requests counts the reads from clients, in which a pipeline is one, less those that asked for it.
func (s *redisServer) Requests(ctx context.Context) (int64, error) {
	info, err := s.client.Info(ctx, "stats").Result()
	if err != nil {
		return 0, err
	}
	s.asked++
	reads, err := Number(info, "total_reads_processed:")
	return reads - s.asked, err
}

func (s *redisServer) Close() { s.client.Close() }

func connectRedis(a Address) (Cache, locker.Locker, error) {
	client := redis.NewClient(&redis.Options{Addr: a.Host, ContextTimeoutEnabled: true})
	return redisCache{client}, redisv9.New(client), nil
}

type redisCache struct{ client *redis.Client }

func (c redisCache) Get(ctx context.Context, key string) (string, bool, error) {
	v, err := c.client.Get(ctx, key).Result()
	if errors.Is(err, redis.Nil) {
		return "", false, nil
	}
	return v, err == nil, err
}

func (c redisCache) Set(ctx context.Context, key, v string) error {
	return c.client.Set(ctx, key, v, FreshFor).Err()
}

func (c redisCache) Add(ctx context.Context, key, v string) (bool, error) {
	return c.client.SetNX(ctx, key, v, FreshFor).Result()
}
