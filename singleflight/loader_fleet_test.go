package singleflight

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	redigolib "github.com/gomodule/redigo/redis"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/fleet"
	"github.com/golockers/locker/internal/leaktest"
	_ "github.com/golockers/locker/internal/quiet"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/memcache"
	"github.com/golockers/locker/redigo"
	"github.com/golockers/locker/redisv9"
)

// The processes of a fleet all load the same key at once.

const (
	// If longVariable is set, there are as many processes, goroutines and rounds as the goals name.
	longVariable = "LOCKER_LONG"
	fleetKey     = "hot"
	fleetTTL     = 3 * time.Second
)

func TestMain(m *testing.M) {
	fleet.Main(map[string]fleet.Role{"loader": runLoader, "refresher": runRefresher})
	leaktest.Main(m)
}

// job is the first order: the backend to use, and how many goroutines load the key.
type job struct {
	Backend, Addr string
	Goroutines    int
}

// order is each further one: to load the key.
type order struct {
	Round  int
	Source time.Duration // how long the source takes
}

// report says that the source was called (Loading), or what the callers of a process got.
type report struct {
	Process int // set by the parent
	Loading bool

	Loads  int
	Values []string // different ones
	Errors []string // different ones
	Loaded int64    // when its source returned, in Unix nanoseconds, or 0
	Last   int64    // when the last of its callers had the value
}

// fleetLocker returns the Locker and the cache that a process of the fleet uses.
func fleetLocker(backend, addr string) (locker.Locker, Cache[string]) {
	switch backend {
	case "redisv9":
		client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
		return redisv9.New(client), redisCache{client}
	case "redigo":
		pool := &redigolib.Pool{MaxIdle: 4, DialContext: func(ctx context.Context) (redigolib.Conn, error) {
			return redigolib.DialContext(ctx, "tcp", addr)
		}}
		return redigo.New(pool), redisCache{redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})}
	case "memcache":
		client := gomemcache.New(addr)
		return memcache.New(client), memcachedCache{client}
	}
	panic("unknown backend " + backend)
}

type redisCache struct{ client *redis.Client }

func (c redisCache) Get(ctx context.Context, key string) (string, bool, error) {
	v, err := c.client.Get(ctx, "cache:"+key).Result()
	if errors.Is(err, redis.Nil) {
		return "", false, nil
	}
	return v, err == nil, err
}

func (c redisCache) Set(ctx context.Context, key, v string) error {
	return c.client.Set(ctx, "cache:"+key, v, time.Minute).Err()
}

type memcachedCache struct{ client *gomemcache.Client }

func (c memcachedCache) Get(_ context.Context, key string) (string, bool, error) {
	item, err := c.client.Get("cache:" + key)
	if errors.Is(err, gomemcache.ErrCacheMiss) {
		return "", false, nil
	} else if err != nil {
		return "", false, err
	}
	return string(item.Value), true, nil
}

func (c memcachedCache) Set(_ context.Context, key, v string) error {
	return c.client.Set(&gomemcache.Item{Key: "cache:" + key, Value: []byte(v), Expiration: 60})
}

// runLoader is a process of the fleet.
func runLoader(c *fleet.Child) {
	var j job
	c.Receive(&j)
	l, cache := fleetLocker(j.Backend, j.Addr)
	var mu sync.Mutex
	var now order
	var loads atomic.Int32
	var loadedAt atomic.Int64
	loader := NewLoader(l, cache, func(context.Context, string) (string, error) {
		loads.Add(1)
		c.Report(report{Loading: true})
		time.Sleep(now.Source)
		loadedAt.Store(time.Now().UnixNano())
		return "value of round " + strconv.Itoa(now.Round), nil
	}, WithLockTTL(fleetTTL))

	for {
		c.Receive(&now)
		loads.Store(0)
		loadedAt.Store(0)
		var r report
		var wg sync.WaitGroup
		for range j.Goroutines {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				v, err := loader.Load(ctx, fleetKey)
				at := time.Now().UnixNano()
				mu.Lock()
				defer mu.Unlock()
				r.Last = max(r.Last, at)
				if err != nil && !slices.Contains(r.Errors, err.Error()) {
					r.Errors = append(r.Errors, err.Error())
				}
				if err == nil && !slices.Contains(r.Values, v) {
					r.Values = append(r.Values, v)
				}
			})
		}
		wg.Wait()
		for loader.stores.Load() > 0 { // or it could land after the parent has removed the value
			time.Sleep(time.Millisecond)
		}
		r.Loads, r.Loaded = int(loads.Load()), loadedAt.Load()
		c.Report(r)
	}
}

// loaders is the fleet, as the test sees it.
type loaders struct {
	t         *testing.T
	processes fleet.Fleet
	reports   chan report
}

func startLoaders(t *testing.T, processes int, j job) *loaders {
	t.Helper()
	started, err := fleet.Start("loader", processes)
	require.NoError(t, err)
	f := &loaders{t: t, processes: started, reports: make(chan report, 16*processes)}
	var readers sync.WaitGroup
	t.Cleanup(func() {
		f.processes.Kill()
		readers.Wait()
	})
	require.NoError(t, f.processes.Send(j))
	for i, p := range f.processes {
		readers.Go(func() {
			for {
				var r report
				if p.Receive(context.Background(), &r) != nil {
					return
				}
				r.Process = i
				f.reports <- r
			}
		})
	}
	return f
}

// begin makes all processes load.
func (f *loaders) begin(o order) {
	f.t.Helper()
	require.NoError(f.t, f.processes.Send(o))
}

