package redisv9_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/redislock"
	"github.com/golockers/locker/internal/redislock/redistest"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Processes take turns, and those of each are served in the order of their arrival.
func TestInTurnAcrossProcesses(t *testing.T) {
	addr := testserver.Redis(t).Addr
	admin := newClient(t, &redis.Options{Addr: addr})
	lockers := []*redisv9.Locker{}
	for range 3 {
		lockers = append(lockers, newLocker(t, &redis.Options{Addr: addr}))
	}
	tokens := []string{"plain", " with spaces ", "1 2 3", "a\nb\r\n", "\x00", "\xff\xfe", "%d%%", "{}", "'\"", "ü"}
	acquires(t, lockers[0], "k", "first", time.Minute)
	var waiting []<-chan redistest.Turn
	for i, token := range tokens {
		l := lockers[min(i/2, 2)] // the last one has many waiters
		if i < 6 && i%2 == 0 {
			waiting = append(waiting, joins(t, admin, l, t.Context(), "k", token, time.Minute))
		} else {
			waiting = append(waiting, stands(t, l, t.Context(), "k", token, time.Minute))
		}
	}
	require.EqualValues(t, 3, queueLength(admin, "k"), "one place for each process")
	before := "first"
	for _, i := range []int{0, 2, 4, 1, 3, 5, 6, 7, 8, 9} {
		releases(t, lockers[(i+1)%3], "k", before)
		isServed(t, waiting[i], "its turn has come")
		require.Equal(t, tokens[i], admin.Get(t.Context(), "locker:k").Val())
		before = tokens[i]
	}
	releases(t, lockers[0], "k", before)
	assert.Empty(t, admin.Keys(t.Context(), "*").Val())
}

// Taking turns costs three requests: to join the queue, to take what was offered, and to release.
func TestRequestsOfTakingTurns(t *testing.T) {
	const processes, cycles = 4, 400
	r := handOff(t, testserver.Redis(t).Addr, processes, cycles, time.Millisecond, time.Millisecond)
	// First each process connects and meets the queue. On a machine so slow that no other process
	// waits at that moment, joining costs another request.
	assert.Less(t, r.requests, int64(3*cycles+processes*20+cycles/2))
	assert.Greater(t, r.leastShare(), 0.8)
}

// A waiter whose process is gone is passed over.
func TestDeadWaiterIsPassedOver(t *testing.T) {
	addr := testserver.Redis(t).Addr
	admin := newClient(t, &redis.Options{Addr: addr})
	a, c := newLocker(t, &redis.Options{Addr: addr}), newLocker(t, &redis.Options{Addr: addr})
	dying := redis.NewClient(&redis.Options{Addr: addr})
	acquires(t, a, "k", "a", time.Minute)
	dead := joins(t, admin, redisv9.New(dying), t.Context(), "k", "b", time.Minute)
	alive := joins(t, admin, c, t.Context(), "k", "c", time.Minute)
	require.NoError(t, dying.Close())
	require.ErrorIs(t, (<-dead).Err, redis.ErrClosed)
	require.EqualValues(t, 2, queueLength(admin, "k"), "it could not leave")
	eventually(t, "its connection is gone", func() bool { return subscribers(t, admin) == 1 })
	releases(t, a, "k", "a")
	isServed(t, alive, "the one before it is gone")
	assert.Zero(t, queueLength(admin, "k"))
}

// The lock of a holder that vanished goes to the first in the queue, not to the one that asks at
// the right moment.
func TestLineIsNotPassed(t *testing.T) {
	addr := testserver.Redis(t).Addr
	admin := newClient(t, &redis.Options{Addr: addr})
	l := newLocker(t, &redis.Options{Addr: addr})
	for i := range 5 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			key := fmt.Sprint("k", i)
			acquires(t, l, key, "vanishes", 3*time.Second) // not before both have joined
			first := joins(t, admin, l, t.Context(), key, "first", time.Minute)
			second := stands(t, l, t.Context(), key, "second", time.Minute)
			for admin.Get(t.Context(), "locker:"+key).Val() != "first" {
				ok, err := l.Acquire(t.Context(), key, "pusher", time.Minute)
				require.NoError(t, err)
				require.False(t, ok)
			}
			isServed(t, first, "the holder's ttl has passed")
			releases(t, l, key, "first")
			isServed(t, second, "the first has released")
		})
	}
}

// Messages that are published while a connection is down are lost, so waiters ask again.
func TestWaitOverCutConnection(t *testing.T) {
	addr := testserver.Redis(t).Addr
	admin := newClient(t, &redis.Options{Addr: addr})
	l := newLocker(t, &redis.Options{Addr: addr})
	for i := range 10 {
		token := fmt.Sprint("t", i)
		acquires(t, l, "k", "holder", time.Minute)
		waiting := joins(t, admin, l, t.Context(), "k", token, time.Minute)
		require.NoError(t, admin.ClientKillByFilter(t.Context(), "type", "pubsub").Err())
		time.Sleep(time.Duration(i) * time.Millisecond) // before, while or after it connects again
		releases(t, l, "k", "holder")
		isServed(t, waiting, "the connection broke and came back")
		releases(t, l, "k", token)
	}
}

// A lock and its queue may disappear without a message, for instance when an operator deletes them.
func TestWaitOverFlush(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	admin := newClient(t, &redis.Options{Addr: addr})
	l := newLocker(t, &redis.Options{Addr: addr})
	acquires(t, l, "k", "holder", time.Hour)
	waiting := joins(t, admin, l, t.Context(), "k", "t", time.Minute)
	require.NoError(t, admin.FlushAll(t.Context()).Err())
	isServed(t, waiting, "it looks every ten seconds")
}

