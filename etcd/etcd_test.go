package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

const patience = 30 * time.Second

func isOK(t *testing.T) func(bool, error) {
	t.Helper()
	return func(ok bool, err error) {
		t.Helper()
		require.NoError(t, err)
		require.True(t, ok)
	}
}

func isRefused(t *testing.T) func(bool, error) {
	t.Helper()
	return func(ok bool, err error) {
		t.Helper()
		require.NoError(t, err)
		require.False(t, ok)
	}
}

// leases returns the ttl of each lease, as "etcdctl lease list" and "timetolive" show them.
func leases(t *testing.T, client *clientv3.Client) []int64 {
	t.Helper()
	list, err := client.Leases(t.Context())
	require.NoError(t, err)
	var ttls []int64
	for _, lease := range list.Leases {
		info, err := client.TimeToLive(t.Context(), lease.ID)
		require.NoError(t, err)
		if info.TTL >= 0 { // it may have been revoked meanwhile
			ttls = append(ttls, info.GrantedTTL)
		}
	}
	return ttls
}

// hasLeases waits until only these leases are left.
func hasLeases(t *testing.T, client *clientv3.Client, ttls ...int64) {
	t.Helper()
	var got []int64
	require.Eventually(t, func() bool {
		got = leases(t, client)
		return assert.ObjectsAreEqual(fmt.Sprint(ttls), fmt.Sprint(got))
	}, patience, 5*time.Millisecond, "want leases of %v", ttls)
}

// counted returns a client and the number of requests that it has sent. A message on a stream is a
// request.
func counted(t *testing.T, addr string) (*clientv3.Client, *atomic.Int64) {
	t.Helper()
	var n atomic.Int64
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{addr}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{
			grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
				invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				n.Add(1)
				return invoke(ctx, method, req, reply, conn, opts...)
			}),
			grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string,
				open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
				stream, err := open(ctx, desc, conn, method, opts...)
				return countedStream{stream, &n}, err
			}),
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, client.Close()) })
	return client, &n
}

type countedStream struct {
	grpc.ClientStream
	n *atomic.Int64
}

func (s countedStream) SendMsg(m any) error {
	s.n.Add(1)
	return s.ClientStream.SendMsg(m)
}

// The requests of each operation, and the leases that are left.
func TestRequests(t *testing.T) {
	t.Parallel()
	srv := testserver.Etcd(t)
	admin := newClient(t, srv.Addr)
	client, n := counted(t, srv.Addr)
	l, other := New(client), New(admin)
	ctx := t.Context()
	takes := func(want int64, what string, do func()) {
		t.Helper()
		n.Store(0)
		do()
		require.NoError(t, l.calls.Wait(ctx, "t"))
		assert.Equal(t, want, n.Load(), what)
	}
	takes(3, "Acquire", func() { isOK(t)(l.Acquire(ctx, "k", "t", 20*time.Second)) })
	takes(3, "Extend", func() { isOK(t)(l.Extend(ctx, "k", "t", 19500*time.Millisecond)) })
	mint := func() {
		_, ok, err := l.Fence(ctx, "k", "t")
		isOK(t)(ok, err)
	}
	takes(2, "Fence", mint) // or 1, if another process has raised within the last millisecond
	hasLeases(t, admin, 20)
	takes(3+1, "Extend by another ttl", func() { isOK(t)(l.Extend(ctx, "k", "t", 30*time.Second)) })
	hasLeases(t, admin, 30)
	takes(3+1, "Acquire by the holder", func() { isOK(t)(l.Acquire(ctx, "k", "t", 40*time.Second)) })
	hasLeases(t, admin, 40)
	takes(1+1, "Release", func() { isOK(t)(l.Release(ctx, "k", "t")) })
	hasLeases(t, admin)
	takes(2, "Wait", func() {
		_, err := l.Wait(ctx, "k", "t", 20*time.Second)
		require.NoError(t, err)
	})
	isOK(t)(l.Release(ctx, "k", "t"))

	isOK(t)(other.Acquire(ctx, "k", "holder", time.Minute))
	takes(1, "Acquire, refused", func() { isRefused(t)(l.Acquire(ctx, "k", "t", time.Minute)) })
	takes(1, "Extend, refused", func() { isRefused(t)(l.Extend(ctx, "k", "t", time.Minute)) })
	takes(1, "Release, refused", func() { isRefused(t)(l.Release(ctx, "k", "t")) })
	takes(1, "Fence, refused", func() {
		_, ok, err := l.Fence(ctx, "k", "t")
		isRefused(t)(ok, err)
	})
	hasLeases(t, admin, 60)
	takes(2+2+1, "Wait: grant, join, watch, check, leave the queue", func() {
		short, cancel := context.WithCancel(ctx)
		defer cancel()
		waited := make(chan error, 1)
		go func() {
			_, err := l.Wait(short, "k", "t", time.Minute)
			waited <- err
		}()
		require.Eventually(t, func() bool { return n.Load() >= 4 }, patience, time.Millisecond)
		cancel()
		err := <-waited
		require.ErrorIs(t, err, locker.ErrHeld)
		require.ErrorIs(t, err, context.Canceled)
	})
	hasLeases(t, admin, 60)
	isOK(t)(other.Release(ctx, "k", "holder"))
	hasLeases(t, admin)
	left, err := admin.Get(ctx, "", clientv3.WithPrefix())
	require.NoError(t, err)
	require.EqualValues(t, 1, left.Count, "%v", left.Kvs)
	assert.Equal(t, "locker/fence", string(left.Kvs[0].Key))
}

