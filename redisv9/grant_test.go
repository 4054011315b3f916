package redisv9_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker/internal/redislock"
	"github.com/golockers/locker/internal/redislock/redistest"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A lock is offered to one waiter alone, which takes it or passes it on.

// notServed fails the test if a waiter gets the lock.
func notServed(tb testing.TB, done <-chan redistest.Turn, why string) {
	tb.Helper()
	select {
	case r := <-done:
		tb.Fatalf("it has the lock until %v, or %v: %s", r.Deadline, r.Err, why)
	case <-time.After(300 * time.Millisecond):
	}
}

// hears waits until so many of a server's connections have subscribed, and all entries in queues are
// those of waiters that the server counts.
func hears(tb testing.TB, admin *redis.Client, connections int) {
	tb.Helper()
	eventually(tb, "the waiters are subscribed", func() bool { return subscribers(tb, admin) >= connections })
	ctx := tb.Context()
	eventually(tb, "the server knows", func() bool {
		for _, queue := range admin.Keys(ctx, "!line:*").Val() {
			isUncounted := func(e redis.Z) bool { return int64(e.Score)%32 < 16 }
			if slices.ContainsFunc(admin.ZRangeWithScores(ctx, queue, 0, -1).Val(), isUncounted) {
				return false
			}
		}
		return true
	})
}

// After a failover behind a proxy a process may still be subscribed to the old master, which passes
// on what the new one publishes but is not counted there. It must not be granted a lock that
// another gets, and has its turn later.
func TestGrantAfterFailoverBehindProxy(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	noDelay := []string{"--repl-diskless-sync-delay", "0"}
	old := testserver.Redis(t, noDelay...)
	host, port, err := net.SplitHostPort(old.Addr)
	require.NoError(t, err)
	fresh := testserver.Redis(t, append(noDelay, "--replicaof", host+" "+port)...)
	freshHost, freshPort, err := net.SplitHostPort(fresh.Addr)
	require.NoError(t, err)
	var current atomic.Value
	current.Store(old.Addr)
	proxied := func() *redisv9.Locker {
		return newLocker(t, &redis.Options{Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, current.Load().(string))
		}})
	}
	onOld, onFresh := newClient(t, &redis.Options{Addr: old.Addr}), newClient(t, &redis.Options{Addr: fresh.Addr})
	isRole := func(client *redis.Client, role string) func() bool {
		return func() bool {
			is, err := client.Do(ctx, "role").Slice()
			return err == nil && is[0] == role && (role == "master" || is[3] == "connected")
		}
	}

	holder, first, second := proxied(), proxied(), proxied()
	acquires(t, holder, "k", "holder", time.Minute)
	firstDone := joins(t, onOld, first, ctx, "k", "first", time.Minute)
	hears(t, onOld, 1)
	eventually(t, "the replica has it", func() bool { return queueLength(onFresh, "k") == 1 })
	eventually(t, "the failover begins", func() bool {
		return onOld.Do(ctx, "failover", "to", freshHost, freshPort).Err() == nil
	})
	eventually(t, "the replica is the master", isRole(onFresh, "master"))
	current.Store(fresh.Addr)
	eventually(t, "the old master follows", isRole(onOld, "slave"))
	secondDone := joins(t, onFresh, second, ctx, "k", "second", time.Minute)
	hears(t, onFresh, 1)
	eventually(t, "the new master can be reached", func() bool {
		ok, err := holder.Release(ctx, "k", "holder")
		return ok && err == nil
	})
	// The old master passes the new one's messages on. So the first may hear of the offer, and confirm
	// it in time if its connections have moved.
	holderNow := func() string { return onFresh.Get(ctx, "locker:k").Val() }
	eventually(t, "one of them has the lock", func() bool { return holderNow() == "first" || holderNow() == "second" })
	if holderNow() == "first" {
		isServed(t, firstDone, "the first could be reached")
		notServed(t, secondDone, "the lock is the first's")
		releases(t, first, "k", "first")
		isServed(t, secondDone, "the first has released")
		return
	}
	isServed(t, secondDone, "the first cannot be reached")
	notServed(t, firstDone, "the lock is the second's")
	eventually(t, "the first has joined again", func() bool { return queueLength(onFresh, "k") == 1 })
	releases(t, second, "k", "second")
	isServed(t, firstDone, "the second has released")
}

