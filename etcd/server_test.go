package etcd

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// Keys of other programs among the entries of a lock are errors and are left alone.
func TestForeignEntries(t *testing.T) {
	t.Parallel()
	client := newClient(t, testserver.Etcd(t).Addr)
	l, ctx := New(client), t.Context()
	lease, err := client.Grant(ctx, 3600)
	require.NoError(t, err)
	with := clientv3.WithLease(lease.ID)
	for _, c := range []struct {
		key, value string
		opts       []clientv3.OpOption
	}{
		{"locker/k/t", "", nil},
		{"locker/k/t", "t", []clientv3.OpOption{with}},
		{"locker/k/t", "held", []clientv3.OpOption{with}},
		{"locker/k/t", "held 0", []clientv3.OpOption{with}},
		{"locker/k/t", "wait 10s", []clientv3.OpOption{with}},
		{"locker/k/t", "holds 10", []clientv3.OpOption{with}},
		{"locker/k/t", "wait 10", nil},
	} {
		_, err := client.Put(ctx, c.key, c.value, c.opts...)
		require.NoError(t, err)
		isForeign := func(err error) {
			t.Helper()
			assert.ErrorIs(t, err, errForeign, "%q", c.value)
			assert.ErrorContains(t, err, c.key)
		}
		for _, token := range []string{"t", "other"} {
			_, err = l.Acquire(ctx, "k", token, time.Minute)
			isForeign(err)
		}
		_, err = l.Extend(ctx, "k", "t", time.Minute)
		isForeign(err)
		_, err = l.Release(ctx, "k", "t")
		isForeign(err)
		_, _, err = l.Fence(ctx, "k", "t")
		isForeign(err)
		_, err = l.Wait(ctx, "k", "t", time.Minute)
		isForeign(err)
		_, err = l.Inspect(ctx, "k")
		isForeign(err)
		var listed int
		for info, err := range l.List(ctx, "") {
			isForeign(err)
			assert.Equal(t, "k", info.Key)
			listed++
		}
		assert.Equal(t, 1, listed)
		now, err := client.Get(ctx, c.key)
		require.NoError(t, err)
		assert.Equal(t, c.value, string(now.Kvs[0].Value))
		assert.EqualValues(t, 1, now.Kvs[0].Version, "it was written again")
		_, err = client.Delete(ctx, c.key)
		require.NoError(t, err)
	}
	// Other keys below the prefix are no locks.
	for _, key := range []string{"locker/", "locker/k", "locker/a b/t", "locker/%41/t", "lockers/x/t"} {
		_, err := client.Put(ctx, key, "")
		require.NoError(t, err)
	}
	for info, err := range l.List(ctx, "") {
		t.Errorf("%v, %v", info, err)
	}
	isOK(t)(l.Acquire(ctx, "k", "t", time.Minute))
}

// A cluster without space grants no locks. Those that are held can be kept and released.
func TestNoSpace(t *testing.T) {
	t.Parallel()
	client := newClient(t, testserver.Etcd(t, "--quota-backend-bytes", "200000").Addr)
	l, ctx := New(client), t.Context()
	isOK(t)(l.Acquire(ctx, "held", "t", time.Minute))
	isOK(t)(l.Acquire(ctx, "other", "t", time.Minute))
	require.Eventually(t, func() bool {
		_, err := client.Put(ctx, "big", string(make([]byte, 50_000)))
		return assert.ObjectsAreEqual(rpctypes.ErrNoSpace, err)
	}, patience, time.Millisecond)

	_, err := l.Acquire(ctx, "k", "t", time.Minute)
	assert.ErrorIs(t, err, rpctypes.ErrNoSpace)
	_, err = l.Wait(ctx, "k", "t", time.Minute)
	assert.ErrorIs(t, err, rpctypes.ErrNoSpace)
	_, err = l.Wait(ctx, "held", "waiter", time.Minute)
	assert.ErrorIs(t, err, rpctypes.ErrNoSpace)
	_, _, err = l.Fence(ctx, "held", "t")
	assert.ErrorIs(t, err, rpctypes.ErrNoSpace)
	isRefused(t)(l.Acquire(ctx, "held", "u", time.Minute))
	isOK(t)(l.Extend(ctx, "held", "t", time.Minute))
	_, err = l.Extend(ctx, "held", "t", time.Hour)
	assert.ErrorIs(t, err, rpctypes.ErrNoSpace)
	isOK(t)(l.Extend(ctx, "held", "t", time.Minute))
	isOK(t)(l.Release(ctx, "held", "t"))
	isOK(t)(l.Release(ctx, "other", "t"))
	hasLeases(t, client)
}