// A turn takes one request, if the lease is fresh, and the watch of each waiter is of one key.
func TestTurn(t *testing.T) {
	t.Parallel()
	srv := testserver.Etcd(t)
	client, n := counted(t, srv.Addr)
	l, other := New(client), New(newClient(t, srv.Addr))
	ctx := t.Context()
	isOK(t)(other.Acquire(ctx, "k", "holder", time.Minute))
	done := make(chan error, 1)
	go func() {
		_, err := l.Wait(ctx, "k", "t", time.Minute)
		done <- err
	}()
	require.Eventually(t, func() bool { return n.Load() >= 4 }, patience, time.Millisecond, "grant, join, watch, check")
	n.Store(0)
	isOK(t)(other.Release(ctx, "k", "holder"))
	require.NoError(t, <-done)
	assert.LessOrEqual(t, n.Load(), int64(2), "the turn, and the end of the watch, which may be told")
}

func TestTTL(t *testing.T) {
	t.Parallel()
	client := newClient(t, testserver.Etcd(t).Addr)
	l, ctx := New(client), t.Context()
	for ttl, want := range map[time.Duration]int64{
		time.Millisecond: 2, time.Second: 2, 2 * time.Second: 2, 2*time.Second + 1: 3, 2500 * time.Millisecond: 3,
		31 * 24 * time.Hour: 31 * 24 * 60 * 60, time.Duration(longest) * time.Second: longest,
	} {
		isOK(t)(l.Acquire(ctx, "k", "t", ttl))
		hasLeases(t, client, want)
		isOK(t)(l.Extend(ctx, "k", "t", ttl))
		hasLeases(t, client, want)
		isOK(t)(l.Extend(ctx, "k", "t", time.Hour))
		hasLeases(t, client, 3600)
		isOK(t)(l.Extend(ctx, "k", "t", ttl))
		hasLeases(t, client, want)
		isOK(t)(l.Release(ctx, "k", "t"))
		hasLeases(t, client)
	}
	for _, ttl := range []time.Duration{time.Duration(longest)*time.Second + 1, 1<<63 - 1, 0, -1, time.Millisecond - 1} {
		ok, err := l.Acquire(ctx, "k", "t", ttl)
		assert.ErrorIs(t, err, locker.ErrInvalidTTL, ttl)
		assert.False(t, ok)
		ok, err = l.Extend(ctx, "k", "t", ttl)
		assert.ErrorIs(t, err, locker.ErrInvalidTTL, ttl)
		assert.False(t, ok)
		_, err = l.Wait(ctx, "k", "t", ttl)
		assert.ErrorIs(t, err, locker.ErrInvalidTTL, ttl)
	}
	hasLeases(t, client)
}

