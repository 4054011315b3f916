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

// crowd starts n waiters for key, a few of which join at a time, and returns when they are in the
// queue. Each waiter calls served when it gets the lock, and then releases it. The crowd ends with
// ctx.
func crowd(tb testing.TB, admin *redis.Client, l *redisv9.Locker, ctx context.Context, n, atOnce int,
	key string, ttl time.Duration, served func()) (failed *atomic.Int64) {
	tb.Helper()
	failed = new(atomic.Int64)
	var all sync.WaitGroup
	tb.Cleanup(all.Wait)
	for i := range n {
		all.Go(func() {
			token := fmt.Sprint("waiter ", i)
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
		if (i+1)%atOnce == 0 || i == n-1 {
			for end := time.Now().Add(30 * time.Second); queueLength(admin, key) <= int64(i); {
				require.Less(tb, time.Now(), end, "they are in the queue")
				time.Sleep(200 * time.Microsecond)
			}
		}
	}
	return failed
}

// The server hears from a process whose waiters take turns, although the first of them learns its
// turn from messages and never has to look.
func TestMovingQueueIsHeardFrom(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	admin := newClient(t, &redis.Options{Addr: addr})
	l := newLocker(t, &redis.Options{Addr: addr})
	const waiters, hold = 200, 150 * time.Millisecond
	acquires(t, l, "k", "holder", time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	crowd(t, admin, l, ctx, waiters, 20, "k", time.Hour, func() { time.Sleep(hold) })
	_, err := l.Release(ctx, "k", "holder")
	require.NoError(t, err)
	for start := time.Now(); time.Since(start) < 2*redislock.LookAgain; time.Sleep(hold) {
		channels, err := admin.ZRangeByScoreWithScores(ctx, "!queue:locker:{locker:k}",
			&redis.ZRangeBy{Min: "-inf", Max: "(0"}).Result()
		require.NoError(t, err)
		for _, c := range channels {
			age := time.Since(time.UnixMilli(int64(-c.Score)))
			require.Less(t, age, redislock.LookAgain*3/2, "the process is about to count as gone")
		}
	}
}

// A queue that does not move sends four requests a second, one a second for each process in it, and
// one a minute for each waiter, whatever the ttl.
func TestLooksOfAStandingQueue(t *testing.T) {
	t.Parallel()
	const crowded, others, during = 500, 3, 12 * time.Second // longer than the foremost rest
	const waiters = crowded + others
	for _, ttl := range []time.Duration{200 * time.Millisecond, time.Second} {
		t.Run(ttl.String(), func(t *testing.T) {
			addr := testserver.Redis(t).Addr
			admin := newClient(t, &redis.Options{Addr: addr})
			holder, l := newLocker(t, &redis.Options{Addr: addr}), newLocker(t, &redis.Options{Addr: addr})
			acquires(t, holder, "k", "holder", time.Hour)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			crowd(t, admin, l, ctx, crowded, 20, "k", ttl, func() {})
			for i := range others {
				joins(t, admin, newLocker(t, &redis.Options{Addr: addr}), ctx, "k", fmt.Sprint("other ", i), ttl)
			}
			// From here on it is as with a keep-alive, which a busy machine cannot make lose the
			// lock.
			keep := time.NewTicker(ttl / 3)
			defer keep.Stop()
			require.NoError(t, admin.PExpire(ctx, "locker:k", ttl+time.Second).Err())
			before := scripts(t, admin)
			require.NoError(t, admin.ClientKillByFilter(ctx, "type", "pubsub").Err())
			eventually(t, "all have looked, and know how long the lock is held", func() bool {
				return scripts(t, admin)-before >= waiters
			})
			for range 5 { // some do so twice
				time.Sleep(200 * time.Millisecond)
				require.NoError(t, admin.PExpire(ctx, "locker:k", ttl+time.Second).Err())
			}
			before = scripts(t, admin)
			end := time.Now().Add(during)
			for time.Now().Before(end) {
				<-keep.C
				require.NoError(t, admin.PExpire(ctx, "locker:k", ttl+time.Second).Err())
			}
			got := scripts(t, admin) - before
			t.Logf("%.1f scripts a second", float64(got)/during.Seconds())
			// The queue's own, and some whose minute ends now.
			assert.Less(t, got, int64(waiters/4+(4+others+3)*during.Seconds()))
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
	for i := range 3 {
		joins(t, admin, a, t.Context(), "k", fmt.Sprint("dead ", i), time.Minute)
	}
	done := joins(t, admin, b, t.Context(), "k", "alive", time.Minute)
	behind := joins(t, admin, b, t.Context(), "k", "behind", time.Minute)
	hears(t, admin, 2)
	start := time.Now()
	require.NoError(t, dying.Close())
	isServed(t, done, "those before it are gone")
	assert.Less(t, time.Since(start), ttl+4*time.Second)
	releases(t, b, "k", "alive")
	isServed(t, behind, "it is next")
}

// A turn costs two scripts, however many wait: to join, and to release.
func TestScriptsOfAMovingQueue(t *testing.T) {
	t.Parallel()
	const waiters, turns = 1000, 300
	addr := testserver.Redis(t).Addr
	admin := newClient(t, &redis.Options{Addr: addr})
	holder, l := newLocker(t, &redis.Options{Addr: addr}), newLocker(t, &redis.Options{Addr: addr})
	acquires(t, holder, "k", "holder", time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	before := scripts(t, admin)
	done, served := make(chan struct{}), new(atomic.Int64)
	crowd(t, admin, l, ctx, waiters, 20, "k", time.Second, func() {
		time.Sleep(5 * time.Millisecond)
		if served.Add(1) == turns {
			close(done)
		}
	})
	joined := scripts(t, admin)
	releases(t, holder, "k", "holder")
	<-done
	perTurn := float64(joined-before)/waiters + float64(scripts(t, admin)-joined)/turns
	t.Logf("%.2f scripts a turn", perTurn)
	assert.Less(t, perTurn, 2.5)
}

// Thousands of waiters with a small pool survive a broken connection: they do not all look at the
// same time.
func TestCrowdOverCutConnection(t *testing.T) {
	t.Parallel()
	const waiters = 2000
	addr := testserver.Redis(t).Addr
	admin := newClient(t, &redis.Options{Addr: addr})
	holder := newLocker(t, &redis.Options{Addr: addr})
	l := newLocker(t, &redis.Options{Addr: addr, PoolSize: 5, PoolTimeout: 300 * time.Millisecond, ReadTimeout: 20 * time.Second})
	acquires(t, holder, "k", "holder", time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	failed := crowd(t, admin, l, ctx, waiters, 1, "k", time.Minute, func() {})
	before := scripts(t, admin)
	require.NoError(t, admin.ClientKillByFilter(ctx, "type", "pubsub").Err())
	eventually(t, "all have looked", func() bool { return scripts(t, admin)-before >= waiters })
	assert.Zero(t, failed.Load(), "waiters that failed")
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
	hears(t, admin, 1)
	releases(t, holder, "k", "holder")
	require.Equal(t, "first", admin.Get(t.Context(), "locker:k").Val(), "its turn comes first")
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
	joins(t, admin, l, ctx, "k", "c", time.Minute)
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
