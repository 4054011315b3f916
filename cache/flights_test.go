package cache_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/golockers/locker/singleflight"
	"github.com/golockers/locker/singleflight/slots"
)

// A source that fails is called once or twice a round by 8 processes with 50 callers each.
func TestFleetSharesFailure(t *testing.T) {
	t.Parallel()
	for _, b := range backends {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			addr := b.start(t).Addr
			var calls atomic.Int64
			var loaders []*singleflight.Loader[string]
			for range 8 {
				locks, cache, _ := b.connect(t, addr, config{TTL: time.Minute})
				l := singleflight.NewLoader(locks, cache, func(context.Context, string) (string, error) {
					calls.Add(1)
					time.Sleep(300 * time.Millisecond)
					return "", errors.New("it failed")
				})
				t.Cleanup(func() { assert.NoError(t, l.Close(context.Background())) })
				loaders = append(loaders, l)
			}
			for range 3 {
				calls.Store(0)
				var callers sync.WaitGroup
				var remote atomic.Int64
				for _, l := range loaders {
					for range 50 {
						callers.Go(func() {
							_, err := l.Load(t.Context(), "hot")
							assert.ErrorContains(t, err, "it failed")
							if errors.As(err, new(*singleflight.RemoteError)) {
								remote.Add(1)
							}
						})
					}
				}
				callers.Wait()
				assert.LessOrEqual(t, calls.Load(), int64(2))
				assert.GreaterOrEqual(t, remote.Load(), int64(6*50))
			}
		})
	}
}

// A value whose load began before an Update is not stored after it, by a process that was stopped in
// between for longer than its lock lasts.
func TestStoppedLoaderStoresNothingOld(t *testing.T) {
	t.Parallel()
	for _, b := range backends {
		for _, stale := range []time.Duration{0, time.Hour} {
			t.Run(b.name+"/stale "+stale.String(), func(t *testing.T) {
				t.Parallel()
				addr := b.start(t).Addr
				locks, cache, _ := b.connect(t, addr, config{TTL: time.Second, Stale: stale})
				require.NoError(t, cache.Set(t.Context(), "k", "older"))
				require.Eventually(t, func() bool {
					_, ok, err := cache.Get(t.Context(), "k")
					return err == nil && !ok
				}, time.Minute, 10*time.Millisecond)
				keeper := cache.(slots.Keeper[string])
				old := &slots.Slot[string]{Key: "k", Hold: time.Minute}
				require.NoError(t, keeper.Look(t.Context(), old)) // its miss
				require.NotZero(t, old.Version)

				_, other, _ := b.connect(t, addr, config{TTL: time.Hour, Stale: stale})
				l := singleflight.NewLoader(locks, other, func(context.Context, string) (string, error) { return "new", nil })
				t.Cleanup(func() { assert.NoError(t, l.Close(context.Background())) })
				for _, then := range []func() error{
					func() error { return nil },
					func() error { _, err := l.Load(t.Context(), "k"); return err },
					func() error {
						return locker.Do(t.Context(), locks, "k", time.Minute, func(context.Context) error { return nil })
					},
				} {
					require.NoError(t, l.Update(t.Context(), "k", func(context.Context) error { return nil }))
					require.NoError(t, then())
					old.Value = "old"
					require.NoError(t, keeper.Put(t.Context(), old))
					require.NoError(t, old.Err)
					require.False(t, old.Stored)
					v, err := l.Load(t.Context(), "k")
					require.NoError(t, err)
					require.Equal(t, "new", v)
				}
			})
		}
	}
}

// A value that is not to be stored ends its load as any other does. If that load is outdated, it
// deletes nothing.
func TestUnstoredValueOfOutdatedLoad(t *testing.T) {
	c := config{Stale: time.Hour, TTLOf: func(v string) time.Duration {
		return map[string]time.Duration{"short": 10 * time.Millisecond, "new": time.Hour}[v]
	}}
	onEach(t, c, func(t *testing.T, c valueCache, _ *testserver.Server) {
		k := c.(slots.Keeper[string])
		begin := func() *slots.Slot[string] {
			s := &slots.Slot[string]{Key: "k", Hold: time.Minute}
			require.NoError(t, k.Look(t.Context(), s))
			require.NotZero(t, s.Version)
			return s
		}
		put := func(s *slots.Slot[string], v string) bool {
			s.Value = v
			require.NoError(t, k.Put(t.Context(), s))
			require.NoError(t, s.Err)
			return s.Stored
		}
		old := begin()
		require.NoError(t, c.Delete(t.Context(), "k"))
		next := begin()
		assert.False(t, put(old, "never"))
		assert.True(t, put(next, "new"), "the outdated load ended the next one")
		assert.False(t, put(old, "never"))
		wantCached(t, c, "k", "new", "new")

		require.NoError(t, c.Set(t.Context(), "k", "short"))
		time.Sleep(20 * time.Millisecond)
		wantCached(t, c, "k", "", "short")
		present := begin()
		assert.True(t, put(present, "never"))
		wantCached(t, c, "k", "", "")
		assert.False(t, put(present, "new"))
		assert.True(t, put(begin(), "new"))
	})
}

