package redisv9_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker/internal/redislock"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The costs of long queues, and waiting without a subscription.

// scripts returns how many scripts a server has run.
func scripts(tb testing.TB, admin *redis.Client) (n int64) {
	tb.Helper()
	all, err := admin.InfoMap(context.Background(), "commandstats").Result()
	require.NoError(tb, err)
	for _, name := range []string{"cmdstat_eval", "cmdstat_evalsha"} {
		var calls int64
		_, _ = fmt.Sscanf(all["Commandstats"][name], "calls=%d,", &calls)
		n += calls
	}
	return n
}

// crowd starts n waiters for keys, one for each if there are so many, and returns when all wait.
// Each waiter calls served when it gets the lock, and then releases it. The crowd ends with ctx.
func crowd(tb testing.TB, l *redisv9.Locker, ctx context.Context, n int, ttl time.Duration, served func(),
	keys ...string) (failed *atomic.Int64) {
	tb.Helper()
	failed = new(atomic.Int64)
	before := redisv9.Waiting(l)
	var all sync.WaitGroup
	tb.Cleanup(all.Wait)
	for i := range n {
		all.Go(func() {
			key, token := keys[i%len(keys)], fmt.Sprint("waiter ", i)
			_, err := l.Wait(ctx, key, token, ttl)
			if err == nil {
				served()
				_, err = l.Release(ctx, key, token)
			}
			if err != nil && ctx.Err() == nil {
				failed.Add(1)
				tb.Error(err)
			}
		})
	}
	eventually(tb, "all wait", func() bool { return redisv9.Waiting(l) == before+n })
	return failed
}

// A queue that does not move makes each process look when the holder's time would end. How many of
// its goroutines wait makes no difference, even when they leave.
func TestLooksOfAStandingQueue(t *testing.T) {
	t.Parallel()
	const crowded, others, during = 2000, 3, 5 * time.Second
	for _, ttl := range []time.Duration{200 * time.Millisecond, time.Second} {
		t.Run(ttl.String(), func(t *testing.T) {
			addr := testserver.Redis(t).Addr
			admin := newClient(t, &redis.Options{Addr: addr})
			holder, l := newLocker(t, &redis.Options{Addr: addr}), newLocker(t, &redis.Options{Addr: addr})
			acquires(t, holder, "k", "holder", time.Hour)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			for i := range others {
				joins(t, admin, newLocker(t, &redis.Options{Addr: addr}), ctx, "k", fmt.Sprint("other ", i), ttl)
			}
			joins(t, admin, l, ctx, "k", "first", ttl)
			crowd(t, l, ctx, crowded, ttl, func() {}, "k")
			hears(t, admin, 1+others)
			// From here on it is as with a keep-alive, which a busy machine cannot make lose the
			// lock.
			keep := time.NewTicker(ttl / 3)
			defer keep.Stop()
			require.NoError(t, admin.PExpire(ctx, "locker:k", ttl+time.Second).Err())
			before := scripts(t, admin)
			require.NoError(t, admin.ClientKillByFilter(ctx, "type", "pubsub").Err())
			for end := time.Now().Add(during); time.Now().Before(end); {
				<-keep.C
				require.NoError(t, admin.PExpire(ctx, "locker:k", ttl+time.Second).Err())
			}
			got := scripts(t, admin) - before
			t.Logf("%.1f scripts a second", float64(got)/during.Seconds())
			assert.Less(t, got, int64(50*during.Seconds()))
			before = scripts(t, admin)
			cancel()
			eventually(t, "all have left", func() bool { return redisv9.Waiting(l) == 0 && queueLength(admin, "k") == 0 })
			t.Logf("%d scripts to leave", scripts(t, admin)-before)
			assert.Less(t, scripts(t, admin)-before, int64(50))
		})
	}
}

// When the holder and the first in the queue die together, the next process notices without a message.
func TestHolderDiesWithTheFirst(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	admin := newClient(t, &redis.Options{Addr: addr})
	dying := redis.NewClient(&redis.Options{Addr: addr})
	a, b := redisv9.New(dying), newLocker(t, &redis.Options{Addr: addr})
	const ttl = 6 * time.Second // not before all have joined
	acquires(t, a, "k", "holder", ttl)
	joins(t, admin, a, t.Context(), "k", "dead", time.Minute)
	stands(t, a, t.Context(), "k", "behind it", time.Minute)
	done := joins(t, admin, b, t.Context(), "k", "alive", time.Minute)
	behind := stands(t, b, t.Context(), "k", "behind", time.Minute)
	hears(t, admin, 2)
	start := time.Now()
	require.NoError(t, dying.Close())
	isServed(t, done, "those before it are gone")
	assert.Less(t, time.Since(start), ttl+4*time.Second)
	releases(t, b, "k", "alive")
	isServed(t, behind, "it is next")
}