// On a Cluster the server counts only the subscribers of one node, but messages reach those of all
// nodes.
func TestGrantInClusterThroughOneNode(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	nodes := testserver.RedisCluster(t, 2)
	here, there := newClient(t, &redis.Options{Addr: nodes[0]}), newClient(t, &redis.Options{Addr: nodes[1]})
	key := "{k}"
	if here.Get(ctx, key).Err() != redis.Nil {
		here, there = there, here
	}
	holder := redisv9.New(here)
	acquires(t, holder, key, "holder", time.Minute)
	var first <-chan redistest.Turn
	token := ""
	for i := 0; first == nil; i++ { // until a channel is on the other node
		token = fmt.Sprint("first", i)
		waitCtx, cancel := context.WithCancel(ctx)
		defer cancel()
		first = joins(t, here, redisv9.New(newCluster(t, nodes)), waitCtx, key, token, time.Minute)
		eventually(t, "it is subscribed", func() bool { return subscribers(t, here)+subscribers(t, there) > 0 })
		if subscribers(t, there) == 0 {
			cancel()
			<-first
			first = nil
			eventually(t, "it has left", func() bool { return queueLength(here, key) == 0 })
			require.NoError(t, here.ClientKillByFilter(ctx, "type", "pubsub").Err())
		}
	}
	second := joins(t, here, redisv9.New(here), ctx, key, "second", time.Minute)
	releases(t, holder, key, "holder")
	isServed(t, first, "it claims the lock")
	notServed(t, second, "the lock is the first's")
	assert.Equal(t, token, here.Get(ctx, "locker:"+key).Val())
}

// user creates a user of admin's server with the rights that the package's documentation lists for
// one prefix.
func user(tb testing.TB, admin *redis.Client, name, prefix string) *redis.Client {
	tb.Helper()
	require.NoError(tb, admin.Do(context.Background(), "acl", "setuser", name, "on", ">secret", "+@all",
		"~"+prefix+"*", "~!line:"+prefix+"*", "~!fence:"+prefix+"*", "resetchannels", "&"+prefix+"*", "&!wait:"+prefix+"*").Err())
	return newClient(tb, &redis.Options{Addr: admin.Options().Addr, Username: name, Password: "secret"})
}

// Users with different prefixes cannot tell each other's waiters that they hold a lock, although
// the server lists all channels, and guesses are useless. The documented rights suffice for
// everything.
func TestForgedGrant(t *testing.T) {
	ctx := t.Context()
	addr := testserver.Redis(t).Addr
	admin := newClient(t, &redis.Options{Addr: addr})
	require.NoError(t, admin.Do(ctx, "acl", "setuser", "default", "allchannels").Err())
	mallory := user(t, admin, "mallory", "mallory:")
	l := redisv9.New(user(t, admin, "alice", "alice:"), redisv9.WithPrefix("alice:"))
	acquires(t, l, "k", "holder", time.Minute)
	_, ok, err := l.Fence(ctx, "k", "holder")
	require.NoError(t, err)
	require.True(t, ok)
	woken, err := l.Watch(ctx, "k")
	require.NoError(t, err)
	done := make(chan redistest.Turn, 1)
	go func() {
		deadline, err := l.Wait(ctx, "k", "victim", time.Minute)
		done <- redistest.Turn{Deadline: deadline, Err: err}
	}()
	var channel string
	eventually(t, "the victim is subscribed", func() bool {
		for _, name := range admin.PubSubChannels(ctx, "!wait:alice:*").Val() {
			channel = name
		}
		return channel != ""
	})

	seen, err := mallory.PubSubChannels(ctx, "*").Result()
	require.NoError(t, err)
	require.Contains(t, seen, channel, "the server lists it to everybody")
	assert.ErrorContains(t, mallory.Publish(ctx, channel, "x").Err(), "NOPERM")
	assert.ErrorContains(t, mallory.ZRange(ctx, "!line:alice:{alice:k}", 0, -1).Err(), "NOPERM")
	for _, nonce := range []string{"", "0", "1", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"} {
		for _, what := range []string{"offer", "0", "-1", "99999999999", "x"} {
			require.NoError(t, admin.Publish(ctx, channel, nonce+" "+what).Err())
		}
	}
	notServed(t, done, "it is the holder's")
	releases(t, l, "k", "holder")
	isServed(t, done, "this is true")
	isWoken(t, woken, "the lock was released")
}

