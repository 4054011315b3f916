package cache_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	redigolib "github.com/gomodule/redigo/redis"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cache"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/memcache"
	"github.com/golockers/locker/memory"
	"github.com/golockers/locker/redigo"
	"github.com/golockers/locker/redisv9"
	"github.com/golockers/locker/singleflight"
)

// What the caches of all adapters with a server have in common.

type config = cache.Config[string]

// valueCache is what each of them is.
type valueCache interface {
	singleflight.Cache[string]
	singleflight.Adder[string]
	singleflight.StaleCache[string]
	singleflight.Deleter[string]
}

// backend is a kind of server with its adapter.
type backend struct {
	name  string
	start func(tb testing.TB, args ...string) *testserver.Server
	// connect returns a Locker and a cache with connections of their own, as a process has them,
	// and counts what they write.
	connect func(tb testing.TB, addr string, c config) (locker.Locker, valueCache, *atomic.Int64)
	without func(c config) valueCache // a client
}

var backends = []backend{
	{"redisv9", testserver.Redis,
		func(tb testing.TB, addr string, c config) (locker.Locker, valueCache, *atomic.Int64) {
			writes := new(atomic.Int64)
			client := redis.NewClient(&redis.Options{Addr: addr, Dialer: dialer(writes)})
			tb.Cleanup(func() { assert.NoError(tb, client.Close()) })
			return redisv9.New(client), redisv9.NewCache(client, redisv9.CacheConfig[string](c)), writes
		},
		func(c config) valueCache { return redisv9.NewCache(nil, redisv9.CacheConfig[string](c)) },
	},
	{"redigo", testserver.Redis,
		func(tb testing.TB, addr string, c config) (locker.Locker, valueCache, *atomic.Int64) {
			writes := new(atomic.Int64)
			pool := &redigolib.Pool{MaxIdle: 16, DialContext: func(ctx context.Context) (redigolib.Conn, error) {
				return redigolib.DialContext(ctx, "tcp", addr, redigolib.DialContextFunc(dialer(writes)))
			}}
			tb.Cleanup(func() { assert.NoError(tb, pool.Close()) })
			return redigo.New(pool), redigo.NewCache(pool, redigo.CacheConfig[string](c)), writes
		},
		func(c config) valueCache { return redigo.NewCache(nil, redigo.CacheConfig[string](c)) },
	},
	{"memcache", testserver.Memcached,
		func(tb testing.TB, addr string, c config) (locker.Locker, valueCache, *atomic.Int64) {
			writes := new(atomic.Int64)
			client := gomemcache.New(addr)
			client.Timeout, client.DialContext = 5*time.Second, dialer(writes)
			tb.Cleanup(func() { assert.NoError(tb, client.Close()) })
			return memcache.New(client), memcache.NewCache(client, memcache.CacheConfig[string](c)), writes
		},
		func(c config) valueCache { return memcache.NewCache(nil, memcache.CacheConfig[string](c)) },
	},
}

func dialer(writes *atomic.Int64) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return countingConn{conn, writes}, err
	}
}

type countingConn struct {
	net.Conn
	writes *atomic.Int64
}

func (c countingConn) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}

// onEach runs a test on a cache of each kind.
func onEach(t *testing.T, c config, test func(t *testing.T, c valueCache, srv *testserver.Server)) {
	for _, b := range backends {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			srv := b.start(t)
			_, cache, _ := b.connect(t, srv.Addr, c)
			test(t, cache, srv)
		})
	}
}

// wantCached fails the test unless Get and Stale return these values; "" stands for none.
func wantCached(t *testing.T, c valueCache, key, fresh, stale string) {
	t.Helper()
	v, ok, err := c.Get(t.Context(), key)
	require.NoError(t, err)
	assert.Equal(t, fresh, v)
	assert.Equal(t, fresh != "", ok)
	v, ok, err = c.Stale(t.Context(), key)
	require.NoError(t, err)
	assert.Equal(t, stale, v)
	assert.Equal(t, stale != "", ok)
}