// A turn costs two scripts, however many of a process wait: to take the lock and go on waiting, and
// to release it.
func TestScriptsOfAMovingQueue(t *testing.T) {
	t.Parallel()
	const waiters, turns = 1000, 300
	addr := testserver.Redis(t).Addr
	admin := newClient(t, &redis.Options{Addr: addr})
	holder, l := newLocker(t, &redis.Options{Addr: addr}), newLocker(t, &redis.Options{Addr: addr})
	acquires(t, holder, "k", "holder", time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done, served := make(chan struct{}), new(atomic.Int64)
	crowd(t, l, ctx, waiters, time.Second, func() {
		time.Sleep(5 * time.Millisecond)
		if served.Add(1) == turns {
			close(done)
		}
	}, "k")
	before := scripts(t, admin)
	releases(t, holder, "k", "holder")
	<-done
	perTurn := float64(scripts(t, admin)-before) / turns
	t.Logf("%.2f scripts a turn", perTurn)
	assert.Less(t, perTurn, 2.5)
}

// Those who wait for thousands of locks with a small pool survive a broken connection: they look at
// all locks again, a few hundred times a second.
func TestCrowdOverCutConnection(t *testing.T) {
	t.Parallel()
	const keys, during = 3000, 4 * time.Second
	addr := testserver.Redis(t).Addr
	admin := newClient(t, &redis.Options{Addr: addr})
	holder := newLocker(t, &redis.Options{Addr: addr})
	l := newLocker(t, &redis.Options{Addr: addr, PoolSize: 5, PoolTimeout: time.Minute, ReadTimeout: 20 * time.Second})
	names := make([]string, keys)
	_, err := admin.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for i := range names {
			names[i] = fmt.Sprint("k", i)
			p.Set(t.Context(), "locker:"+names[i], "holder", time.Hour)
		}
		return nil
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	served := make(chan struct{}, keys)
	failed := crowd(t, l, ctx, keys, time.Minute, func() { served <- struct{}{} }, names...)
	waits := func() bool { return queueCount(admin) == keys }
	eventually(t, "all wait", waits)
	before := scripts(t, admin)
	require.NoError(t, admin.ClientKillByFilter(ctx, "type", "pubsub").Err())
	time.Sleep(during)
	got := scripts(t, admin) - before
	t.Logf("%.0f scripts a second", float64(got)/during.Seconds())
	assert.Less(t, got, int64(1000*during.Seconds()))
	for i := range 3 {
		releases(t, holder, names[i], "holder")
		<-served
	}
	assert.Zero(t, failed.Load(), "waiters that failed")
}

// queueCount returns how many queues there are.
func queueCount(admin *redis.Client) (n int) {
	for cursor := uint64(0); ; {
		keys, next, _ := admin.Scan(context.Background(), cursor, "!line:*", 10_000).Result()
		if n += len(keys); next == 0 {
			return n
		}
		cursor = next
	}
}

// Waiters for locks of a shard that hangs do not hold up those for locks of another.
func TestWaitBesideHungShard(t *testing.T) {
	t.Parallel()
	const keys = 40
	hung, up := testserver.Redis(t), testserver.Redis(t)
	cluster := redis.NewClusterClient(&redis.ClusterOptions{
		ReadTimeout: time.Minute, ContextTimeoutEnabled: true,
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			const key = 12182 // the slot of the tag foo
			return []redis.ClusterSlot{
				{Start: 0, End: key - 1, Nodes: []redis.ClusterNode{{Addr: hung.Addr}}},
				{Start: key, End: key, Nodes: []redis.ClusterNode{{Addr: up.Addr}}},
				{Start: key + 1, End: 16383, Nodes: []redis.ClusterNode{{Addr: hung.Addr}}},
			}, nil
		},
	})
	t.Cleanup(func() { _ = cluster.Close() })
	l := redisv9.New(cluster)
	ctx, cancel := context.WithCancel(t.Context())
	onHung, onUp := newClient(t, &redis.Options{Addr: hung.Addr}), newClient(t, &redis.Options{Addr: up.Addr})
	for i := range keys {
		key := fmt.Sprint("{bar}", i)
		acquires(t, redisv9.New(onHung), key, "holder", 4*time.Second)
		joins(t, onHung, l, ctx, key, "waiter", time.Minute)
	}
	hung.Pause()
	defer hung.Continue()
	defer cancel()
	acquires(t, redisv9.New(onUp), "{foo}", "holder", 5*time.Second) // and vanishes
	isServed(t, joins(t, onUp, l, ctx, "{foo}", "waiter", time.Minute), "its shard is up")
}