// A move to another lease that arrives late has no effect after an extension: it could end the lock
// before the ttl that was promised since.
func TestLateMove(t *testing.T) {
	t.Parallel()
	client := newClient(t, testserver.Etcd(t).Addr)
	l, ctx := New(client), t.Context()
	isOK(t)(l.Acquire(ctx, "k", "t", time.Minute))
	for _, ttl := range []time.Duration{time.Minute, time.Hour} {
		entry, err := client.Get(ctx, "locker/k/t")
		require.NoError(t, err)
		s, err := read("locker/k/", entry.Kvs[0])
		require.NoError(t, err)
		isOK(t)(l.Extend(ctx, "k", "t", ttl))
		lease, err := l.move(ctx, s, 5)
		require.NoError(t, err)
		assert.Equal(t, clientv3.LeaseID(clientv3.NoLease), lease, "it was moved after an Extend to %v", ttl)
		assert.Greater(t, inspect(t, l, "k").TTL, ttl/2)
	}
	isOK(t)(l.Release(ctx, "k", "t"))
	hasLeases(t, client)
}

// After a move without an answer the lock is held, and one of the two leases is left.
func TestMoveWithoutAnswer(t *testing.T) {
	t.Parallel()
	client := newClient(t, testserver.Etcd(t).Addr)
	admin := newClient(t, client.Endpoints()...)
	for _, arrives := range []bool{true, false} {
		client.KV = &lossyKV{KV: admin.KV, losesTxn: 2, arrives: arrives}
		l, ctx := New(client), t.Context()
		isOK(t)(New(admin).Acquire(ctx, "k", "t", time.Minute))
		_, err := l.Extend(ctx, "k", "t", time.Hour)
		require.ErrorIs(t, err, errLost)
		want := int64(60)
		if arrives {
			want = 3600
		}
		hasLeases(t, admin, want)
		isRefused(t)(l.Acquire(ctx, "k", "u", time.Minute))
		isOK(t)(l.Release(ctx, "k", "t"))
		hasLeases(t, admin)
	}
}

var errLost = errors.New("the answer is lost")

// lossyKV loses a transaction, or the answer to it.
type lossyKV struct {
	clientv3.KV
	losesTxn int
	arrives  bool
}

func (kv *lossyKV) Txn(ctx context.Context) clientv3.Txn {
	kv.losesTxn--
	if kv.losesTxn != 0 {
		return kv.KV.Txn(ctx)
	}
	return &lossyTxn{kv.KV.Txn(ctx), kv.arrives}
}

type lossyTxn struct {
	clientv3.Txn
	arrives bool
}

func (x *lossyTxn) If(cs ...clientv3.Cmp) clientv3.Txn   { x.Txn = x.Txn.If(cs...); return x }
func (x *lossyTxn) Then(ops ...clientv3.Op) clientv3.Txn { x.Txn = x.Txn.Then(ops...); return x }
func (x *lossyTxn) Else(ops ...clientv3.Op) clientv3.Txn { x.Txn = x.Txn.Else(ops...); return x }

func (x *lossyTxn) Commit() (*clientv3.TxnResponse, error) {
	if x.arrives {
		_, _ = x.Txn.Commit()
	}
	return nil, errLost
}

// What is refused does not keep the holder's lease alive.
func TestRefusedRenewsNothing(t *testing.T) {
	t.Parallel()
	l, ctx := New(newClient(t, testserver.Etcd(t).Addr)), t.Context()
	const ttl = 10 * time.Second
	isOK(t)(l.Acquire(ctx, "k", "t", ttl))
	require.Eventually(t, func() bool {
		isRefused(t)(l.Acquire(ctx, "k", "u", ttl))
		isRefused(t)(l.Extend(ctx, "k", "u", ttl))
		isRefused(t)(l.Extend(ctx, "k", "u", time.Minute))
		isRefused(t)(l.Release(ctx, "k", "u"))
		_, ok, err := l.Fence(ctx, "k", "u")
		isRefused(t)(ok, err)
		_, ok, err = l.Fence(ctx, "k", "t")
		isOK(t)(ok, err)
		return inspect(t, l, "k").TTL < ttl-3*time.Second
	}, patience, 20*time.Millisecond)
	isOK(t)(l.Release(ctx, "k", "t"))
}

