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
	for i, client := range []func(t *testing.T, addr string, user []any) (locker.Lister, func(args ...any) error){
		redisUser, redigoUser,
	} {
		addr := testserver.Redis(t).Addr
		admin := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { assert.NoError(t, admin.Close()) })
		user := []any{"acl", "setuser"}
		for _, word := range strings.Fields(commands[i][1]) {
			user = append(user, word)
		}
		require.NoError(t, admin.Do(t.Context(), user...).Err())
		l, do := client(t, addr, user)
		useEverything(t, l)
		for _, key := range []string{"other", "!queue:other", "!other"} {
			assert.ErrorContains(t, do("GET", key), "NOPERM")
			assert.ErrorContains(t, do("PUBLISH", key, "x"), "NOPERM")
		}
		assert.ErrorContains(t, do("FLUSHALL"), "NOPERM")
		log, err := admin.Do(t.Context(), "acl", "log").Slice()
		require.NoError(t, err)
		assert.Len(t, log, 7, fmt.Sprint(log))
	}
}

func redisUser(t *testing.T, addr string, user []any) (locker.Lister, func(args ...any) error) {
	client := redis.NewClient(&redis.Options{Addr: addr, Username: fmt.Sprint(user[2]), Password: "secret"})
	t.Cleanup(func() { assert.NoError(t, client.Close()) })
	return redisv9.New(client), func(args ...any) error { return client.Do(context.Background(), args...).Err() }
}

func redigoUser(t *testing.T, addr string, user []any) (locker.Lister, func(args ...any) error) {
	pool := &redigoredis.Pool{MaxIdle: 4, DialContext: func(ctx context.Context) (redigoredis.Conn, error) {
		return redigoredis.DialContext(ctx, "tcp", addr,
			redigoredis.DialUsername(fmt.Sprint(user[2])), redigoredis.DialPassword("secret"))
	}}
	t.Cleanup(func() { assert.NoError(t, pool.Close()) })
	return redigo.New(pool), func(args ...any) error {
		conn := pool.Get()
		defer conn.Close()
		_, err := conn.Do(fmt.Sprint(args[0]), args[1:]...)
		return err
	}
}

// useEverything makes every kind of request that an adapter for Redis makes.
func useEverything(t *testing.T, l locker.Lister) {
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
	for info, err := range l.List(ctx, "") {
		require.NoError(t, err)
		assert.Equal(t, "k", info.Key)
	}
	_, err = locker.Break(ctx, l, "k")
	require.NoError(t, err)
	<-wakeUps
	require.NoError(t, <-waited)
}