// A user that may use every channel, as may all in Redis 6, but cannot read the queue, receives all
// messages to the waiters. What it repeats makes them look, and no more.
func TestForgedGrantFromMessages(t *testing.T) {
	ctx := t.Context()
	admin := newClient(t, &redis.Options{Addr: testserver.Redis(t).Addr})
	mallory := user(t, admin, "mallory", "mallory:")
	require.NoError(t, admin.Do(ctx, "acl", "setuser", "mallory", "allchannels").Err())
	overheard := mallory.PSubscribe(ctx, "*")
	t.Cleanup(func() { _ = overheard.Close() })
	_, err := overheard.Receive(ctx)
	require.NoError(t, err)
	holder := redisv9.New(user(t, admin, "alice", "alice:"), redisv9.WithPrefix("alice:"))
	acquires(t, holder, "k", "holder", time.Minute)
	var waiting []<-chan redistest.Turn
	for i := range 3 {
		l := redisv9.New(user(t, admin, "alice", "alice:"), redisv9.WithPrefix("alice:"))
		done := make(chan redistest.Turn, 1)
		go func() {
			deadline, err := l.Wait(ctx, "k", fmt.Sprint(i), time.Minute)
			done <- redistest.Turn{Deadline: deadline, Err: err}
		}()
		eventually(t, "it waits", func() bool { return admin.ZCard(ctx, "!line:alice:{alice:k}").Val() == int64(i+1) })
		waiting = append(waiting, done)
	}
	hears(t, admin, 3)
	token := "holder"
	for i, done := range waiting {
		releases(t, holder, "k", token)
		isServed(t, done, "the lock was released")
		token = fmt.Sprint(i)
		if i == len(waiting)-1 {
			break
		}
		for heard := 0; heard < 2-i; { // the others are told that they are next
			message, err := overheard.ReceiveMessage(ctx)
			require.NoError(t, err)
			id, what, ok := strings.Cut(message.Payload, " ")
			if !ok {
				continue
			}
			if what != "offer" {
				heard++
			}
			for _, forged := range []string{message.Payload, id + " offer", id + " 0"} {
				require.NoError(t, mallory.Publish(ctx, message.Channel, forged).Err())
			}
		}
		notServed(t, waiting[i+1], "the lock is another's")
	}
	releases(t, holder, "k", token)
}

// A subscriber to all channels, such as monitoring, does not make a dead waiter look alive.
func TestPatternSubscriberIsNoWaiter(t *testing.T) {
	addr := testserver.Redis(t).Addr
	ctx := t.Context()
	admin := newClient(t, &redis.Options{Addr: addr})
	monitor := newClient(t, &redis.Options{Addr: addr}).PSubscribe(ctx, "*")
	t.Cleanup(func() { _ = monitor.Close() })
	_, err := monitor.Receive(ctx)
	require.NoError(t, err)
	a, c := newLocker(t, &redis.Options{Addr: addr}), newLocker(t, &redis.Options{Addr: addr})
	dying := redis.NewClient(&redis.Options{Addr: addr})
	acquires(t, a, "k", "a", time.Minute)
	dead := joins(t, admin, redisv9.New(dying), ctx, "k", "b", time.Hour)
	hears(t, admin, 2)
	alive := joins(t, admin, c, ctx, "k", "c", time.Minute)
	hears(t, admin, 3)
	require.NoError(t, dying.Close())
	<-dead
	eventually(t, "its connection is gone", func() bool { return subscribers(t, admin) == 2 })
	releases(t, a, "k", "a")
	isServed(t, alive, "the one before it is gone")
}

// How long N processes of a Cluster that have died delay those behind them does not depend on N: about
// a second, in which the first of them could take the lock.
func TestDeadWaitersInCluster(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ processes, waiters int }{{1, 10}, {40, 1}} {
		t.Run(fmt.Sprint(c.processes, " processes"), func(t *testing.T) {
			nodes := testserver.RedisCluster(t, 3)
			admin := newCluster(t, nodes)
			a, alive := redisv9.New(newCluster(t, nodes)), redisv9.New(newCluster(t, nodes))
			acquires(t, a, "k", "a", time.Minute)
			var dying []*redis.ClusterClient
			for i := range c.processes {
				client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: nodes})
				dying = append(dying, client)
				l := redisv9.New(client)
				joins(t, admin, l, t.Context(), "k", fmt.Sprint(i), time.Hour)
				for n := range c.waiters - 1 {
					stands(t, l, t.Context(), "k", fmt.Sprint(i, " ", n), time.Hour)
				}
			}
			done := joins(t, admin, alive, t.Context(), "k", "alive", time.Minute)
			for _, client := range dying {
				require.NoError(t, client.Close())
			}
			start := time.Now()
			releases(t, a, "k", "a")
			isServed(t, done, "those before it are gone")
			t.Logf("%d dead were passed over in %v", c.processes*c.waiters, time.Since(start))
			assert.Less(t, time.Since(start), 8*time.Second) // without the release's look it is ten
		})
	}
}