// Waiters without a subscription look instead.
func TestWaitWithoutSubscription(t *testing.T) {
	t.Parallel()
	t.Run("MaxActiveConns", func(t *testing.T) {
		t.Parallel()
		addr := testserver.Redis(t).Addr
		admin := newClient(t, &redis.Options{Addr: addr})
		client := newClient(t, &redis.Options{Addr: addr, PoolSize: 3, MaxActiveConns: 3})
		var idle []*redis.Conn // all of the pool's connections
		for range 3 {
			idle = append(idle, client.Conn())
			require.NoError(t, idle[len(idle)-1].Ping(t.Context()).Err())
		}
		for _, conn := range idle {
			require.NoError(t, conn.Close())
		}
		takesTurns(t, admin, newLocker(t, &redis.Options{Addr: addr}), redisv9.New(client))
	})
	t.Run("maxclients", func(t *testing.T) {
		t.Parallel()
		addr := testserver.Redis(t).Addr
		admin := newClient(t, &redis.Options{Addr: addr, PoolSize: 1})
		holder := newLocker(t, &redis.Options{Addr: addr, PoolSize: 1})
		waiter := newLocker(t, &redis.Options{Addr: addr, PoolSize: 1})
		releasesNothing(t, holder, "k") // connects
		releasesNothing(t, waiter, "k")
		require.NoError(t, admin.ConfigSet(t.Context(), "maxclients", "3").Err())
		takesTurns(t, admin, holder, waiter)
	})
	t.Run("the connection hangs", func(t *testing.T) {
		t.Parallel()
		addr := testserver.Redis(t).Addr
		admin := newClient(t, &redis.Options{Addr: addr})
		var hang atomic.Bool
		waiter := newLocker(t, &redis.Options{Addr: addr, DialTimeout: 30 * time.Second,
			Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
				if hang.Load() {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return new(net.Dialer).DialContext(ctx, network, addr)
			}})
		releasesNothing(t, waiter, "k")
		hang.Store(true)
		takesTurns(t, admin, newLocker(t, &redis.Options{Addr: addr}), waiter)
	})
	t.Run("another shard is down", func(t *testing.T) {
		t.Parallel()
		addr, gone := testserver.Redis(t).Addr, testserver.Redis(t)
		gone.Stop()
		admin := newClient(t, &redis.Options{Addr: addr})
		cluster := redis.NewClusterClient(&redis.ClusterOptions{
			MaxRedirects: 1, DialTimeout: time.Second,
			ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
				const key = 12182 // the slot of the tag foo
				return []redis.ClusterSlot{
					{Start: 0, End: key - 1, Nodes: []redis.ClusterNode{{Addr: gone.Addr}}},
					{Start: key, End: key, Nodes: []redis.ClusterNode{{Addr: addr}}},
					{Start: key + 1, End: 16383, Nodes: []redis.ClusterNode{{Addr: gone.Addr}}},
				}, nil
			},
		})
		t.Cleanup(func() { _ = cluster.Close() })
		takesTurns(t, admin, newLocker(t, &redis.Options{Addr: addr}), redisv9.New(cluster))
	})
	t.Run("not allowed", func(t *testing.T) {
		t.Parallel()
		addr := testserver.Redis(t).Addr
		admin := newClient(t, &redis.Options{Addr: addr})
		takesTurns(t, admin, newLocker(t, &redis.Options{Addr: addr}), newLocker(t, limited(t, admin)))
	})
}

// takesTurns lets waiter wait for a lock of holder's a few times.
func takesTurns(t *testing.T, admin *redis.Client, holder, waiter *redisv9.Locker) {
	t.Helper()
	const key = "{foo}"
	for range 3 {
		acquires(t, holder, key, "holder", time.Hour)
		done := joins(t, admin, waiter, t.Context(), key, "waiter", time.Minute)
		start := time.Now()
		releases(t, holder, key, "holder")
		isServed(t, done, "the lock was released")
		assert.Less(t, time.Since(start), 9*time.Second, "it looked by itself")
		releases(t, waiter, key, "waiter")
	}
}

// slowly is a network on which all new connections but the first take until the test goes on.
type slowly struct {
	made   atomic.Int64
	resume chan struct{}
}

