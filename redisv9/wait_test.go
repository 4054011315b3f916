package redisv9_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
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

// Waiters are served in the order of their arrival, across tokens and processes.
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
		waiting = append(waiting, joins(t, admin, lockers[i%3], t.Context(), "k", token, time.Minute))
	}
	before := "first"
	for i, token := range tokens {
		releases(t, lockers[(i+1)%3], "k", before)
		isServed(t, waiting[i], "its turn has come")
		require.Equal(t, token, admin.Get(t.Context(), "locker:k").Val())
		before = token
	}
	releases(t, lockers[0], "k", before)
	assert.Empty(t, admin.Keys(t.Context(), "*").Val())
}

// Taking turns costs two requests: to join the queue, and to release.
func TestRequestsOfTakingTurns(t *testing.T) {
	const processes, cycles = 4, 400
	r := handOff(t, testserver.Redis(t).Addr, processes, cycles, time.Millisecond, time.Millisecond)
	// First each process connects and meets the queue. On a machine so slow that no other process
	// waits at that moment, joining costs another request.
	assert.Less(t, r.requests, int64(2*cycles+processes*20+cycles/2))
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
			second := joins(t, admin, l, t.Context(), key, "second", time.Minute)
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

// When the places of several queues are lost, all waiters get new ones, not only those who look first.
func TestWaitOverFlushOfTwoQueues(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	admin := newClient(t, &redis.Options{Addr: addr})
	l, other := newLocker(t, &redis.Options{Addr: addr}), newLocker(t, &redis.Options{Addr: addr})
	keys := []string{"a", "b"}
	for _, key := range keys {
		acquires(t, other, key, "holder", time.Hour)
		joins(t, admin, l, t.Context(), key, "first", time.Minute)
		joins(t, admin, l, t.Context(), key, "second", time.Minute)
	}
	eventually(t, "they can hear, and have looked since", func() bool {
		before := scripts(t, admin)
		time.Sleep(time.Second)
		return scripts(t, admin) == before
	})
	_, err := admin.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.FlushAll(t.Context())
		for _, key := range keys {
			p.Set(t.Context(), "locker:"+key, "holder", time.Hour)
		}
		return nil
	})
	require.NoError(t, err)
	for _, key := range keys {
		eventually(t, "both wait for "+key, func() bool { return queueLength(admin, key) == 2 })
	}
}

// slow holds up the reply to one look with a token, by a waiter that can hear, and counts the scripts
// of all.
type slow struct {
	held           string // the token
	next           atomic.Bool
	reached, reply chan struct{}
	mu             sync.Mutex
	scripts        map[string]int
}

func (s *slow) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *slow) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if !strings.HasPrefix(cmd.Name(), "eval") {
			return err
		}
		token, entry := fmt.Sprint(cmd.Args()[5]), ""
		place, _ := redislock.ParsePlace(cmd.(*redis.Cmd).Val(), 0)
		if place.Ticket != "" {
			entry = fmt.Sprint(cmd.Args()[7])
		}
		hears := strings.Contains(entry, " 0 60000 ") && !place.Unheard // it does not claim
		if token == s.held && hears && s.next.CompareAndSwap(true, false) {
			close(s.reached)
			<-s.reply
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.scripts[token]++
		return err
	}
}

func (s *slow) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (s *slow) of(token string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.scripts[token]
}

// A waiter whose look is under way when the connection breaks looks again: what came after the look
// may have been lost.
func TestConnectionBreaksDuringALook(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	admin, client := newClient(t, &redis.Options{Addr: addr}), newClient(t, &redis.Options{Addr: addr})
	s := &slow{held: "second", reached: make(chan struct{}), reply: make(chan struct{}), scripts: map[string]int{}}
	client.AddHook(s)
	l := redisv9.New(client)
	acquires(t, newLocker(t, &redis.Options{Addr: addr}), "k", "holder", time.Hour)
	joins(t, admin, l, t.Context(), "k", "first", time.Minute)
	joins(t, admin, l, t.Context(), "k", "second", time.Minute)
	live := func() bool { return len(admin.PubSubChannels(t.Context(), "!wait:*").Val()) > 0 }
	breaks := func() {
		eventually(t, "they can hear", live)
		require.NoError(t, admin.Do(t.Context(), "client", "kill", "type", "pubsub").Err())
	}
	s.next.Store(true)
	breaks()
	<-s.reached
	for before := s.of("first"); s.of("first") < before+2; { // the last of these is due to a later break
		breaks()
	}
	eventually(t, "all that is over", func() bool {
		before := s.of("first")
		time.Sleep(300 * time.Millisecond)
		return live() && s.of("first") == before
	})
	before := s.of("second")
	close(s.reply)
	eventually(t, "it looks again", func() bool { return s.of("second") > before+1 })
}