// operations are all those of c.
func operations(c valueCache, key string) map[string]func(ctx context.Context) (done bool, err error) {
	return map[string]func(ctx context.Context) (bool, error){
		"get":    func(ctx context.Context) (bool, error) { _, ok, err := c.Get(ctx, key); return ok, err },
		"stale":  func(ctx context.Context) (bool, error) { _, ok, err := c.Stale(ctx, key); return ok, err },
		"set":    func(ctx context.Context) (bool, error) { err := c.Set(ctx, key, "v"); return err == nil, err },
		"add":    func(ctx context.Context) (bool, error) { return c.Add(ctx, key, "v") },
		"delete": func(ctx context.Context) (bool, error) { err := c.Delete(ctx, key); return err == nil, err },
	}
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	for _, b := range backends {
		_, unreached, _ := b.connect(t, "127.0.0.1:1", config{TTL: time.Second, Stale: time.Second})
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		nilClient := "nil client"
		if b.name == "redigo" {
			nilClient = "nil pool"
		}
		for _, bad := range []struct {
			c    valueCache
			want string
		}{
			{b.without(config{TTL: time.Second, Stale: time.Second}), nilClient},
			{b.without(config{TTL: time.Second}), nilClient},
			{b.without(config{}), "config: TTL is 0 and TTLOf is nil"},
			{b.without(config{TTL: -time.Second}), "config: TTL is negative: -1s"},
			{b.without(config{TTL: time.Second, Stale: -time.Second}), "config: Stale is negative: -1s"},
			{unreached, "context canceled"},
		} {
			ctx := t.Context()
			if bad.c == unreached {
				ctx = ended
			}
			for name, operation := range operations(bad.c, "k") {
				done, err := operation(ctx)
				assert.False(t, done)
				require.Error(t, err, "%s %s", b.name, bad.want)
				assert.Regexp(t, fmt.Sprintf(`^%s: cache %s "k": .*%s$`, b.name, name, bad.want), err.Error())
			}
		}
	}
}

func TestCodec(t *testing.T) {
	t.Parallel()
	errBad := errors.New("bad value")
	c := config{
		TTL: time.Hour, Stale: time.Hour,
		Marshal: func(v string) ([]byte, error) {
			if v == "bad" {
				return nil, errBad
			}
			return []byte(strings.ToUpper(v)), nil
		},
		Unmarshal: func(b []byte) (string, error) {
			if string(b) == "UNREADABLE" {
				return "something", errBad
			}
			return strings.ToLower(string(b)), nil
		},
	}
	onEach(t, c, func(t *testing.T, c valueCache, _ *testserver.Server) {
		ctx := t.Context()
		require.NoError(t, c.Set(ctx, "k", "value"))
		wantCached(t, c, "k", "value", "value")

		require.ErrorIs(t, c.Set(ctx, "k", "bad"), errBad)
		_, err := c.Add(ctx, "l", "bad")
		require.ErrorIs(t, err, errBad)
		assert.ErrorContains(t, err, `cache add "l": marshal: bad value`)
		wantCached(t, c, "k", "value", "value")
		wantCached(t, c, "l", "", "")

		require.NoError(t, c.Set(ctx, "k", "unreadable"))
		v, ok, err := c.Get(ctx, "k")
		require.ErrorIs(t, err, errBad)
		assert.ErrorContains(t, err, `cache get "k": unmarshal 10 bytes: bad value`)
		assert.False(t, ok)
		assert.Empty(t, v)
		require.NoError(t, c.Set(ctx, "k", ""))
		v, ok, err = c.Get(ctx, "k")
		require.NoError(t, err)
		assert.True(t, ok, "no bytes are a value")
		assert.Empty(t, v)
	})
}

