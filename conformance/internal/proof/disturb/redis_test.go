package disturb

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golockers/locker/conformance/internal/proof/load"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

var onRedis = backend{
	start:   one(testserver.Redis),
	eternal: eternalOnRedis,
	base:    load.Redisv9(),
	adapters: map[string][]load.Open{
		"redisv9 and rueidis": {load.Redisv9(), load.Rueidis},
		"redisv9+batching":    {load.Redisv9(redisv9.WithBatching(1))},
		"redigo":              {load.Redigo},
	},
	disturbances: withFullMemory(map[string]disturbance{
		"SCRIPT FLUSH": {finds: []string{runsByHash}, do: func(e *env) {
			for range 20 {
				e.redis("SCRIPT", "FLUSH")
				time.Sleep(5 * time.Millisecond)
			}
		}},
		"FLUSHALL": {
			loses: true, finds: []string{storedOnce, countsFences},
			do: func(e *env) { e.redis("FLUSHALL") },
		},
		"DEBUG SLEEP": {
			args: []string{"--enable-debug-command", "yes"}, finds: []string{slowIsSuccess, losesSlow},
			do: func(e *env) { e.redis("DEBUG", "SLEEP", "0.3") },
		},
		"CLIENT PAUSE": {
			finds: []string{slowIsSuccess}, do: func(e *env) { e.pause() },
		},
		"CLIENT PAUSE WRITE": {
			finds: []string{slowIsSuccess}, do: func(e *env) { e.pause("WRITE") },
		},
		"CLIENT KILL": {finds: []string{errorIsSuccess, hearsOnce}, do: func(e *env) {
			for _, kind := range []string{"normal", "pubsub", "normal"} {
				e.redis("CLIENT", "KILL", "TYPE", kind)
				time.Sleep(20 * time.Millisecond)
			}
		}},
		"maxclients": {fails: true, finds: []string{errorIsSuccess}, do: func(e *env) {
			admin := e.admin()
			e.do(admin, "CONFIG", "SET", "maxclients", "4")
			e.do(admin, "CLIENT", "KILL", "TYPE", "normal")
			e.do(admin, "CLIENT", "KILL", "TYPE", "pubsub")
			time.Sleep(300 * time.Millisecond)
			e.do(admin, "CONFIG", "SET", "maxclients", "10000")
		}},
		"SIGSTOP of Redis":     {finds: []string{slowIsSuccess, losesSlow}, do: suspend},
		"restart without data": {loses: true, fails: true, finds: []string{storedOnce, countsFences}, do: restart},
		"restart with data": {
			args: []string{"--appendonly", "yes", "--appendfsync", "always"}, fails: true, finds: []string{errorIsSuccess},
			do: restart,
		},
		"PSUBSCRIBE *": {finds: []string{countsReceivers}, do: func(e *env) {
			sub := e.client().PSubscribe(e.ctx, "*")
			_, err := sub.Receive(e.ctx) // from then on it does not read
			require.NoError(e, err)
			time.Sleep(200 * time.Millisecond)
			require.NoError(e, sub.Close())
		}},
		"ACL changes": {fails: true, finds: []string{errorIsSuccess}, do: func(e *env) {
			admin := e.admin()
			for _, rules := range []string{"-subscribe", "resetchannels", "-evalsha -eval", "-set -psetex -multi", "-@all"} {
				e.do(admin, append([]any{"ACL", "SETUSER", "default"}, words(rules)...)...)
				time.Sleep(50 * time.Millisecond)
				e.do(admin, "ACL", "SETUSER", "default", "on", "nopass", "~*", "&*", "+@all")
				time.Sleep(50 * time.Millisecond)
			}
		}},
	}),
}

// withFullMemory adds a disturbance for each policy of a server that has no memory left. All but one
// make room by forgetting keys.
func withFullMemory(all map[string]disturbance) map[string]disturbance {
	const none = "noeviction"
	for _, policy := range []string{
		none, "allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl",
	} {
		finds := []string{storedOnce}
		if policy == none {
			finds = []string{errorIsSuccess}
		}
		all["OOM "+policy] = disturbance{loses: policy != none, fails: policy == none, finds: finds, do: func(e *env) {
			admin := e.admin()
			e.do(admin, "CONFIG", "SET", "maxmemory-policy", policy)
			e.do(admin, "CONFIG", "SET", "maxmemory", e.used(admin)+100_000)
			end := time.Now().Add(300 * time.Millisecond)
			for i := 0; time.Now().Before(end); i++ { // some of it without an expiry
				admin.Set(e.ctx, fmt.Sprint("junk", i), strings.Repeat("x", 5000), time.Duration(i%4)*time.Minute)
				time.Sleep(time.Millisecond)
			}
			e.do(admin, "CONFIG", "SET", "maxmemory", "0")
			for i := range 1000 {
				admin.Del(e.ctx, fmt.Sprint("junk", i))
			}
		}}
	}
	return all
}

// eternalOnRedis looks at the keys of a server.
func eternalOnRedis(t *testing.T, s *system) func(ctx context.Context) (int, error) {
	client := redis.NewClient(&redis.Options{Addr: s.addr, PoolSize: 1, MaxRetries: -1, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	return func(ctx context.Context) (n int, err error) {
		keys, err := client.Keys(ctx, "*window:*").Result()
		for _, key := range keys {
			left, err := client.PTTL(ctx, key).Result()
			if err != nil {
				return 0, err
			}
			if left == -1 {
				n++
			}
		}
		return n, err
	}
}

func (e *env) client() *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: e.server.Addr, ReadTimeout: time.Minute})
	e.Cleanup(func() { _ = client.Close() })
	return client
}

// admin is a connection of another user, which is one that stays.
func (e *env) admin() *redis.Conn {
	e.redis("ACL", "SETUSER", "admin", "on", "nopass", "~*", "&*", "+@all")
	admin := e.client().Conn()
	e.Cleanup(func() { _ = admin.Close() })
	require.NoError(e, admin.AuthACL(e.ctx, "admin", "").Err())
	return admin
}

func (e *env) redis(command ...any) { e.do(e.client().Conn(), command...) }

// pause makes the server answer late, and returns when it answers again.
func (e *env) pause(what ...any) {
	e.redis(append([]any{"CLIENT", "PAUSE", "300"}, what...)...)
	time.Sleep(350 * time.Millisecond)
}

func (e *env) do(conn *redis.Conn, command ...any) {
	e.Helper()
	cmd := redis.NewCmd(e.ctx, command...)
	require.NoError(e, conn.Process(e.ctx, cmd))
}

func (e *env) used(conn *redis.Conn) int {
	info, err := conn.Info(e.ctx, "memory").Result()
	require.NoError(e, err)
	_, rest, _ := strings.Cut(info, "used_memory:")
	n, err := strconv.Atoi(rest[:strings.IndexByte(rest, '\r')])
	require.NoError(e, err)
	return n
}

func words(text string) (all []any) {
	for _, word := range strings.Fields(text) {
		all = append(all, word)
	}
	return all
}