// pausing holds up one script on its way to the server.
type pausing struct {
	next            atomic.Bool // the next one
	reached, resume chan struct{}
}

func (p *pausing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (p *pausing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" && p.next.CompareAndSwap(true, false) {
			close(p.reached)
			<-p.resume
		}
		return next(ctx, cmd)
	}
}

func (p *pausing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A grant is void if a later reply shows that another holds the lock: the server has lost its data.
func TestGrantThatTheServerLost(t *testing.T) {
	addr := testserver.Redis(t).Addr
	ctx := t.Context()
	admin, client := newClient(t, &redis.Options{Addr: addr}), newClient(t, &redis.Options{Addr: addr})
	p := &pausing{reached: make(chan struct{}), resume: make(chan struct{})}
	client.AddHook(p)
	l, other := redisv9.New(client), newLocker(t, &redis.Options{Addr: addr})
	key, t1, t2 := names(t)
	acquires(t, other, key, t1, time.Minute)
	done := joins(t, admin, l, ctx, key, t2, time.Minute)
	live := func() bool { return len(admin.PubSubChannels(ctx, "!wait:*").Val()) == 1 }
	eventually(t, "it is subscribed", live)

	p.next.Store(true)
	require.NoError(t, admin.ClientKillByFilter(ctx, "type", "pubsub").Err())
	<-p.reached // it asks after its place, and does not get further
	eventually(t, "it is subscribed again", live)
	woken, err := l.Watch(ctx, key) // on the same connection as the grant, and told after it
	require.NoError(t, err)
	eventually(t, "both are subscribed to", func() bool { // go-redis may have had a connection in between
		return live() && admin.PubSubNumSub(ctx, "locker:"+key).Val()["locker:"+key] == 1
	})
	releases(t, other, key, t1)
	require.Equal(t, t2, admin.Get(ctx, "locker:"+key).Val(), "it was granted the lock")
	isWoken(t, woken, "the lock was released")
	require.NoError(t, admin.FlushAll(ctx).Err())
	acquires(t, other, key, t1, time.Minute)
	close(p.resume)
	eventually(t, "it is in the queue again", func() bool { return queueLength(admin, key) == 1 })
	select {
	case <-done:
		t.Fatal("it was told that it holds the lock")
	case <-time.After(200 * time.Millisecond): // had it taken the grant, that would have been at once
	}
	releases(t, other, key, t1)
	isServed(t, done, "the lock was released")
	require.Equal(t, t2, admin.Get(ctx, "locker:"+key).Val(), "it has the lock")
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
	eventually(t, "no waiter is leaving", func() bool {
		return !slices.ContainsFunc(lockers, func(l *redisv9.Locker) bool { return redisv9.GivingUp(l) > 0 })
	})
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

// If round trips are slow, every waiter of a Locker has enough time to claim the lock, even one
// that joins while others wait.
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
	l := redisv9.New(struct{ redis.UniversalClient }{client}) // it claims what it is served
	acquires(t, redisv9.New(admin), "k", "holder", time.Hour)
	for i := range 3 {
		joins(t, admin, l, ctx, "k", fmt.Sprint("waiter", i), time.Minute)
	}
	queue := redislock.NewNamespace("", true).Keys("k").Queue
	entries := admin.ZRangeByScore(ctx, queue, &redis.ZRangeBy{Min: "1", Max: "+inf"}).Val()
	require.Len(t, entries, 3)
	for _, entry := range entries {
		claim, err := strconv.Atoi(strings.Fields(entry)[2])
		require.NoError(t, err)
		assert.GreaterOrEqual(t, time.Duration(claim)*time.Millisecond, redislock.Claim(farRoundTrip))
	}
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