// A codec that panics is an event of a Loader, and not the end of the process.
func TestCodecPanics(t *testing.T) {
	t.Parallel()
	bad := errors.New("bad value")
	c := config{TTL: time.Hour, Marshal: func(string) ([]byte, error) { panic(bad) }}
	onEach(t, c, func(t *testing.T, c valueCache, _ *testserver.Server) {
		failed := make(chan error, 1)
		l := singleflight.NewLoader(memory.New(), c, func(context.Context, string) (string, error) { return "v", nil },
			singleflight.WithLoadObserver(func(_ context.Context, e singleflight.LoadEvent) {
				if e.Kind == singleflight.StoreFailed {
					failed <- e.Err
				}
			}))
		v, err := l.Load(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, "v", v)
		var p *singleflight.PanicError
		require.ErrorAs(t, <-failed, &p)
		require.ErrorIs(t, p, bad)
		require.NoError(t, l.Close(t.Context()))
	})
}

func TestTTLOf(t *testing.T) {
	t.Parallel()
	c := config{Stale: time.Hour, TTLOf: func(v string) time.Duration {
		switch v {
		case "never":
			return 0
		case "short":
			return 100 * time.Millisecond
		default:
			return time.Hour
		}
	}}
	onEach(t, c, func(t *testing.T, c valueCache, _ *testserver.Server) {
		ctx := t.Context()
		require.NoError(t, c.Set(ctx, "k", "short"))
		require.NoError(t, c.Set(ctx, "l", "long"))
		time.Sleep(150 * time.Millisecond)
		wantCached(t, c, "k", "", "short")
		wantCached(t, c, "l", "long", "long")

		added, err := c.Add(ctx, "k", "never")
		require.NoError(t, err)
		assert.False(t, added)
		wantCached(t, c, "k", "", "short")
		require.NoError(t, c.Set(ctx, "k", "never"))
		wantCached(t, c, "k", "", "")
	})
}

// Prefixes are apart, and the longest times there are do no harm.
func TestPrefixAndLongestTimes(t *testing.T) {
	t.Parallel()
	for _, b := range backends {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			addr := b.start(t).Addr
			_, one, _ := b.connect(t, addr, config{TTL: math.MaxInt64, Stale: math.MaxInt64})
			_, other, _ := b.connect(t, addr, config{TTL: math.MaxInt64, Prefix: "other:"})
			require.NoError(t, one.Set(t.Context(), "k", "one"))
			added, err := other.Add(t.Context(), "k", "other")
			require.NoError(t, err)
			require.True(t, added)
			wantCached(t, one, "k", "one", "one")
			v, ok, err := other.Get(t.Context(), "k")
			require.NoError(t, err)
			assert.True(t, ok)
			assert.Equal(t, "other", v)
			added, err = one.Add(t.Context(), "k", "again")
			require.NoError(t, err)
			assert.False(t, added)
		})
	}
}

// Loaders with prefixes of their own do not mix values in caches without one, though their keys are the
// same and either could decode those of the other.
func TestLoadersDoNotMix(t *testing.T) {
	onEach(t, config{TTL: time.Hour}, func(t *testing.T, c valueCache, _ *testserver.Server) {
		locks := memory.New()
		for range 2 {
			for _, prefix := range []string{"user/", "order/"} {
				l := singleflight.NewLoader(locks, c, func(_ context.Context, key string) (string, error) {
					return prefix + key, nil
				}, singleflight.WithKeyPrefix(prefix))
				v, err := l.Load(t.Context(), "42")
				require.NoError(t, err)
				assert.Equal(t, prefix+"42", v)
				require.NoError(t, l.Close(t.Context()))
			}
		}
	})
}

// redisv9 and redigo read each other's values.
func TestRedisAdaptersShareValues(t *testing.T) {
	t.Parallel()
	const ttl = 100 * time.Millisecond
	addr := testserver.Redis(t).Addr
	c := config{TTL: ttl, Stale: time.Hour}
	_, one, _ := backends[0].connect(t, addr, c)
	_, other, _ := backends[1].connect(t, addr, c)
	for range 2 {
		require.NoError(t, one.Set(t.Context(), "k", "value"))
		time.Sleep(ttl + 20*time.Millisecond)
		wantCached(t, other, "k", "", "value")
		one, other = other, one
	}
}