// slow holds up the reply to one look.
type slow struct {
	next           atomic.Bool
	reached, reply chan struct{}
}

func (s *slow) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *slow) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if strings.HasPrefix(cmd.Name(), "eval") && s.next.CompareAndSwap(true, false) {
			close(s.reached)
			<-s.reply
		}
		return err
	}
}

func (s *slow) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A waiter whose look is under way when the connection breaks looks again: what came after the look
// may have been lost.
func TestConnectionBreaksDuringALook(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	admin, client := newClient(t, &redis.Options{Addr: addr}), newClient(t, &redis.Options{Addr: addr})
	s := &slow{reached: make(chan struct{}), reply: make(chan struct{})}
	client.AddHook(s)
	holder := newLocker(t, &redis.Options{Addr: addr})
	acquires(t, holder, "k", "holder", time.Hour)
	done := joins(t, admin, redisv9.New(client), t.Context(), "k", "waiter", time.Minute)
	hears(t, admin, 1)
	s.next.Store(true)
	breaks := func() { require.NoError(t, admin.Do(t.Context(), "client", "kill", "type", "pubsub").Err()) }
	breaks()
	<-s.reached
	eventually(t, "it can hear", func() bool { return len(admin.PubSubChannels(t.Context(), "!wait:*").Val()) > 0 })
	breaks()
	releases(t, holder, "k", "holder") // it is not told
	close(s.reply)
	start := time.Now()
	isServed(t, done, "it looks again")
	assert.Less(t, time.Since(start), redislock.LookAgain/2)
}

// Waiters that come and go leave nothing behind, in the process or on the server, and keep no other
// waiter from the lock.
func TestWaitStorm(t *testing.T) {
	addr := testserver.Redis(t).Addr
	admin := newClient(t, &redis.Options{Addr: addr})
	var lockers []*redisv9.Locker
	for range 3 {
		lockers = append(lockers, newLocker(t, &redis.Options{Addr: addr}))
		redisv9.SetLinger(lockers[len(lockers)-1], 2*time.Second)
	}
	var all sync.WaitGroup
	for i := range 30 {
		all.Go(func() {
			for n := range 20 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i*n%40)*time.Millisecond)
				lease, err := locker.Lock(ctx, lockers[i%3], "k", time.Minute)
				if err == nil {
					err = lease.Unlock(ctx)
				} else if ctx.Err() != nil {
					err = nil
				}
				assert.NoError(t, err)
				cancel()
			}
		})
	}
	all.Wait()
	eventually(t, "the server is empty", func() bool { return len(admin.Keys(t.Context(), "*").Val()) == 0 })
	eventually(t, "there is no subscriber", func() bool {
		return subscribers(t, admin) == 0 &&
			!slices.ContainsFunc(lockers, func(l *redisv9.Locker) bool { return redisv9.Feeds(l) > 0 })
	})
}

// far is a network with a long delay.
type far struct{ net.Conn }

const farRoundTrip = 200 * time.Millisecond

func (c far) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	time.Sleep(farRoundTrip)
	return n, err
}

// If round trips are slow, a waiter has enough time to take a lock that it is offered.
func TestClaimsOverLongRoundTrips(t *testing.T) {
	ctx := t.Context()
	admin := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
	client := newClient(t, &redis.Options{
		Addr: admin.Options().Addr,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return far{conn}, err
		},
	})
	acquires(t, redisv9.New(admin), "k", "holder", time.Hour)
	joins(t, admin, redisv9.New(client), ctx, "k", "waiter", time.Minute)
	queue := redislock.NewNamespace("", true).Keys("k").Queue
	entries := admin.ZRangeWithScores(ctx, queue, 0, -1).Val()
	require.Len(t, entries, 1)
	assert.GreaterOrEqual(t, time.Duration(int64(entries[0].Score)%16)*time.Second, 8*farRoundTrip)
}

// The deadline counts from when the request left the process, not from when it began to wait for a
// connection.
func TestDeadlineCountsFromTheRequest(t *testing.T) {
	t.Parallel()
	for _, knowsQueue := range []bool{false, true} {
		t.Run(fmt.Sprintf("knows a queue: %v", knowsQueue), func(t *testing.T) {
			t.Parallel()
			ctx, addr := t.Context(), testserver.Redis(t).Addr
			admin := newClient(t, &redis.Options{Addr: addr})
			client := newClient(t, &redis.Options{Addr: addr, PoolSize: 1, PoolTimeout: time.Minute})
			l := redisv9.New(client)
			if knowsQueue {
				acquired, err := l.Acquire(ctx, "other", "holder", time.Minute)
				require.True(t, err == nil && acquired)
				joins(t, admin, l, ctx, "other", "waiter", time.Minute)
			}
			const ttl = 500 * time.Millisecond
			const inUse = time.Second
			begin := time.Now()
			go client.BLPop(ctx, inUse, "no such list")
			eventually(t, "the connection is in use", func() bool {
				return strings.Contains(admin.ClientList(ctx).Val(), "cmd=blpop")
			})
			deadline, err := l.Wait(ctx, "k", "t", ttl)
			require.NoError(t, err)
			assert.WithinRange(t, deadline, begin.Add(inUse+ttl/2), time.Now().Add(ttl))
		})
	}
}
