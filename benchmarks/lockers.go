package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncgoredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	redsyncredigo "github.com/go-redsync/redsync/v4/redis/redigo"
	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/golockers/locker/memcache"
	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/redigo"
	"github.com/golockers/locker/redisv9"
	"github.com/golockers/locker/rueidis"
	redigoclient "github.com/gomodule/redigo/redis"
	"github.com/redis/go-redis/v9"
	rueidisclient "github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// lock waits for the lock of a key and returns what releases it.
type lock func(ctx context.Context, key string) (unlock func() error, err error)

// contender is a way to lock. Each waits as its library does by default, or as its name says.
type contender struct {
	name string
	ours bool
	open func(j job) (lock, error)
}

// ttl is longer than any run.
const ttl = 20 * time.Second

// ours is a lock of this library, with options of a cohort around it.
func ours(name string, make func(job) (locker.Locker, error), opts ...cohort.Option) contender {
	return contender{name, true, func(j job) (lock, error) {
		l, err := make(j)
		if err == nil && (strings.Contains(name, "+cohort") || opts != nil) {
			l = cohort.New(l, opts...)
		}
		return with(l), err
	}}
}

var redisLocks = []contender{
	ours("redisv9", newRedisv9),
	ours("redisv9+batch", func(j job) (locker.Locker, error) {
		return redisv9.New(goredis(j), redisv9.WithBatching(8)), nil
	}),
	ours("redisv9+cohort", newRedisv9),
	ours("redigo", newRedigo),
	ours("redigo+cohort", newRedigo),
	ours("rueidis", newRueidis),
	ours("rueidis+cohort", newRueidis),
	{"redislock-1ms", false, func(j job) (lock, error) { return redislockPolling(j, time.Millisecond), nil }},
	{"redislock-100ms", false, func(j job) (lock, error) { return redislockPolling(j, 100*time.Millisecond), nil }},
	{"redsync-goredis", false, func(j job) (lock, error) {
		return redsyncLock(redsync.New(redsyncgoredis.NewPool(goredis(j)))), nil
	}},
	{"redsync-redigo", false, func(j job) (lock, error) {
		return redsyncLock(redsync.New(redsyncredigo.NewPool(redigoPool(j)))), nil
	}},
	{"rueidislock", false, rueidisLock},
	{"by-hand-1ms", false, func(j job) (lock, error) { return byHand(goredis(j)), nil }},
	{"autopipeline-1ms", false, func(j job) (lock, error) {
		client, err := goredis(j).AutoPipeline()
		return byHand(client), err
	}},
}

func newRedisv9(j job) (locker.Locker, error)  { return redisv9.New(goredis(j)), nil }
func newRedigo(j job) (locker.Locker, error)   { return redigo.New(redigoPool(j)), nil }
func newMemcache(j job) (locker.Locker, error) { return memcache.New(gomemcached(j)), nil }
func newMemory(job) (locker.Locker, error)     { return memory.New(), nil }

func newRueidis(j job) (locker.Locker, error) {
	client, err := rueidisclient.NewClient(rueidisclient.ClientOption{InitAddress: []string{j.Redis}})
	return rueidis.New(client), err
}

var memcachedLocks = []contender{
	ours("memcache", newMemcache),
	ours("memcache+cohort", newMemcache),
	{"add-delete-1ms", false, addDelete},
}

var memoryLocks = []contender{
	ours("memory", newMemory),
	{"mutex-map", false, mutexMap},
}

func findContender(name string) (contender, error) {
	for _, list := range [][]contender{redisLocks, lingering, memcachedLocks, memoryLocks, postgresLocks, sqlLocks, etcdLocks, {noLock}} {
		for _, c := range list {
			if c.name == name {
				return c, nil
			}
		}
	}
	return contender{}, fmt.Errorf("no contender %q", name)
}

// open opens the contender of a process.
func open(contenders []contender, j job) (lock, error) {
	i := slices.IndexFunc(contenders, func(c contender) bool { return c.name == j.Who })
	if i < 0 {
		return nil, fmt.Errorf("no contender %q", j.Who)
	}
	return contenders[i].open(j)
}

// noLock shows that an overlap is noticed.
var noLock = contender{"no-lock", false, func(job) (lock, error) {
	return func(context.Context, string) (func() error, error) { return func() error { return nil }, nil }, nil
}}

// with is this library's Lock and Unlock.
func with(l locker.Locker) lock {
	return func(ctx context.Context, key string) (func() error, error) {
		lease, err := locker.Lock(ctx, l, key, ttl)
		if err != nil {
			return nil, err
		}
		return func() error { return lease.Unlock(ctx) }, nil
	}
}