// The requests that the documentation of each Cache counts.
func TestRequests(t *testing.T) {
	t.Parallel()
	const ttl = 100 * time.Millisecond
	for name, want := range map[string]map[string]int64{
		"redisv9":  {"get": 1, "stale": 1, "stale, none": 0, "set": 1, "add": 1, "add, fresh": 1, "add, stale": 1, "delete": 1},
		"redigo":   {"get": 1, "stale": 1, "stale, none": 0, "set": 1, "add": 2, "add, fresh": 2, "add, stale": 2, "delete": 1},
		"memcache": {"get": 1, "stale": 1, "stale, none": 0, "set": 1, "add": 1, "add, fresh": 2, "add, stale": 3, "delete": 1},
	} {
		for _, b := range backends {
			if b.name != name {
				continue
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				addr := b.start(t).Addr
				_, short, shortWrites := b.connect(t, addr, config{TTL: ttl, Stale: time.Hour})
				_, long, longWrites := b.connect(t, addr, config{TTL: time.Hour, Prefix: "long:"})
				count := func(what string, writes *atomic.Int64, c valueCache, key, operation string, done bool) {
					t.Helper()
					before := writes.Load()
					ok, err := operations(c, key)[operation](t.Context())
					require.NoError(t, err)
					require.Equal(t, done, ok, what)
					assert.Equal(t, want[what], writes.Load()-before, what)
				}
				// Connections, which greet the server, and scripts are there.
				for _, c := range []valueCache{short, long} {
					for range 2 {
						_, err := c.Add(t.Context(), "warm", "v")
						require.NoError(t, err)
					}
				}
				count("set", longWrites, long, "k", "set", true)
				count("get", longWrites, long, "k", "get", true)
				count("stale, none", longWrites, long, "k", "stale", false)
				count("add, fresh", longWrites, long, "k", "add", false)
				count("delete", longWrites, long, "k", "delete", true)
				count("add", longWrites, long, "k", "add", true)

				count("set", shortWrites, short, "k", "set", true)
				time.Sleep(ttl + 20*time.Millisecond)
				count("get", shortWrites, short, "k", "get", false)
				count("stale", shortWrites, short, "k", "stale", true)
				count("add, stale", shortWrites, short, "k", "add", true)
			})
		}
	}
}

// A Delete takes effect after a Set that its caller has left behind.
func TestDeleteAfterAbandonedSet(t *testing.T) {
	t.Parallel()
	onEach(t, config{TTL: time.Hour, Stale: time.Hour}, func(t *testing.T, c valueCache, srv *testserver.Server) {
		require.NoError(t, c.Set(t.Context(), "k", "old"))
		srv.Pause()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, c.Set(ctx, "k", "new"), context.DeadlineExceeded)
		deleted := make(chan error, 1)
		go func() { deleted <- c.Delete(t.Context(), "k") }()
		srv.Continue()
		require.NoError(t, <-deleted)
		wantCached(t, c, "k", "", "")
	})
}

// fleetTTL is longer than a round takes on a busy machine.
const fleetTTL = 5 * time.Second

// fleet is a number of processes, each with a Loader of its own.
type fleet struct {
	loaders []*singleflight.Loader[string]
	loads   atomic.Int64
}

func newFleet(t *testing.T, b backend, addr string, c config) *fleet {
	t.Helper()
	const processes = 8
	f := new(fleet)
	for range processes {
		locks, cache, _ := b.connect(t, addr, c)
		f.loaders = append(f.loaders, singleflight.NewLoader(locks, cache,
			func(context.Context, string) (string, error) {
				n := f.loads.Add(1)
				time.Sleep(20 * time.Millisecond) // so that the others come in the meantime
				return fmt.Sprint("value ", n), nil
			}))
		l := f.loaders[len(f.loaders)-1]
		t.Cleanup(func() { assert.NoError(t, l.Close(context.Background())) })
	}
	return f
}

