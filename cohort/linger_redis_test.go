package cohort_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/cohort"
	"github.com/golockers/locker/internal/demand"
	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/redisv9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// commands counts what a client sends, except for subscriptions.
type commands struct{ n atomic.Int64 }

func (c *commands) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *commands) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmd)
	}
}

func (c *commands) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (c *commands) during(f func()) int64 {
	before := c.n.Load()
	f()
	return c.n.Load() - before
}

// redisProcess returns a Locker with a client of its own, as another process would have.
func redisProcess(tb testing.TB, addr string) (*redisv9.Locker, *commands) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	tb.Cleanup(func() { _ = client.Close() })
	c := new(commands)
	client.AddHook(c)
	return redisv9.New(client), c
}

// listens uses the lock of "k" until it lingers, and so l hears what others want.
func listens(tb testing.TB, l *cohort.Locker) {
	tb.Helper()
	require.Eventually(tb, func() bool {
		use(tb, l, time.Minute)
		return cohort.Entries(l) > 0
	}, 30*time.Second, time.Millisecond, "it does not linger")
}

func TestLingerOnRedis(t *testing.T) {
	addr := testserver.Redis(t).Addr
	inner, sent := redisProcess(t, addr)
	l := cohort.New(inner, cohort.WithLinger(10*time.Second)) // longer than a busy machine takes
	t.Cleanup(func() { _ = l.Close() })
	listens(t, l)
	assert.LessOrEqual(t, sent.during(func() {
		for range 1000 {
			use(t, l, time.Minute)
		}
	}), int64(2))

	plain, asked := redisProcess(t, addr)
	for i := range 50 {
		listens(t, l)
		var lease *locker.Lease
		var err error
		requests := asked.during(func() { lease, err = locker.TryLock(t.Context(), plain, "k", time.Minute) })
		if i > 0 { // the server has the script
			assert.EqualValues(t, 3, requests)
		}
		require.NoError(t, err, "it is not used")
		require.NoError(t, lease.Unlock(t.Context()))
		listens(t, l)
		start := time.Now()
		use(t, plain, time.Minute)
		assert.Less(t, time.Since(start), 5*time.Second)
	}

	// A lock in use is refused, in two requests, and does not linger after that.
	lease := mustLock(t, l, time.Minute)
	assert.EqualValues(t, 1, sent.during(func() {
		assert.EqualValues(t, 2, asked.during(func() {
			_, err := locker.TryLock(t.Context(), plain, "k", time.Minute)
			assert.ErrorIs(t, err, locker.ErrHeld)
		}))
	}), "the answer")
	require.NoError(t, lease.Unlock(t.Context()))
	assert.Empty(t, held(t, plain))

	// Lockers that let no lock linger pay nothing.
	other, _ := redisProcess(t, addr)
	first := mustLock(t, other, time.Minute)
	assert.EqualValues(t, 1, asked.during(func() {
		_, err := locker.TryLock(t.Context(), plain, "k", time.Minute)
		assert.ErrorIs(t, err, locker.ErrHeld)
	}))
	require.NoError(t, first.Unlock(t.Context()))
	assert.EqualValues(t, 2, asked.during(func() { use(t, plain, time.Minute) }))
}

// A waiter that looks, or a server that does not answer SET with GET, finds out as well.
func TestLingerBesideAQueueOnRedis(t *testing.T) {
	addr := testserver.Redis(t).Addr
	inner, _ := redisProcess(t, addr)
	l := cohort.New(inner, cohort.WithLinger(10*time.Second))
	t.Cleanup(func() { _ = l.Close() })
	listens(t, l)
	other, _ := redisProcess(t, addr)
	busy := mustLock2(t, other, "another")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _, _ = locker.Lock(ctx, other, "another", time.Minute) }() // from now on it respects queues
	require.Eventually(t, func() bool {
		info, err := other.Inspect(t.Context(), "another")
		return err == nil && info.Waiters == 1
	}, 30*time.Second, time.Millisecond)
	for range 20 {
		listens(t, l)
		lease, err := locker.TryLock(t.Context(), other, "k", time.Minute)
		require.NoError(t, err, "it is not used")
		require.NoError(t, lease.Unlock(t.Context()))
	}
	require.NoError(t, busy.Unlock(t.Context()))
}

func mustLock2(t testing.TB, l locker.Locker, key string) *locker.Lease {
	t.Helper()
	lease, err := locker.Lock(context.Background(), l, key, time.Minute)
	require.NoError(t, err)
	return lease
}

// A process gets the lock through the queue while others wait behind it: it learns that from the
// server.
func TestLingerBehindAQueueOnRedis(t *testing.T) {
	addr := testserver.Redis(t).Addr
	inner, _ := redisProcess(t, addr)
	l := cohort.New(inner, cohort.WithLinger(time.Minute))
	t.Cleanup(func() { _ = l.Close() })
	listens(t, l)
	a, _ := redisProcess(t, addr)
	b, _ := redisProcess(t, addr)
	for range 10 {
		first := mustLock(t, a, time.Minute)
		next := make(chan *locker.Lease, 2)
		for i, other := range []locker.Locker{l, b} {
			go func() {
				lease, err := locker.Lock(t.Context(), other, "k", time.Minute)
				assert.NoError(t, err)
				next <- lease
			}()
			require.Eventually(t, func() bool {
				info, err := a.Inspect(t.Context(), "k")
				return err == nil && info.Waiters == i+1
			}, 30*time.Second, time.Millisecond)
		}
		require.NoError(t, first.Unlock(t.Context()))
		for range 2 {
			select {
			case lease := <-next:
				require.NoError(t, lease.Unlock(t.Context()))
			case <-time.After(30 * time.Second):
				t.Fatal("the lock lingers although another waits for it")
			}
		}
	}
}