// A user needs only the keys of the prefix.
func TestPermissions(t *testing.T) {
	t.Parallel()
	srv := testserver.Etcd(t)
	admin := newClient(t, srv.Addr)
	ctx := t.Context()
	must := func(_ any, err error) {
		t.Helper()
		require.NoError(t, err)
	}
	must(admin.RoleAdd(ctx, "app"))
	must(admin.RoleGrantPermission(ctx, "app", "app/", clientv3.GetPrefixRangeEnd("app/"), clientv3.PermissionType(clientv3.PermReadWrite)))
	must(admin.UserAdd(ctx, "root", "secret"))
	must(admin.UserGrantRole(ctx, "root", "root"))
	must(admin.UserAdd(ctx, "app", "secret"))
	must(admin.UserGrantRole(ctx, "app", "app"))
	must(admin.AuthEnable(ctx))
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{srv.Addr}, Username: "app", Password: "secret", Logger: zap.NewNop(),
	})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, client.Close()) })

	l := New(client, WithPrefix("app/"))
	isOK(t)(l.Acquire(ctx, "k", "t", time.Minute))
	isOK(t)(l.Extend(ctx, "k", "t", time.Minute))
	isOK(t)(l.Extend(ctx, "k", "t", time.Hour))
	_, ok, err := l.Fence(ctx, "k", "t")
	isOK(t)(ok, err)
	info, err := l.Inspect(ctx, "k")
	require.NoError(t, err)
	assert.Equal(t, "t", info.Token)
	woken, err := l.Watch(ctx, "k")
	require.NoError(t, err)
	isOK(t)(l.Release(ctx, "k", "t"))
	<-woken
	_, err = l.Wait(ctx, "k", "t", time.Minute)
	require.NoError(t, err)
	isOK(t)(l.Release(ctx, "k", "t"))
	for _, err := range l.List(ctx, "") {
		require.NoError(t, err)
	}

	fails(t, New(client), func(err error) { assert.ErrorContains(t, err, rpctypes.ErrPermissionDenied.Error()) })
	fails(t, New(admin), func(err error) { assert.ErrorContains(t, err, rpctypes.ErrUserEmpty.Error()) })
}

// A server that hangs is an error, within the caller's time.
func TestHungServer(t *testing.T) {
	t.Parallel()
	srv := testserver.Etcd(t)
	client := newClient(t, srv.Addr)
	l := New(client)
	isOK(t)(l.Acquire(t.Context(), "k", "t", time.Minute))
	srv.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := l.Acquire(ctx, "other", "t", time.Minute)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Less(t, time.Since(mustDeadline(t, ctx)), 5*time.Second)
	canceled, cancelNow := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancelNow)
	_, err = l.Extend(canceled, "k", "t", time.Minute)
	require.ErrorIs(t, err, context.Canceled)

	// A caller without a deadline gets an error as well.
	_, err = l.Release(t.Context(), "k", "t")
	require.Error(t, err)
	assert.NotErrorIs(t, err, context.DeadlineExceeded, "the caller's context has not ended")
	srv.Continue()
	require.Eventually(t, func() bool {
		ok, err := l.Acquire(t.Context(), "other", "u", time.Minute)
		return err == nil && ok
	}, patience, 10*time.Millisecond)
}

func mustDeadline(t *testing.T, ctx context.Context) time.Time {
	t.Helper()
	deadline, ok := ctx.Deadline()
	require.True(t, ok)
	return deadline
}

