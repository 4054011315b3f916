package stampede

import (
	"context"
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
	if err := s.client.PExpire(ctx, Prefix+key, time.Millisecond).Err(); err != nil {
		return err
	}
	return Gone(ctx, func() (bool, error) {
		n, err := s.client.Exists(ctx, Prefix+key).Result()
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

// ConnectRedis is Connect of Redis.
func ConnectRedis(a Address) (Cache, locker.Locker, error) {
	client := redis.NewClient(&redis.Options{Addr: a.Host, ContextTimeoutEnabled: true})
	cache := redisv9.NewCache(client, redisv9.CacheConfig[string]{TTL: FreshFor, Prefix: Prefix})
	return cache, redisv9.New(client), nil
}
