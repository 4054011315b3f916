package rueidis_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker/internal/testserver"
	"github.com/golockers/locker/internal/undo"
	"github.com/golockers/locker/rueidis"
	"github.com/redis/go-redis/v9"
	rueidisclient "github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// losing is a network that loses the next reply, and the connection with it.
type losing struct{ next atomic.Bool }

type losingConn struct {
	net.Conn
	n *losing
}

func (n *losing) dial(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &losingConn{conn, n}, nil
}

func (c *losingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err == nil && c.n.next.CompareAndSwap(true, false) {
		_ = c.Close()
		return 0, net.ErrClosed
	}
	return n, err
}

// executed returns how many commands of these names a server has executed, in scripts or not.
func executed(tb testing.TB, admin *redis.Client, names ...string) (n int64) {
	tb.Helper()
	all, err := admin.InfoMap(context.Background(), "commandstats").Result()
	require.NoError(tb, err)
	for _, name := range names {
		calls, _, _ := strings.Cut(strings.TrimPrefix(all["Commandstats"]["cmdstat_"+name], "calls="), ",")
		var i int64
		for _, c := range calls {
			i = 10*i + int64(c-'0')
		}
		n += i
	}
	return n
}

// A request whose reply was lost is not repeated: the outcome is unknown, and the next call with
// the same token finds out.
func TestNothingIsRepeated(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	admin, n := newAdmin(t, addr), new(losing)
	l := newLocker(t, rueidisclient.ClientOption{
		InitAddress: []string{addr}, DialCtxFn: n.dial, PipelineMultiplex: -1,
		Dialer: net.Dialer{KeepAlive: time.Hour}, ConnWriteTimeout: time.Minute, // no pings
	})
	for name, operation := range operations(l) {
		if name == "watch" {
			continue
		}
		for _, isHeld := range []bool{false, true} {
			require.NoError(t, operations(l)["release"](t.Context(), "k", "t"))
			if isHeld {
				acquires(t, l, "k", "t", time.Minute)
			}
			require.NoError(t, operations(l)["inspect"](t.Context(), "k", "t")) // the server knows the scripts
			before := executed(t, admin, "evalsha", "eval", "scan")
			writes := executed(t, admin, "set")
			n.next.Store(true)
			err := operation(t.Context(), "k", "t")
			require.ErrorIs(t, err, net.ErrClosed, name)
			require.NoError(t, undo.Wait(t.Context(), l))
			switch after := executed(t, admin, "evalsha", "eval", "scan") - before; name {
			case "acquire":
				assert.Zero(t, after, name)
				assert.EqualValues(t, 1, executed(t, admin, "set")-writes, name)
			case "wait": // gives up, in the background
			default:
				assert.EqualValues(t, 1, after, name)
			}
		}
	}
	acquires(t, l, "k", "t", time.Minute)
	n.next.Store(true)
	_, err := l.Release(t.Context(), "k", "t")
	require.Error(t, err)
	ok, err := l.Release(t.Context(), "k", "t")
	require.NoError(t, err)
	assert.False(t, ok, "the first one has released it")
}

// rueidis repeats the requests of a connection whose lifetime ends while the server is slow.
func TestConnLifetime(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	for name, o := range map[string]rueidisclient.ClientOption{
		"single":   {InitAddress: []string{addr}, DisableRetry: true},
		"Cluster":  {InitAddress: testserver.RedisCluster(t, 1)},
		"replicas": {InitAddress: []string{addr}, Standalone: rueidisclient.StandaloneOption{ReplicaAddress: []string{addr}}},
	} {
		o.SendToReplicas = func(c rueidisclient.Completed) bool { return c.IsReadOnly() }
		assert.NoError(t, operations(newLocker(t, o))["acquire"](t.Context(), "k", "t"), name)
		o.ConnLifetime = time.Hour
		client := newClient(t, o)
		for _, client := range []rueidisclient.Client{client, wrapped{client}, &wrapped{client}} {
			for operation, f := range operations(rueidis.New(client)) {
				assert.ErrorContains(t, f(t.Context(), "k", "t"), "ConnLifetime", "%s: %s", name, operation)
			}
		}
	}
}

