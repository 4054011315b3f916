package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker"
	"github.com/golockers/locker/etcd"
	"github.com/golockers/locker/memcache"
	"github.com/golockers/locker/postgres"
	"github.com/golockers/locker/redigo"
	"github.com/golockers/locker/redisv9"
	"github.com/golockers/locker/rueidis"
	"github.com/golockers/locker/singleflight"
	redigoclient "github.com/gomodule/redigo/redis"
	"github.com/redis/go-redis/v9"
	rueidisclient "github.com/redis/rueidis"
)

const (
	// freshFor is how long a value stays in the cache. No round takes that long: the parent lets the key
	// expire before each.
	freshFor = 10 * time.Minute

	// patience bounds a dial, a request and a reply.
	patience = 5 * time.Second
)

// forms are the accepted values of -backend.
const forms = "redis://host:port, rueidis://host:port, redigo://host:port, memcache://host:port, " +
	"etcd://host:port or postgres://user@host:port/database"

// address is a parsed -backend.
type address struct {
	Scheme, Host   string
	User, Database string // of PostgreSQL
}

func (a address) String() string {
	if a.User != "" {
		return a.Scheme + "://" + url.PathEscape(a.User) + "@" + a.Host + "/" + url.PathEscape(a.Database)
	}
	return a.Scheme + "://" + a.Host
}

func parseAddress(s string) (*address, error) {
	u, err := url.Parse(s)
	if err == nil {
		_, err = strconv.ParseUint(u.Port(), 10, 16)
	}
	if err != nil || u.Hostname() == "" {
		return nil, fmt.Errorf("-backend %q is none of %s", s, forms)
	}
	a := &address{Scheme: u.Scheme, Host: u.Host}
	switch u.Scheme {
	case "redis", "rueidis", "redigo", "memcache", "etcd":
	case "postgres":
		a.User, a.Database = u.User.Username(), strings.TrimPrefix(u.Path, "/")
		if a.User == "" || a.Database == "" {
			a = &address{}
		}
	default:
		a = &address{}
	}
	if a.String() == s { // there is nothing else in it
		return a, nil
	}
	return nil, fmt.Errorf("-backend %q is none of %s", s, forms)
}

// cache is what the strategies keep the value in.
type cache interface {
	singleflight.Cache[string]
	singleflight.Adder[string]
}

// connect opens the cache and the locks of one process.
func connect(a address) (cache, locker.Locker, error) {
	switch a.Scheme {
	case "redis":
		client := redis.NewClient(&redis.Options{Addr: a.Host, ContextTimeoutEnabled: true})
		return redisCache{client}, redisv9.New(client), nil
	case "rueidis":
		client, err := rueidisclient.NewClient(rueidisclient.ClientOption{InitAddress: []string{a.Host}})
		if err != nil {
			return nil, nil, err
		}
		return rueidisCache{client}, rueidis.New(client), nil
	case "redigo":
		pool := &redigoclient.Pool{
			MaxIdle: 20, MaxActive: 20, Wait: true,
			DialContext: func(ctx context.Context) (redigoclient.Conn, error) {
				return redigoclient.DialContext(ctx, "tcp", a.Host, redigoclient.DialConnectTimeout(patience),
					redigoclient.DialReadTimeout(patience), redigoclient.DialWriteTimeout(patience))
			},
		}
		return redigoCache{pool}, redigo.New(pool), nil
	case "postgres":
		pool, err := openPool(a)
		return postgresCache{pool}, postgres.New(pool, postgres.WithTable(lockingTable)), err
	case "memcache":
		client := gomemcache.New(a.Host)
		client.Timeout, client.MaxIdleConns = patience, 20
		return memcacheCache{client}, memcache.New(client), nil
	case "etcd":
		client, err := etcdClient(a.Host)
		return etcdCache{client}, etcd.New(client), err
	}
	return nil, nil, fmt.Errorf("unknown backend %q", a)
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
	return c.client.Set(ctx, key, v, freshFor).Err()
}

func (c redisCache) Add(ctx context.Context, key, v string) (bool, error) {
	return c.client.SetNX(ctx, key, v, freshFor).Result()
}

type rueidisCache struct{ client rueidisclient.Client }

func (c rueidisCache) Get(ctx context.Context, key string) (string, bool, error) {
	v, err := c.client.Do(ctx, c.client.B().Get().Key(key).Build()).ToString()
	if rueidisclient.IsRedisNil(err) {
		return "", false, nil
	}
	return v, err == nil, err
}

func (c rueidisCache) Set(ctx context.Context, key, v string) error {
	return c.client.Do(ctx, c.client.B().Set().Key(key).Value(v).Px(freshFor).Build()).Error()
}

func (c rueidisCache) Add(ctx context.Context, key, v string) (bool, error) {
	err := c.client.Do(ctx, c.client.B().Set().Key(key).Value(v).Nx().Px(freshFor).Build()).Error()
	if rueidisclient.IsRedisNil(err) {
		return false, nil
	}
	return err == nil, err
}

type redigoCache struct{ pool *redigoclient.Pool }

func (c redigoCache) do(ctx context.Context, command string, args ...any) (string, bool, error) {
	conn, err := c.pool.GetContext(ctx)
	if err != nil {
		return "", false, err
	}
	defer conn.Close()
	v, err := redigoclient.String(redigoclient.DoContext(conn, ctx, command, args...))
	if errors.Is(err, redigoclient.ErrNil) {
		return "", false, nil
	}
	return v, err == nil, err
}

func (c redigoCache) Get(ctx context.Context, key string) (string, bool, error) {
	return c.do(ctx, "GET", key)
}

func (c redigoCache) Set(ctx context.Context, key, v string) error {
	_, _, err := c.do(ctx, "SET", key, v, "PX", freshFor.Milliseconds())
	return err
}

func (c redigoCache) Add(ctx context.Context, key, v string) (bool, error) {
	_, added, err := c.do(ctx, "SET", key, v, "PX", freshFor.Milliseconds(), "NX")
	return added, err
}

// memcacheCache is bounded by its client's timeout, since the client ignores contexts.
type memcacheCache struct{ client *gomemcache.Client }

func (c memcacheCache) item(key, v string) *gomemcache.Item {
	return &gomemcache.Item{Key: key, Value: []byte(v), Expiration: int32(freshFor.Seconds())}
}

func (c memcacheCache) Get(_ context.Context, key string) (string, bool, error) {
	item, err := c.client.Get(key)
	if errors.Is(err, gomemcache.ErrCacheMiss) {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	return string(item.Value), true, nil
}

func (c memcacheCache) Set(_ context.Context, key, v string) error {
	return c.client.Set(c.item(key, v))
}

func (c memcacheCache) Add(_ context.Context, key, v string) (bool, error) {
	err := c.client.Add(c.item(key, v))
	if errors.Is(err, gomemcache.ErrNotStored) {
		return false, nil
	}
	return err == nil, err
}