// A restart keeps the locks.
func TestRestart(t *testing.T) {
	t.Parallel()
	srv := testserver.Etcd(t)
	l, ctx := New(newClient(t, srv.Addr)), t.Context()
	isOK(t)(l.Acquire(ctx, "k", "t", time.Minute))
	first, ok, err := l.Fence(ctx, "k", "t")
	isOK(t)(ok, err)
	srv.Stop()
	fails(t, l, func(error) {})
	srv.Restart()
	require.Eventually(t, func() bool {
		ok, err := l.Acquire(ctx, "k", "u", time.Minute)
		return err == nil && !ok
	}, patience, 10*time.Millisecond)
	second, ok, err := l.Fence(ctx, "k", "t")
	isOK(t)(ok, err)
	assert.Greater(t, second, first)
	isOK(t)(l.Release(ctx, "k", "t"))
}

// The client's interfaces may be wrapped.
func TestNamespace(t *testing.T) {
	t.Parallel()
	srv := testserver.Etcd(t)
	admin, client := newClient(t, srv.Addr), newClient(t, srv.Addr)
	client.KV, client.Watcher = namespace.NewKV(client.KV, "team/"), namespace.NewWatcher(client.Watcher, "team/")
	l, ctx := New(client), t.Context()
	isOK(t)(l.Acquire(ctx, "k", "t", time.Minute))
	isOK(t)(New(admin).Acquire(ctx, "k", "other", time.Minute))
	entry, err := admin.Get(ctx, "team/locker/k/t")
	require.NoError(t, err)
	assert.EqualValues(t, 1, entry.Count)
	waited := make(chan error, 1)
	go func() {
		_, err := l.Wait(ctx, "k", "waiter", time.Minute)
		waited <- err
	}()
	time.Sleep(50 * time.Millisecond)
	isOK(t)(l.Release(ctx, "k", "t"))
	require.NoError(t, <-waited)
}

// cutter makes connections that a test can cut and refuse.
type cutter struct {
	mu      sync.Mutex
	refuses bool
	conns   []net.Conn
}

func (c *cutter) client(t *testing.T, addr string) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{addr}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{withBackoff(), grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.refuses {
				return nil, net.ErrClosed
			}
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
			if err == nil {
				c.conns = append(c.conns, conn)
			}
			return conn, err
		})},
	})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, client.Close()) })
	return client
}

// cut ends all connections, and refuses new ones until heal is called.
func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuses = true
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
}

func (c *cutter) heal() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuses = false
}

// compact makes etcd forget all but the present.
func compact(t *testing.T, client *clientv3.Client) {
	t.Helper()
	now, err := client.Put(t.Context(), "other", "")
	require.NoError(t, err)
	_, err = client.Compact(t.Context(), now.Header.Revision, clientv3.WithCompactPhysical())
	require.NoError(t, err)
}

// A release that happened while a watch was cut off, and was compacted since, wakes the watcher.
func TestCompactionUnderWatch(t *testing.T) {
	t.Parallel()
	srv := testserver.Etcd(t)
	var link cutter
	admin := newClient(t, srv.Addr)
	l, other, ctx := New(link.client(t, srv.Addr)), New(admin), t.Context()
	for range 2 {
		isOK(t)(other.Acquire(ctx, "k", "t", time.Minute))
		woken, err := l.Watch(ctx, "k")
		require.NoError(t, err)
		link.cut()
		isOK(t)(other.Release(ctx, "k", "t"))
		compact(t, admin)
		link.heal()
		select {
		case <-woken:
		case <-time.After(patience):
			t.Fatal("not woken")
		}
		isOK(t)(other.Acquire(ctx, "k", "t", time.Minute))
		// The wake-ups of the new watch and of one more release may come as one.
		require.Eventually(t, func() bool {
			isOK(t)(other.Release(ctx, "k", "t"))
			isOK(t)(other.Acquire(ctx, "k", "t", time.Minute))
			return len(woken) > 0
		}, patience, 10*time.Millisecond)
		isOK(t)(other.Release(ctx, "k", "t"))
	}
}