// requestCounter counts what a client sends: commands, and pipelines as one.
type requestCounter struct{ n atomic.Int64 }

func (c *requestCounter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *requestCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmd)
	}
}

func (c *requestCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmds)
	}
}

// LoadMany of 200 missing keys takes a dozen requests to Redis, and of 200 that are there one.
func TestLoadManyRequests(t *testing.T) {
	srv := testserver.Redis(t)
	client, look := redis.NewClient(&redis.Options{Addr: srv.Addr}), redis.NewClient(&redis.Options{Addr: srv.Addr})
	t.Cleanup(func() { assert.NoError(t, errors.Join(client.Close(), look.Close())) })
	var requests requestCounter
	client.AddHook(&requests)
	cache := redisv9.NewCache(client, redisv9.CacheConfig[string]{TTL: time.Hour})
	sources := 0
	l := singleflight.NewBatchLoader(redisv9.New(client, redisv9.WithBatching(1)), cache,
		func(_ context.Context, keys []string) (map[string]string, error) {
			sources++
			values := make(map[string]string)
			for _, key := range keys {
				values[key] = "value of " + key
			}
			return values, nil
		})
	keys := func(round int) (keys []string) {
		for i := range 200 {
			keys = append(keys, fmt.Sprint(round, "/", i))
		}
		return keys
	}
	load := func(round int) int64 {
		before := requests.n.Load()
		values, err := l.LoadMany(t.Context(), keys(round))
		require.NoError(t, err)
		require.Len(t, values, 200)
		require.Eventually(t, func() bool { // the locks are released
			n, err := look.Keys(t.Context(), "locker:*").Result()
			return err == nil && len(n) == 0
		}, time.Minute, 10*time.Millisecond)
		return requests.n.Load() - before
	}
	load(0) // the scripts
	const rounds = 11
	var counts []int64
	for round := 1; round <= rounds; round++ {
		counts = append(counts, load(round))
	}
	slices.Sort(counts)
	t.Log(counts, "requests")
	// Calls that a busy machine delays share no request.
	assert.LessOrEqual(t, counts[rounds/2], int64(12))
	assert.Equal(t, 1+rounds, sources)
	before := requests.n.Load()
	_, err := l.LoadMany(t.Context(), keys(1))
	require.NoError(t, err)
	assert.EqualValues(t, 1, requests.n.Load()-before)
	require.NoError(t, l.Close(t.Context()))
}

// Values that are stored together do not expire together, nor later than their ttl.
func TestJitter(t *testing.T) {
	onEach(t, config{TTL: time.Hour, Jitter: 0.5}, func(t *testing.T, c valueCache, _ *testserver.Server) {
		lefts := make(map[time.Duration]bool)
		for i := range 20 {
			s := &slots.Slot[string]{Key: fmt.Sprint(i)}
			require.NoError(t, c.Set(t.Context(), s.Key, "v"))
			require.NoError(t, c.(slots.Keeper[string]).Look(t.Context(), s))
			require.True(t, s.Found)
			assert.LessOrEqual(t, s.Left, time.Hour)
			assert.Greater(t, s.Left, 29*time.Minute)
			lefts[s.Left.Truncate(10*time.Second)] = true
		}
		assert.Greater(t, len(lefts), 10)
	})
	for _, jitter := range []float64{-0.1, 1.1, math.NaN()} {
		for _, b := range backends {
			_, _, err := b.without(config{TTL: time.Hour, Jitter: jitter}).Get(t.Context(), "k")
			assert.ErrorIs(t, err, locker.ErrInvalidLocker)
			assert.ErrorContains(t, err, "Jitter")
		}
	}
	for range 100 {
		for _, ttl := range []time.Duration{1, 2, math.MaxInt64} {
			assert.Positive(t, (&config{TTL: ttl, Jitter: 1}).Lifetime(""))
		}
	}
}