// While a slot is on its way to another node, a release frees the lock and wakes the watchers, and
// waiters poll. It also works without a queue.
func TestReleaseInMigratingSlot(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	nodes := testserver.RedisCluster(t, 2)
	from, to := newClient(t, &redis.Options{Addr: nodes[0]}), newClient(t, &redis.Options{Addr: nodes[1]})
	const key, other = "k{tag}", "other{tag}"
	if from.Get(ctx, "locker:"+key).Err() != redis.Nil {
		from, to = to, from
	}
	a, b := redisv9.New(newCluster(t, nodes)), redisv9.New(newCluster(t, nodes))
	acquires(t, a, key, "a", time.Minute)
	acquires(t, a, other, "a", time.Minute)
	woken, err := a.Watch(ctx, key)
	require.NoError(t, err)
	done := make(chan redistest.Turn, 1)
	go func() {
		deadline, err := b.Wait(ctx, key, "b", time.Minute)
		done <- redistest.Turn{Deadline: deadline, Err: err}
	}()
	eventually(t, "it waits", func() bool { return queueLength(from, key) == 1 })
	time.Sleep(100 * time.Millisecond) // and listens
	id := func(node *redis.Client) string { return node.Do(ctx, "cluster", "myid").Val().(string) }
	slot := from.ClusterKeySlot(ctx, "{tag}").Val()
	require.NoError(t, to.Do(ctx, "cluster", "setslot", slot, "importing", id(from)).Err())
	require.NoError(t, from.Do(ctx, "cluster", "setslot", slot, "migrating", id(to)).Err())
	releases(t, a, key, "a")
	isWoken(t, woken, "the lock was released")
	isServed(t, done, "the lock was released")
	ok, err := a.Extend(ctx, other, "a", time.Minute)
	require.NoError(t, err)
	require.True(t, ok)
	releases(t, a, other, "a")
}

// A release by a holder that has lost its lock, by an eviction for instance, reports false, and
// serves the queue.
func TestReleaseOfLostLockServes(t *testing.T) {
	addr := testserver.Redis(t).Addr
	ctx := t.Context()
	admin := newClient(t, &redis.Options{Addr: addr})
	a, b := newLocker(t, &redis.Options{Addr: addr}), newLocker(t, &redis.Options{Addr: addr})
	acquires(t, a, "k", "a", time.Minute)
	done := joins(t, admin, b, ctx, "k", "b", time.Minute)
	hears(t, admin, 1)
	require.NoError(t, admin.Del(ctx, "locker:k").Err())
	ok, err := a.Release(ctx, "k", "a")
	require.NoError(t, err)
	require.False(t, ok)
	start := time.Now()
	isServed(t, done, "the lock was free")
	assert.Less(t, time.Since(start), redislock.LookAgain/2, "told by the release, not by a look of its own")
}

// losing is a network on which the next reply is read and lost, once the test goes on.
type losing struct {
	next         atomic.Bool
	read, resume chan struct{}
}

type losingConn struct {
	net.Conn
	n *losing
}

func (n *losing) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	return &losingConn{conn, n}, err
}

func (c *losingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err == nil && c.n.next.CompareAndSwap(true, false) {
		close(c.n.read)
		<-c.n.resume
		return 0, net.ErrClosed
	}
	return n, err
}

// An Acquire whose first request took the lock, whose reply was lost, and that go-redis repeated
// when the ttl had passed and another held the lock, must not report that it was refused.
func TestRefusedAfterTheLockWasLost(t *testing.T) {
	addr := testserver.Redis(t).Addr
	ctx := t.Context()
	n := &losing{read: make(chan struct{}), resume: make(chan struct{})}
	l := newLocker(t, &redis.Options{Addr: addr, Dialer: n.dial, MaxRetries: 3})
	other := newLocker(t, &redis.Options{Addr: addr})
	releasesNothing(t, l, "k") // connects
	n.next.Store(true)
	type result struct {
		ok  bool
		err error
	}
	done := make(chan result)
	go func() {
		ok, err := l.Acquire(ctx, "k", "a", 20*time.Millisecond)
		done <- result{ok, err}
	}()
	<-n.read
	eventually(t, "the ttl has passed", func() bool {
		ok, err := other.Acquire(ctx, "k", "b", time.Minute)
		return ok && err == nil
	})
	close(n.resume)
	r := <-done
	assert.False(t, r.ok)
	assert.Error(t, r.err, "the first request took the lock")
}

func releasesNothing(tb testing.TB, l *redisv9.Locker, key string) {
	tb.Helper()
	ok, err := l.Release(context.Background(), key, "nobody's")
	require.NoError(tb, err)
	require.False(tb, ok)
}