// connections are more than a Redis needs to be busy.
const connections = 64

func goredis(j job) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: j.Redis, PoolSize: connections, ContextTimeoutEnabled: true})
}

func redigoPool(j job) *redigoclient.Pool {
	return &redigoclient.Pool{
		MaxIdle: connections, MaxActive: connections, Wait: true,
		DialContext: func(ctx context.Context) (redigoclient.Conn, error) {
			return redigoclient.DialContext(ctx, "tcp", j.Redis, redigoclient.DialConnectTimeout(5*time.Second),
				redigoclient.DialReadTimeout(5*time.Second), redigoclient.DialWriteTimeout(5*time.Second))
		},
	}
}

func redislockPolling(j job, poll time.Duration) lock {
	client := redislock.New(goredis(j))
	return func(ctx context.Context, key string) (func() error, error) {
		held, err := client.Obtain(ctx, key, ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(poll)})
		if err != nil {
			return nil, err
		}
		return func() error { return held.Release(ctx) }, nil
	}
}

// redsyncLock pauses as redsync does by default, but does not give up after 32 tries.
func redsyncLock(r *redsync.Redsync) lock {
	return func(ctx context.Context, key string) (func() error, error) {
		mutex := r.NewMutex(key, redsync.WithExpiry(ttl), redsync.WithTries(1_000_000))
		if err := mutex.LockContext(ctx); err != nil {
			return nil, err
		}
		return func() error {
			if ok, err := mutex.UnlockContext(ctx); !ok || err != nil {
				return fmt.Errorf("unlock: %t, %w", ok, err)
			}
			return nil
		}, nil
	}
}

// rueidisLock is for a single server, with default options otherwise. It sometimes hangs, even with a second
// instead of 20 ms for an attempt (TryNextAfter), and more often with NoLoopTracking.
func rueidisLock(j job) (lock, error) {
	l, err := newRueidisLocker(j)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, key string) (func() error, error) {
		_, cancel, err := l.WithContext(ctx, key)
		if err != nil {
			return nil, err
		}
		return func() error { cancel(); return nil }, nil
	}, nil
}

func newRueidisLocker(j job) (rueidislock.Locker, error) {
	validity := ttl
	if j.TTL > 0 {
		validity = j.TTL
	}
	return rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidisclient.ClientOption{InitAddress: []string{j.Redis}},
		KeyMajority:  1, KeyValidity: validity,
	})
}

// compareAndDelete is the script that every article shows.
var compareAndDelete = redis.NewScript(
	`if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) else return 0 end`)

var errNotHeld = errors.New("the lock was not held")

// byHand is the usual hand-written lock, polled every millisecond.
func byHand(client redis.Cmdable) lock {
	return func(ctx context.Context, key string) (func() error, error) {
		token := rand.Text()
		for {
			ok, err := client.SetNX(ctx, key, token, ttl).Result()
			if err != nil {
				return nil, err
			}
			if ok {
				break
			}
			time.Sleep(time.Millisecond)
		}
		return func() error {
			n, err := compareAndDelete.Run(ctx, client, []string{key}, token).Int()
			if err == nil && n != 1 {
				err = errNotHeld
			}
			return err
		}, nil
	}
}

func gomemcached(j job) *gomemcache.Client {
	client := gomemcache.New(j.Memcached)
	client.Timeout, client.MaxIdleConns = 2*time.Second, connections
	return client
}

// addDelete is the usual hand-written lock. It has no owner, so a late delete frees the lock of
// another.
func addDelete(j job) (lock, error) {
	client := gomemcached(j)
	return func(ctx context.Context, key string) (func() error, error) {
		for {
			err := client.Add(&gomemcache.Item{Key: key, Value: []byte("locked"), Expiration: int32(ttl.Seconds())})
			if err == nil {
				break
			}
			if !errors.Is(err, gomemcache.ErrNotStored) {
				return nil, err
			}
			time.Sleep(time.Millisecond)
		}
		return func() error { return client.Delete(key) }, nil
	}, nil
}

// mutexMap is the usual hand-written lock within a process: no expiry, no context, no token.
func mutexMap(job) (lock, error) {
	type entry struct {
		sync.Mutex
		users int
	}
	var mu sync.Mutex
	entries := map[string]*entry{}
	return func(_ context.Context, key string) (func() error, error) {
		mu.Lock()
		e := entries[key]
		if e == nil {
			e = &entry{}
			entries[key] = e
		}
		e.users++
		mu.Unlock()
		e.Lock()
		return func() error {
			e.Unlock()
			mu.Lock()
			defer mu.Unlock()
			if e.users--; e.users == 0 {
				delete(entries, key)
			}
			return nil
		}, nil
	}, nil
}
