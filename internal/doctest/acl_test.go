package doctest

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redigo"
	"github.com/golockers/locker/redisv9"
	"github.com/golockers/locker/singleflight"
	"github.com/golockers/locker/window"
	redigoredis "github.com/gomodule/redigo/redis"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The users of the page on operations can do all that the adapters do, and nothing outside of their keys.
func TestACL(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	commands := regexp.MustCompile(`(?m)^ACL SETUSER (.*)$`).FindAllStringSubmatch(
		strings.ReplaceAll(string(page), "\\\n", ""), -1)
	require.Len(t, commands, 2)
	for i, connect := range []func(t *testing.T, addr string, user []any) connection{redisUser, redigoUser} {
		addr := testserver.Redis(t).Addr
		admin := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { assert.NoError(t, admin.Close()) })
		user := []any{"acl", "setuser"}
		for _, word := range strings.Fields(commands[i][1]) {
			user = append(user, word)
		}
		require.NoError(t, admin.Do(t.Context(), user...).Err())
		c := connect(t, addr, user)
		useLocks(t, c.locks)
		require.NoError(t, admin.Do(t.Context(), "acl", "setuser", user[2], "~cache:*", "~!load:*").Err())
		useCache(t, c.cache)
		for _, key := range []string{"other", "!line:other", "!other"} {
			assert.ErrorContains(t, c.do("GET", key), "NOPERM")
			assert.ErrorContains(t, c.do("PUBLISH", key, "x"), "NOPERM")
		}
		assert.ErrorContains(t, c.do("FLUSHALL"), "NOPERM")
		log, err := admin.Do(t.Context(), "acl", "log").Slice()
		require.NoError(t, err)
		assert.Len(t, log, 7, fmt.Sprint(log))
	}
}

// connection is what a user does with a server.
type connection struct {
	locks locker.Lister
	cache cache
	do    func(args ...any) error
}

type cache interface {
	singleflight.Cache[string]
	singleflight.Adder[string]
	singleflight.StaleCache[string]
	singleflight.Deleter[string]
}

func redisUser(t *testing.T, addr string, user []any) connection {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr, Username: fmt.Sprint(user[2]), Password: "secret"})
	t.Cleanup(func() { assert.NoError(t, client.Close()) })
	return connection{
		locks: redisv9.New(client),
		cache: redisv9.NewCache(client, redisv9.CacheConfig[string]{TTL: time.Minute, Stale: time.Minute}),
		do:    func(args ...any) error { return client.Do(context.Background(), args...).Err() },
	}
}

func redigoUser(t *testing.T, addr string, user []any) connection {
	t.Helper()
	pool := &redigoredis.Pool{MaxIdle: 4, DialContext: func(ctx context.Context) (redigoredis.Conn, error) {
		return redigoredis.DialContext(ctx, "tcp", addr,
			redigoredis.DialUsername(fmt.Sprint(user[2])), redigoredis.DialPassword("secret"))
	}}
	t.Cleanup(func() { assert.NoError(t, pool.Close()) })
	return connection{
		locks: redigo.New(pool),
		cache: redigo.NewCache(pool, redigo.CacheConfig[string]{TTL: time.Minute, Stale: time.Minute}),
		do: func(args ...any) error {
			conn := pool.Get()
			defer conn.Close()
			_, err := conn.Do(fmt.Sprint(args[0]), args[1:]...)
			return err
		},
	}
}

// useLocks makes every kind of request that an adapter for Redis makes.
func useLocks(t *testing.T, l locker.Lister) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	holder, err := locker.Lock(ctx, l, "k", time.Minute)
	require.NoError(t, err)
	waited := make(chan error)
	go func() { waited <- locker.Do(ctx, l, "k", time.Minute, func(context.Context) error { return nil }) }()
	time.Sleep(100 * time.Millisecond) // to reach the queue, usually; the outcome does not depend on it
	wakeUps, err := l.(locker.Watcher).Watch(ctx, "k")
	require.NoError(t, err)
	_, err = holder.Fence(ctx)
	require.NoError(t, err)
	require.NoError(t, holder.Extend(ctx, time.Hour))
	_, err = l.(window.Counter).Count(ctx, "k", 1, time.Minute)
	require.NoError(t, err)
	for info, err := range l.List(ctx, "") {
		require.NoError(t, err)
		assert.Equal(t, "k", info.Key)
	}
	_, err = locker.Break(ctx, l, "k")
	require.NoError(t, err)
	<-wakeUps
	require.NoError(t, <-waited)
}

func useCache(t *testing.T, c cache) {
	t.Helper()
	ctx := t.Context()
	require.NoError(t, c.Set(ctx, "k", "v"))
	v, ok, err := c.Get(ctx, "k")
	require.NoError(t, err)
	assert.True(t, ok)
	assert.Equal(t, "v", v)
	_, _, err = c.Stale(ctx, "k")
	require.NoError(t, err)
	require.NoError(t, c.Delete(ctx, "k"))
	added, err := c.Add(ctx, "k", "v")
	require.NoError(t, err)
	assert.True(t, added)
}