// What "etcdctl get --prefix locker/" shows.
func TestEntries(t *testing.T) {
	t.Parallel()
	client := newClient(t, testserver.Etcd(t).Addr)
	for prefix, want := range map[string]string{"": "locker/", "app/locks:": "app/locks:", "\xff": "\xff"} {
		l, ctx := New(client, WithPrefix(prefix)), t.Context()
		isOK(t)(l.Acquire(ctx, "invoice/42", "host 7", 60500*time.Millisecond))
		waiting, leave := context.WithCancel(ctx)
		left := make(chan struct{})
		go func() {
			defer close(left)
			_, _ = l.Wait(waiting, "invoice/42", "waiter", time.Minute)
		}()
		require.Eventually(t, func() bool {
			entries, err := client.Get(ctx, want+"invoice%2F42/", clientv3.WithPrefix())
			require.NoError(t, err)
			var got []string
			for _, kv := range entries.Kvs {
				got = append(got, fmt.Sprintf("%s %s", kv.Key, kv.Value))
			}
			return assert.ObjectsAreEqual([]string{
				want + "invoice%2F42/host%207 held 61", want + "invoice%2F42/waiter wait 60",
			}, got)
		}, patience, time.Millisecond)
		leave()
		<-left
		isOK(t)(l.Release(ctx, "invoice/42", "host 7"))
		hasLeases(t, client)
	}
}

// A Locker that is not in use has no goroutines, and a client that has been closed is an error.
func TestIdle(t *testing.T) {
	srv := testserver.Etcd(t)
	client := newClient(t, srv.Addr)
	l, ctx := New(client), t.Context()
	isOK(t)(l.Acquire(ctx, "k", "t", time.Minute))
	before := runtime.NumGoroutine()
	watching, cancel := context.WithCancel(ctx)
	_, err := l.Watch(watching, "k")
	require.NoError(t, err)
	_, err = l.Wait(watching, "other", "t", time.Minute)
	require.NoError(t, err)
	waited := make(chan error)
	go func() {
		_, err := l.Wait(watching, "k", "waiter", time.Minute)
		waited <- err
	}()
	// The client keeps the stream of a watch that is canceled before the cluster has answered it.
	require.Eventually(t, func() bool { return watches(t, srv.Addr) == 2 }, patience, 10*time.Millisecond)
	time.Sleep(50 * time.Millisecond) // the answer has arrived, most likely
	cancel()
	require.ErrorIs(t, <-waited, context.Canceled)
	isOK(t)(l.Release(ctx, "other", "t"))
	// Eventually has a goroutine of its own.
	for end := time.Now().Add(patience); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("a Locker that is not in use has goroutines:\n%s", stacks[:runtime.Stack(stacks, true)])
		}
	}
}

// watches returns how many watches a member serves.
func watches(t *testing.T, addr string) (n int) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + addr + "/metrics")
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	_, after, found := strings.Cut(string(text), "\netcd_debugging_mvcc_watcher_total ")
	require.True(t, found)
	_, err = fmt.Sscan(after, &n)
	require.NoError(t, err)
	return n
}

func TestNilClient(t *testing.T) {
	t.Parallel()
	for _, client := range []*clientv3.Client{nil, clientv3.NewCtxClient(t.Context())} {
		fails(t, New(client), func(err error) { assert.EqualError(t, err, "etcd: nil client") })
	}
}

func TestClosedClient(t *testing.T) {
	t.Parallel()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{testserver.Etcd(t).Addr}, Logger: zap.NewNop()})
	require.NoError(t, err)
	l := New(client)
	isOK(t)(l.Acquire(t.Context(), "k", "t", time.Minute))
	require.NoError(t, client.Close())
	fails(t, l, func(err error) { assert.EqualError(t, err, "etcd: closed client") })
}

// fails checks that each method returns an error.
func fails(t *testing.T, l *Locker, check func(error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := l.Acquire(ctx, "k", "t", time.Minute)
	require.Error(t, err)
	check(err)
	_, err = l.Extend(ctx, "k", "t", time.Minute)
	require.Error(t, err)
	check(err)
	_, err = l.Release(ctx, "k", "t")
	require.Error(t, err)
	check(err)
	_, _, err = l.Fence(ctx, "k", "t")
	require.Error(t, err)
	check(err)
	_, err = l.Wait(ctx, "k", "t", time.Minute)
	require.Error(t, err)
	check(err)
	_, err = l.Watch(ctx, "k")
	require.Error(t, err)
	check(err)
	_, err = l.Inspect(ctx, "k")
	require.Error(t, err)
	check(err)
	for _, err = range l.List(ctx, "") {
	}
	require.Error(t, err)
	check(err)
}