// Without permission to subscribe, locks do not linger. Without permission to publish, a process
// waits until a lock that lingers is given up.
func TestLingerWithoutChannels(t *testing.T) {
	t.Parallel()
	srv := testserver.Redis(t)
	admin := redis.NewClient(&redis.Options{Addr: srv.Addr})
	t.Cleanup(func() { _ = admin.Close() })
	require.NoError(t, admin.Do(t.Context(), "acl", "setuser", "deaf", "on", "nopass", "+@all", "~*", "resetchannels").Err())
	client := redis.NewClient(&redis.Options{Addr: srv.Addr, Username: "deaf", Password: "x"})
	t.Cleanup(func() { _ = client.Close() })
	sent := new(commands)
	client.AddHook(sent)
	deaf := redisv9.New(client)
	l := cohort.New(deaf, cohort.WithLinger(time.Minute))
	use(t, l, time.Minute)
	require.Eventually(t, func() bool {
		denied, err := admin.ACLLog(t.Context(), 1).Result()
		return err == nil && len(denied) == 1
	}, 30*time.Second, time.Millisecond, "it does not subscribe, in the background")
	time.Sleep(100 * time.Millisecond)  // if it took that for success, locks would linger now
	require.Eventually(t, func() bool { // it may be a while until its connection is at rest
		return sent.during(func() {
			for range 10 {
				use(t, l, time.Minute)
			}
		}) == 2*10
	}, 30*time.Second, 100*time.Millisecond, "locks linger")

	inner, _ := redisProcess(t, srv.Addr)
	lingering := cohort.New(inner, cohort.WithLinger(2*time.Second)) // until another has asked for it
	t.Cleanup(func() { _ = lingering.Close() })
	listens(t, lingering)
	_, err := locker.TryLock(t.Context(), deaf, "k", time.Minute)
	assert.ErrorIs(t, err, locker.ErrHeld)
	use(t, deaf, time.Minute)
}

// While the connection for demands is broken, nothing lingers.
func TestLingerConnectionBreaks(t *testing.T) {
	srv := testserver.Redis(t)
	var mute atomic.Bool
	client := redis.NewClient(&redis.Options{Addr: srv.Addr,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &unsubscribed{Conn: conn, mute: &mute}, nil
		}})
	t.Cleanup(func() { _ = client.Close() })
	l := cohort.New(redisv9.New(client), cohort.WithLinger(time.Minute))
	t.Cleanup(func() { _ = l.Close() })
	listens(t, l)
	mute.Store(true)
	admin := redis.NewClient(&redis.Options{Addr: srv.Addr})
	t.Cleanup(func() { _ = admin.Close() })
	require.NoError(t, admin.Do(t.Context(), "client", "kill", "type", "pubsub").Err())
	other, _ := redisProcess(t, srv.Addr)
	require.Eventually(t, func() bool { return held(t, other) == "" }, 30*time.Second, time.Millisecond)
	use(t, l, time.Minute)
	assert.Empty(t, held(t, other))
	mute.Store(false)
	listens(t, l)
}

// unsubscribed is a connection on which subscriptions fail.
type unsubscribed struct {
	net.Conn
	mute *atomic.Bool
}

func (c *unsubscribed) Write(b []byte) (int, error) {
	if c.mute.Load() && strings.Contains(strings.ToLower(string(b)), "subscribe") {
		return 0, net.ErrClosed
	}
	return c.Conn.Write(b)
}

// An attempt whose answer is lost finds out all the same that the lock was given up.
func TestLingerAnswerIsLost(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	admin := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { _ = admin.Close() })
	owner := admin.Subscribe(t.Context(), "!wait:locker:MUTE")
	t.Cleanup(func() { _ = owner.Close() })
	_, err := owner.Receive(t.Context())
	require.NoError(t, err)
	require.NoError(t, admin.Set(t.Context(), "locker:k", "t~@MUTE~1", time.Minute).Err())
	go func() {
		<-owner.Channel()
		_ = admin.Del(context.Background(), "locker:k").Err()
	}()
	l, _ := redisProcess(t, addr)
	lease, err := locker.TryLock(t.Context(), l, "k", time.Minute)
	require.NoError(t, err)
	require.NoError(t, lease.Unlock(t.Context()))
}

// An owner that does not answer, because its process is stopped, is not asked again for some time.
func TestLingerSilentOwner(t *testing.T) {
	addr := testserver.Redis(t).Addr
	admin := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { _ = admin.Close() })
	owner := admin.Subscribe(t.Context(), "!wait:locker:SILENT")
	t.Cleanup(func() { _ = owner.Close() })
	_, err := owner.Receive(t.Context())
	require.NoError(t, err)
	require.NoError(t, admin.Set(t.Context(), "locker:k", "t~@SILENT~1", time.Minute).Err())
	l, sent := redisProcess(t, addr)
	refused := func() {
		_, err := locker.TryLock(t.Context(), l, "k", time.Minute)
		assert.ErrorIs(t, err, locker.ErrHeld)
	}
	start := time.Now()
	refused()
	assert.GreaterOrEqual(t, time.Since(start), demand.Patience)
	assert.EqualValues(t, 1, sent.during(refused))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = locker.Lock(ctx, l, "k", time.Minute)
	assert.ErrorIs(t, err, locker.ErrHeld)
}