// loadAll loads the key with many callers in each process and returns the values they got.
func (f *fleet) loadAll(t *testing.T) map[string]int {
	t.Helper()
	const callers = 20
	got := make(map[string]int)
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, l := range f.loaders {
		for range callers {
			all.Go(func() {
				v, err := l.Load(t.Context(), "hot")
				if !assert.NoError(t, err) {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				got[v]++
			})
		}
	}
	all.Wait()
	return got
}

// A hot key that expires is loaded once by a fleet.
func TestFleetLoadsExpiredKeyOnce(t *testing.T) {
	t.Parallel()
	for _, b := range backends {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			addr := b.start(t).Addr
			f := newFleet(t, b, addr, config{TTL: fleetTTL})
			for round := 1; round <= 2; round++ {
				began := time.Now()
				got := f.loadAll(t)
				require.Less(t, time.Since(began), fleetTTL, "the machine is too slow: the value expired meanwhile")
				assert.Len(t, got, 1, "different values")
				assert.EqualValues(t, round, f.loads.Load(), "loads after %d rounds", round)
				_, c, _ := b.connect(t, addr, config{TTL: fleetTTL})
				require.Eventually(t, func() bool {
					_, ok, err := c.Get(t.Context(), "hot")
					return err == nil && !ok
				}, time.Minute, 10*time.Millisecond, "the value does not expire")
			}
		})
	}
}

// After Update no process of a fleet is given the old value, fresh or stale.
func TestFleetUpdate(t *testing.T) {
	t.Parallel()
	for _, b := range backends {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			addr := b.start(t).Addr
			var loaders []*singleflight.Loader[string]
			var source atomic.Value
			source.Store("old")
			for range 2 {
				locks, cache, _ := b.connect(t, addr, config{TTL: time.Hour, Stale: time.Hour})
				loaders = append(loaders, singleflight.NewLoader(locks, cache,
					func(context.Context, string) (string, error) { return source.Load().(string), nil }))
				l := loaders[len(loaders)-1]
				t.Cleanup(func() { assert.NoError(t, l.Close(context.Background())) })
			}
			for i, want := range []string{"old", "new", "newer", "newest"} {
				if i > 0 {
					require.NoError(t, loaders[i%2].Update(t.Context(), "k", func(context.Context) error {
						source.Store(want)
						return nil
					}))
				}
				for _, l := range loaders {
					v, err := l.Load(t.Context(), "k")
					require.NoError(t, err)
					assert.Equal(t, want, v)
				}
			}
		})
	}
}

// While a stale value is refreshed, all callers have it, and one process loads.
func TestFleetRefreshesStaleKeyOnce(t *testing.T) {
	t.Parallel()
	for _, b := range backends {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			addr := b.start(t).Addr
			c := config{TTL: fleetTTL, Stale: time.Hour}
			f := newFleet(t, b, addr, c)
			assert.Equal(t, map[string]int{"value 1": 160}, f.loadAll(t))
			_, reader, _ := b.connect(t, addr, c)
			require.Eventually(t, func() bool {
				_, ok, err := reader.Get(t.Context(), "hot")
				return err == nil && !ok
			}, time.Minute, 10*time.Millisecond, "the value does not expire")

			began := time.Now()
			got := f.loadAll(t)
			require.Less(t, time.Since(began), fleetTTL, "the machine is too slow: the value expired meanwhile")
			assert.Equal(t, 160, got["value 1"]+got["value 2"], "%v", got)
			assert.Positive(t, got["value 1"], "the stale value")
			require.Eventually(t, func() bool {
				v, _, err := reader.Stale(t.Context(), "hot")
				return err == nil && v == "value 2"
			}, time.Minute, 5*time.Millisecond, "the value is not refreshed")
			assert.EqualValues(t, 2, f.loads.Load())
		})
	}
}