func (n *slowly) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if n.made.Add(1) > 1 {
		<-n.resume
	}
	return new(net.Dialer).DialContext(ctx, network, addr)
}

// A waiter whose subscription is still being made when the lock is released keeps its place.
func TestPlaceIsKeptWhileSubscribing(t *testing.T) {
	addr := testserver.Redis(t).Addr
	admin := newClient(t, &redis.Options{Addr: addr})
	n := &slowly{resume: make(chan struct{})}
	holder, b := newLocker(t, &redis.Options{Addr: addr}), newLocker(t, &redis.Options{Addr: addr})
	a := newLocker(t, &redis.Options{Addr: addr, Dialer: n.dial, PoolSize: 1})
	acquires(t, holder, "k", "holder", time.Minute)
	first := joins(t, admin, a, t.Context(), "k", "first", time.Minute)
	second := joins(t, admin, b, t.Context(), "k", "second", time.Minute)
	eventually(t, "the second is subscribed", func() bool { return subscribers(t, admin) > 0 })
	releases(t, holder, "k", "holder")
	isServed(t, first, "it is there")
	close(n.resume)
	notServed(t, second, "the lock is the first's")
	releases(t, a, "k", "first")
	isServed(t, second, "the lock was released")
}

// The queue outlives the lock, so volatile-ttl evicts the lock first.
func TestQueueOutlivesTheLock(t *testing.T) {
	addr := testserver.Redis(t).Addr
	ctx := t.Context()
	admin := newClient(t, &redis.Options{Addr: addr})
	l := newLocker(t, &redis.Options{Addr: addr})
	queue := redislock.NewNamespace("", true).Keys("k").Queue
	outlives := func() {
		t.Helper()
		lock, err := admin.Do(ctx, "pttl", "locker:k").Int64()
		require.NoError(t, err)
		left, err := admin.Do(ctx, "pttl", queue).Int64()
		require.NoError(t, err)
		assert.Greater(t, left, lock)
	}
	acquires(t, l, "k", "a", time.Hour)
	b := joins(t, admin, l, ctx, "k", "b", 1<<63-1)
	outlives()
	stands(t, l, ctx, "k", "c", time.Minute)
	hears(t, admin, 1)
	releases(t, l, "k", "a")
	isServed(t, b, "the lock was released")
	outlives()
}

// Locks of package redigo under the same prefix, and plain times, are foreign: the error says so.
// Tokens that look like them work all the same.
func TestLocksOfRedigo(t *testing.T) {
	client := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
	ctx := t.Context()
	l := redisv9.New(client)
	key, t1, _ := names(t)
	for _, value := range []string{"1763785000123:token", "0:x y", "5:x", "1763785000", "1763785000.25", "1763785000123"} {
		require.NoError(t, client.Set(ctx, "locker:"+key, value, time.Hour).Err())
		for _, name := range []string{"acquire", "extend", "release", "fence", "wait"} {
			err := operations(l)[name](ctx, key, t1)
			assert.ErrorContains(t, err, "in the format of package redigo", "%s of %q", name, value)
			assert.ErrorContains(t, err, fmt.Sprintf("%q", value))
			err = operations(l)[name](ctx, key, value)
			assert.ErrorContains(t, err, "in the format of package redigo", "%s by %q", name, value)
		}
		require.Equal(t, value, client.Get(ctx, "locker:"+key).Val(), "it is left alone")
		require.NoError(t, client.Del(ctx, "locker:"+key).Err())

		acquires(t, l, key, value, time.Minute)
		ok, err := l.Acquire(ctx, key, t1, time.Minute)
		require.NoError(t, err)
		require.False(t, ok)
		done := joins(t, client, l, ctx, key, "token:"+value, time.Minute)
		ok, err = l.Extend(ctx, key, value, time.Minute)
		require.NoError(t, err)
		require.True(t, ok)
		_, ok, err = l.Fence(ctx, key, value)
		require.NoError(t, err)
		require.True(t, ok)
		releases(t, l, key, value)
		isServed(t, done, "the lock was released")
		releases(t, l, key, "token:"+value)
	}
	// Other values are locks, held by whatever set them.
	for _, value := range []string{"1", "42", "by hand", "12:", "a1:b", "1763785000x", "99999999999999999999"} {
		require.NoError(t, client.Set(ctx, "locker:"+key, value, time.Hour).Err())
		ok, err := l.Acquire(ctx, key, t1, time.Minute)
		require.NoError(t, err, value)
		require.False(t, ok)
		acquires(t, l, key, value, time.Minute)
		releases(t, l, key, value)
	}
}