// The same for a waiter, which keeps its place.
func TestCompactionUnderWait(t *testing.T) {
	t.Parallel()
	srv := testserver.Etcd(t)
	var link cutter
	admin := newClient(t, srv.Addr)
	l, other, ctx := New(link.client(t, srv.Addr)), New(admin), t.Context()
	isOK(t)(other.Acquire(ctx, "k", "t", time.Minute))
	waited := make(chan error, 1)
	go func() {
		_, err := l.Wait(ctx, "k", "waiter", time.Minute)
		waited <- err
	}()
	hasWaiters(t, other, "k", 1)
	link.cut()
	isOK(t)(other.Release(ctx, "k", "t"))
	compact(t, admin)
	isRefused(t)(other.Acquire(ctx, "k", "t", time.Minute))
	link.heal()
	select {
	case err := <-waited:
		require.NoError(t, err)
	case <-time.After(patience):
		t.Fatal("not served")
	}
	isOK(t)(l.Release(ctx, "k", "waiter"))
}

// lateWatcher calls before, once, and then watches.
type lateWatcher struct {
	clientv3.Watcher
	once   sync.Once
	before func()
}

func (w *lateWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	w.once.Do(w.before)
	return w.Watcher.Watch(ctx, key, opts...)
}

// A release between joining the queue and watching it is not missed.
func TestReleaseBeforeWatch(t *testing.T) {
	t.Parallel()
	srv := testserver.Etcd(t)
	client, other := newClient(t, srv.Addr), New(newClient(t, srv.Addr))
	ctx := t.Context()
	isOK(t)(other.Acquire(ctx, "k", "holder", time.Minute))
	var released time.Time
	client.Watcher = &lateWatcher{Watcher: client.Watcher, before: func() {
		ok, err := other.Release(ctx, "k", "holder")
		assert.NoError(t, err)
		assert.True(t, ok)
		released = time.Now()
	}}
	_, err := New(client).Wait(ctx, "k", "waiter", time.Minute)
	require.NoError(t, err)
	assert.Less(t, time.Since(released), placeSeconds*time.Second/3, "served by the look that it takes from time to time")
}

// hasWaiters waits until a lock has so many waiters.
func hasWaiters(t *testing.T, l *Locker, key string, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		info, err := l.Inspect(t.Context(), key)
		require.NoError(t, err)
		return info.Waiters == n
	}, patience, time.Millisecond)
	time.Sleep(20 * time.Millisecond) // its watch may be live by then
}

// A place whose lease has expired is taken again, at the end.
func TestPlaceLost(t *testing.T) {
	t.Parallel()
	client := newClient(t, testserver.Etcd(t).Addr)
	l, ctx := New(client), t.Context()
	isOK(t)(l.Acquire(ctx, "k", "t", time.Minute))
	waited := make(chan error, 1)
	go func() {
		_, err := l.Wait(ctx, "k", "waiter", 6*time.Second)
		waited <- err
	}()
	hasWaiters(t, l, "k", 1)
	place, err := client.Get(ctx, "locker/k/waiter")
	require.NoError(t, err)
	_, err = client.Revoke(ctx, clientv3.LeaseID(place.Kvs[0].Lease))
	require.NoError(t, err)
	hasWaiters(t, l, "k", 1) // again, at the next look
	isOK(t)(l.Release(ctx, "k", "t"))
	require.NoError(t, <-waited)
	isOK(t)(l.Release(ctx, "k", "waiter"))
	hasLeases(t, client)
}

// A cluster may answer that a lease has less time than asked for, which must not be taken for a
// success.
func TestShortLease(t *testing.T) {
	t.Parallel()
	l := New(newClient(t, testserver.Etcd(t).Addr))
	l.leases = shortLeases{l.leases}
	_, err := l.Acquire(t.Context(), "k", "t", time.Minute)
	assert.EqualError(t, err, "the lease has a ttl of 59 s, not of 60 s")
	l = New(l.client)
	isOK(t)(l.Acquire(t.Context(), "k", "t", time.Minute))
}

type shortLeases struct{ etcdserverpb.LeaseClient }

func (s shortLeases) LeaseGrant(ctx context.Context, r *etcdserverpb.LeaseGrantRequest, opts ...grpc.CallOption) (*etcdserverpb.LeaseGrantResponse, error) {
	resp, err := s.LeaseClient.LeaseGrant(ctx, r, opts...)
	if err == nil {
		resp.TTL--
	}
	return resp, err
}