func (f *loaders) next() report {
	f.t.Helper()
	select {
	case r := <-f.reports:
		return r
	case <-time.After(2 * time.Minute):
		f.t.Fatal("no report")
		panic("unreachable")
	}
}

// end waits for so many processes, and checks that each of their callers has the round's value. It returns
// how often the source was called, and how long after it had returned the last caller had the value.
func (f *loaders) end(o order, processes int) (loads int, after time.Duration) {
	f.t.Helper()
	var loaded, last int64
	for processes > 0 {
		r := f.next()
		if r.Loading {
			continue
		}
		processes--
		require.Empty(f.t, r.Errors)
		require.Equal(f.t, []string{"value of round " + strconv.Itoa(o.Round)}, r.Values)
		loads += r.Loads
		loaded, last = max(loaded, r.Loaded), max(last, r.Last)
	}
	return loads, time.Duration(last - loaded)
}

func median[T int | time.Duration](s []T) T {
	s = slices.Sorted(slices.Values(s))
	return s[len(s)/2]
}

func TestFleet(t *testing.T) {
	t.Run("redisv9", func(t *testing.T) { testFleet(t, "redisv9", testserver.Redis(t)) })
	t.Run("redigo", func(t *testing.T) { testFleet(t, "redigo", testserver.Redis(t)) })
	t.Run("memcache", func(t *testing.T) { testFleet(t, "memcache", testserver.Memcached(t)) })
	t.Run("holder killed", testFleetHolderKilled)
	t.Run("backend killed", testFleetBackendKilled)
}

// In each round all processes miss the key at once, and it is loaded once.
func testFleet(t *testing.T, backend string, server *testserver.Server) {
	processes, goroutines, rounds := 4, 20, 5
	if os.Getenv(longVariable) != "" {
		processes, goroutines, rounds = 8, 50, 100
	}
	var requests func() int // how many the server has had, this call included
	remove := func() {
		require.NoError(t, gomemcache.New(server.Addr).Delete("cache:"+fleetKey))
	}
	if backend != "memcache" {
		client := redis.NewClient(&redis.Options{Addr: server.Addr})
		t.Cleanup(func() { client.Close() })
		requests = func() int {
			info, err := client.InfoMap(t.Context(), "stats").Result()
			require.NoError(t, err)
			n, err := strconv.Atoi(info["Stats"]["total_reads_processed"])
			require.NoError(t, err)
			return n
		}
		remove = func() { require.NoError(t, client.Del(t.Context(), "cache:"+fleetKey).Err()) }
	}
	f := startLoaders(t, processes, job{backend, server.Addr, goroutines})

	for _, source := range []time.Duration{20 * time.Millisecond, 230 * time.Millisecond} {
		var asked []int
		var afters []time.Duration
		for round := range rounds {
			o := order{Round: round, Source: source}
			before := 0
			if requests != nil {
				before = requests()
			}
			f.begin(o)
			loads, after := f.end(o, processes)
			require.Equal(t, 1, loads, "loads in round %d", round)
			if requests != nil {
				asked = append(asked, requests()-before-1)
			}
			afters = append(afters, after)
			remove()
		}
		t.Logf("%d processes × %d goroutines, %v a load, %d rounds: one load in each; the last caller %v later (median)",
			processes, goroutines, source, rounds, median(afters))
		if requests != nil {
			t.Logf("%d requests a round (median)", median(asked))
		}
		if backend == "redisv9" {
			// The median, since a round on a busy machine may have slow polls in it.
			require.LessOrEqual(t, median(asked), 5*processes+4)
		}
	}
}

// The process that loads is killed: another one takes over when the lock has ended.
func testFleetHolderKilled(t *testing.T) {
	const processes = 3
	server := testserver.Redis(t)
	f := startLoaders(t, processes, job{"redisv9", server.Addr, 10})
	first := order{Round: 1, Source: time.Hour}
	f.begin(first)
	holder := f.next()
	require.True(t, holder.Loading)
	require.NoError(t, f.processes[holder.Process].Signal(os.Kill))

	// One of the others takes over, and is killed as well.
	second := f.next()
	require.True(t, second.Loading)
	require.NotEqual(t, holder.Process, second.Process)
	require.NoError(t, f.processes[second.Process].Signal(os.Kill))

	// Then the value is stored in another way: the last one finds it before it has the lock.
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer client.Close()
	require.NoError(t, redisCache{client}.Set(t.Context(), fleetKey, "value of round 1"))
	loads, _ := f.end(first, 1)
	require.Zero(t, loads)
}

// The backend of both locks and cache is killed while the source is at work: every caller gets a
// value, and each process calls the source no more than once.
func testFleetBackendKilled(t *testing.T) {
	const processes = 4
	server := testserver.Redis(t)
	f := startLoaders(t, processes, job{"redisv9", server.Addr, 20})
	o := order{Round: 1, Source: 2 * time.Second}
	f.begin(o)
	require.True(t, f.next().Loading)
	server.Stop()
	loads, _ := f.end(o, processes)
	require.LessOrEqual(t, loads, processes)

	// It comes back, empty: one load for all once more, as soon as every process has noticed.
	server.Restart()
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer client.Close()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		o = order{Round: o.Round + 1, Source: 100 * time.Millisecond}
		f.begin(o)
		loads, _ := f.end(o, processes)
		require.NoError(t, client.Del(t.Context(), "cache:"+fleetKey).Err())
		if loads == 1 {
			break
		}
		require.True(t, time.Now().Before(deadline), "still %d loads", loads)
	}
}