type wrapped struct{ rueidisclient.Client }

// When the context of another call of the client ends while that dials, or has the connection for
// itself, rueidis ends what waits for the connection with that call's error.
func TestContextsOfOthers(t *testing.T) {
	t.Parallel()
	t.Run("during a dial", func(t *testing.T) {
		t.Parallel()
		addr := testserver.Redis(t).Addr
		var dialing atomic.Pointer[chan struct{}]
		client := newClient(t, rueidisclient.ClientOption{
			InitAddress: []string{addr}, PipelineMultiplex: -1,
			DialCtxFn: func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
				if started := dialing.Swap(nil); started != nil {
					close(*started)
					<-ctx.Done()
				}
				return d.DialContext(ctx, "tcp", addr)
			},
		})
		l := rueidis.New(client)
		acquires(t, l, "k", "t", time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		started := make(chan struct{})
		dialing.Store(&started)
		require.NoError(t, newAdmin(t, addr).ClientKillByFilter(t.Context(), "type", "normal").Err())
		go func() {
			for ctx.Err() == nil { // the first finds that the connection has ended
				_ = client.Do(ctx, client.B().Ping().Build()).Error()
			}
		}()
		<-started
		time.AfterFunc(100*time.Millisecond, cancel)
		ok, err := l.Extend(t.Context(), "k", "t", time.Minute)
		require.NoError(t, err)
		assert.True(t, ok)
	})
	t.Run("during a call", func(t *testing.T) {
		t.Parallel()
		srv := testserver.Redis(t)
		client := newClient(t, rueidisclient.ClientOption{InitAddress: []string{srv.Addr}, PipelineMultiplex: -1})
		l := rueidis.New(client)
		acquires(t, l, "k", "t", time.Minute)
		srv.Pause()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		go func() {
			<-ctx.Done()
			srv.Continue()
		}()
		go func() { _ = client.Do(ctx, client.B().Ping().Build()).Error() }()
		time.Sleep(100 * time.Millisecond) // not a condition: without it, this call may be the first
		ok, err := l.Extend(t.Context(), "k", "t", time.Minute)
		require.NoError(t, err)
		assert.True(t, ok)
	})
}

// holding is a network that holds back the next SET.
type holding struct {
	next          atomic.Bool
	held, deliver chan struct{}
}

type holdingConn struct {
	net.Conn
	n *holding
}

func (n *holding) dial(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &holdingConn{conn, n}, nil
}

func (c *holdingConn) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("\r\nSET\r\n")) && c.n.next.CompareAndSwap(true, false) {
		c.n.held <- struct{}{}
		<-c.n.deliver
	}
	return c.Conn.Write(b)
}

// A Release waits for the reply to an Acquire that its caller has left, on whichever connections
// they are.
func TestReleaseFollowsAcquire(t *testing.T) {
	t.Parallel()
	addr := testserver.Redis(t).Addr
	n := &holding{held: make(chan struct{}), deliver: make(chan struct{})}
	l := newLocker(t, rueidisclient.ClientOption{
		InitAddress: []string{addr}, DialCtxFn: n.dial, AlwaysPipelining: true, PipelineMultiplex: 3,
	})
	for i := range 12 { // rueidis chooses among the connections at random
		token := fmt.Sprint(i)
		require.NoError(t, operations(l)["release"](t.Context(), "k", token))
		n.next.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-n.held
			cancel()
		}()
		_, err := l.Acquire(ctx, "k", token, time.Minute)
		require.ErrorIs(t, err, context.Canceled)
		time.AfterFunc(50*time.Millisecond, func() { n.deliver <- struct{}{} })
		releases(t, l, "k", token)
	}
}
