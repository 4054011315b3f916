package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// cluster is a cluster of three members.
type cluster struct {
	t       *testing.T
	members []*testserver.Server
}

func newCluster(t *testing.T) cluster {
	t.Helper()
	testserver.Variant(t, "to the adapter, one server that restarts or hangs is what a cluster is")
	return cluster{t, testserver.EtcdCluster(t, 3)}
}

// leader returns the leader on which a majority of these members agree, and waits for one.
func (c cluster) leader(among ...*testserver.Server) (leader *testserver.Server) {
	c.t.Helper()
	require.Eventually(c.t, func() bool {
		votes := make(map[*testserver.Server]int)
		for _, m := range among {
			ctx, cancel := context.WithTimeout(c.t.Context(), time.Second)
			status, err := newClient(c.t, m.Addr).Status(ctx, m.Addr)
			cancel()
			if err != nil {
				continue
			}
			for _, other := range among {
				// Every member knows its own id.
				if id, ok := c.id(other); ok && id == status.Leader {
					votes[other]++
				}
			}
		}
		for m, n := range votes {
			if n == len(among) {
				leader = m
			}
		}
		return leader != nil
	}, patience, 10*time.Millisecond)
	return leader
}

func (c cluster) id(m *testserver.Server) (uint64, bool) {
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Second)
	defer cancel()
	status, err := newClient(c.t, m.Addr).Status(ctx, m.Addr)
	if err != nil {
		return 0, false
	}
	return status.Header.MemberId, true
}

// others returns the members except m.
func (c cluster) others(m *testserver.Server) (others []*testserver.Server) {
	for _, other := range c.members {
		if other != m {
			others = append(others, other)
		}
	}
	return others
}

func addrs(members []*testserver.Server) (addrs []string) {
	for _, m := range members {
		addrs = append(addrs, m.Addr)
	}
	return addrs
}

// The leader is killed again and again while goroutines take turns with a few locks. There is never
// more than one holder, no fencing number is less than an earlier one, and all go on in the end.
func TestKillLeaderUnderLoad(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	const workers, keys = 9, 3
	var holders [keys]atomic.Int64
	var fences [keys]atomic.Uint64
	var turns, failures atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var all sync.WaitGroup
	for i := range workers {
		l := New(newClient(t, addrs(c.members)...))
		all.Go(func() {
			for n := i; ctx.Err() == nil; n++ {
				k := n % keys
				short, cancel := context.WithTimeout(ctx, 5*time.Second)
				lease, err := locker.Lock(short, l, fmt.Sprint("k", k), 10*time.Second)
				cancel()
				if err != nil {
					failures.Add(1)
					continue
				}
				assert.EqualValues(t, 1, holders[k].Add(1), "holders at the same time")
				// It must be back before the lock ends, even if there is no leader meanwhile.
				short, cancel = context.WithTimeout(ctx, 5*time.Second)
				if fence, err := lease.Fence(short); err == nil {
					assert.Greater(t, fence, fences[k].Load())
					fences[k].Store(fence)
				}
				cancel()
				turns.Add(1)
				holders[k].Add(-1)
				if lease.Unlock(ctx) != nil {
					failures.Add(1)
				}
			}
		})
	}
	for range 3 {
		before := turns.Load()
		require.Eventually(t, func() bool { return turns.Load() > before+20 }, 2*patience, time.Millisecond, "all stand still")
		leader := c.leader(c.members...)
		leader.Stop()
		c.leader(c.others(leader)...)
		leader.Restart()
	}
	before := turns.Load()
	require.Eventually(t, func() bool { return turns.Load() > before+20 }, 2*patience, time.Millisecond, "all stand still")
	stop()
	all.Wait()
	t.Logf("%d turns, %d errors", turns.Load(), failures.Load())
}

// A new leader may let a lock live longer, but never shorter.
func TestLeaderChangeEndsNoLockEarly(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	ctx := t.Context()
	leader := c.leader(c.members...)
	l := New(newClient(t, addrs(c.others(leader))...))
	const ttl = 6 * time.Second
	held := make(map[string]time.Time) // since when, at least
	for _, key := range []string{"acquired", "extended", "moved", "waited"} {
		held[key] = time.Now()
		if key == "waited" {
			_, err := l.Wait(ctx, key, "t", ttl)
			require.NoError(t, err)
			continue
		}
		isOK(t)(l.Acquire(ctx, key, "t", ttl))
	}
	isOK(t)(l.Acquire(ctx, "moved", "t", time.Minute))
	for !time.Now().After(held["extended"].Add(ttl / 3)) {
		time.Sleep(10 * time.Millisecond)
	}
	for _, key := range []string{"extended", "moved"} {
		held[key] = time.Now()
		isOK(t)(l.Extend(ctx, key, "t", ttl))
	}
	leader.Stop()
	var all sync.WaitGroup
	for key, since := range held {
		all.Go(func() {
			for end := time.Now().Add(2 * patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				if ok, err := l.Acquire(ctx, key, "u", time.Minute); ok && err == nil {
					assert.GreaterOrEqual(t, time.Since(since), ttl, key)
					return
				}
			}
			t.Errorf("%s never became free", key)
		})
	}
	all.Wait()
}

// A member without a majority returns errors, never an answer.
func TestMinority(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	ctx := t.Context()
	isolated := c.leader(c.members...)
	l := New(newClient(t, isolated.Addr))
	isOK(t)(l.Acquire(ctx, "held", "t", time.Minute))
	isOK(t)(l.Acquire(ctx, "other", "t", time.Minute))
	woken, err := l.Watch(ctx, "held")
	require.NoError(t, err)
	for _, m := range c.others(isolated) {
		m.Pause()
	}
	type answer struct {
		op  string
		ok  bool
		err error
	}
	answers := make(chan answer)
	ask := func(op string, do func(ctx context.Context) (bool, error)) {
		go func() {
			short, cancel := context.WithTimeout(ctx, 8*time.Second)
			defer cancel()
			ok, err := do(short)
			answers <- answer{op, ok, err}
		}()
	}
	ask("Acquire", func(ctx context.Context) (bool, error) { return l.Acquire(ctx, "free", "t", time.Minute) })
	ask("Acquire, held", func(ctx context.Context) (bool, error) { return l.Acquire(ctx, "held", "u", time.Minute) })
	ask("Acquire, own", func(ctx context.Context) (bool, error) { return l.Acquire(ctx, "held", "t", time.Minute) })
	ask("Extend", func(ctx context.Context) (bool, error) { return l.Extend(ctx, "held", "t", time.Minute) })
	ask("Extend, another's", func(ctx context.Context) (bool, error) { return l.Extend(ctx, "held", "u", time.Minute) })
	ask("Release", func(ctx context.Context) (bool, error) { return l.Release(ctx, "other", "t") })
	ask("Fence", func(ctx context.Context) (bool, error) {
		_, ok, err := l.Fence(ctx, "held", "t")
		return ok, err
	})
	ask("Wait", func(ctx context.Context) (bool, error) {
		_, err := l.Wait(ctx, "free", "w", time.Minute)
		return err == nil, err
	})
	ask("Inspect", func(ctx context.Context) (bool, error) {
		info, err := l.Inspect(ctx, "held")
		return info.Token != "", err
	})
	for range 9 {
		a := <-answers
		assert.Error(t, a.err, a.op)
		assert.False(t, a.ok, a.op)
	}
	for _, m := range c.others(isolated) {
		m.Continue()
	}
	c.leader(c.members...)
	require.Eventually(t, func() bool {
		ok, err := l.Release(ctx, "held", "t")
		return err == nil && ok
	}, patience, 10*time.Millisecond)
	<-woken
}

// A leader that was stopped, and deposed meanwhile, renews leases until it notices. Such a renewal
// is in vain. It notices first in some of the rounds.
func TestDeposedLeaderRenews(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for range 3 {
		renewsInVain(t, c)
	}
}

// renewsInVain lets a deposed leader answer an Extend's renewal.
func renewsInVain(t *testing.T, c cluster) {
	const ttl, passed = 20 * time.Second, 3 * time.Second
	ctx := t.Context()
	deposed := c.leader(c.members...)
	rest := c.others(deposed)
	client := newClient(t, addrs(rest)...)
	l := New(client)
	isOK(t)(l.Acquire(ctx, "k", "t", ttl))
	old := newClient(t, deposed.Addr)
	_, err := old.Get(ctx, "k") // it is connected
	require.NoError(t, err)
	deposed.Pause()
	c.leader(rest...)
	require.Eventually(t, func() bool { // some of the ttl has passed on the new leader
		info, err := l.Inspect(ctx, "k")
		return err == nil && info.Token == "t" && info.TTL <= ttl-passed
	}, patience, 20*time.Millisecond)

	// The renewal goes to the deposed leader, which gets it as it wakes up, and all else to others.
	l.leases = &lateRenewal{LeaseClient: etcdserverpb.NewLeaseClient(old.ActiveConnection()), sent: deposed.Continue}
	start := time.Now()
	extended, err := l.Extend(ctx, "k", "t", ttl)
	l.leases = etcdserverpb.NewLeaseClient(client.ActiveConnection())
	if err == nil { // an error promises nothing
		require.True(t, extended)
		entry, err := client.Get(ctx, "locker/k/t")
		require.NoError(t, err)
		info, err := client.TimeToLive(ctx, clientv3.LeaseID(entry.Kvs[0].Lease))
		require.NoError(t, err)
		// It is in whole seconds, rounded down.
		assert.GreaterOrEqual(t, time.Duration(info.TTL+1)*time.Second, ttl-time.Since(start), "left on the leader")
	}
	c.leader(c.members...)
	isOK(t)(l.Release(ctx, "k", "t"))
}

// lateRenewal calls sent after the first renewal was sent.
type lateRenewal struct {
	etcdserverpb.LeaseClient
	sent func()
}

func (l *lateRenewal) LeaseKeepAlive(ctx context.Context, opts ...grpc.CallOption) (etcdserverpb.Lease_LeaseKeepAliveClient, error) {
	stream, err := l.LeaseClient.LeaseKeepAlive(ctx, opts...)
	if sent := l.sent; err == nil && sent != nil {
		l.sent = nil
		return lateStream{stream, sent}, nil
	}
	return stream, err
}

type lateStream struct {
	etcdserverpb.Lease_LeaseKeepAliveClient
	sent func()
}

func (s lateStream) Send(m *etcdserverpb.LeaseKeepAliveRequest) error {
	err := s.Lease_LeaseKeepAliveClient.Send(m)
	time.Sleep(100 * time.Millisecond) // the client has written it
	s.sent()
	return err
}

// Three members have no space left while clients wait. The line fails as one, with the reason, and
// blocks nothing once there is space again.
func TestNoSpaceUnderWaiters(t *testing.T) {
	t.Parallel()
	testserver.Variant(t, "to the adapter, one server without space is what a cluster is")
	members := testserver.EtcdCluster(t, 3, "--quota-backend-bytes", "400000")
	client := newClient(t, addrs(members)...)
	a, l, ctx := New(newClient(t, addrs(members)...)), New(client), t.Context()
	isOK(t)(a.Acquire(ctx, "k", "a", time.Minute))
	failed := make(chan error, 20)
	for i := range cap(failed) {
		go func() {
			_, err := l.Wait(ctx, "k", fmt.Sprint(i), time.Minute)
			failed <- err
		}()
	}
	hasWaiters(t, a, "k", 1)
	time.Sleep(2 * shortenAfter) // its lease is short by now
	require.Eventually(t, func() bool {
		_, err := client.Put(ctx, "big", string(make([]byte, 50_000)))
		return errors.Is(err, rpctypes.ErrNoSpace)
	}, patience, time.Millisecond)
	isOK(t)(a.Extend(ctx, "k", "a", time.Minute))
	require.Empty(t, failed, "waiting needs no space")
	isOK(t)(a.Release(ctx, "k", "a"))
	for range cap(failed) {
		require.ErrorIs(t, <-failed, rpctypes.ErrNoSpace)
	}
	now, err := client.Get(ctx, "big")
	require.NoError(t, err)
	_, err = client.Compact(ctx, now.Header.Revision, clientv3.WithCompactPhysical())
	require.NoError(t, err)
	for _, m := range members {
		_, err = client.Defragment(ctx, m.Addr)
		require.NoError(t, err)
	}
	alarms, err := client.AlarmList(ctx)
	require.NoError(t, err)
	for _, alarm := range alarms.Alarms {
		_, err = client.AlarmDisarm(ctx, (*clientv3.AlarmMember)(alarm))
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool {
		ok, err := a.Acquire(ctx, "k", "next", time.Minute)
		return err == nil && ok
	}, patience, 10*time.Millisecond)
}

// A follower is cut off from its waiters' point of view, by a pause, while the others release the
// lock and compact the history that their watches have not seen.
func TestCompactionBehindAFollower(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	leader := c.leader(c.members...)
	others := c.others(leader)
	a, b := New(newClient(t, leader.Addr)), New(newClient(t, others[0].Addr))
	admin, ctx := newClient(t, leader.Addr), t.Context()
	isOK(t)(a.Acquire(ctx, "k", "a", time.Minute))
	woken, err := b.Watch(ctx, "k")
	require.NoError(t, err)
	waited := make(chan error, 1)
	go func() {
		_, err := b.Wait(ctx, "k", "b", time.Minute)
		waited <- err
	}()
	hasWaiters(t, a, "k", 1)
	others[0].Pause()
	isOK(t)(a.Release(ctx, "k", "a"))
	compact(t, admin)
	others[0].Continue()
	require.NoError(t, <-waited)
	select {
	case <-woken:
	case <-time.After(patience):
		t.Fatal("the watcher was not woken")
	}
	isOK(t)(b.Release(ctx, "k", "b"))
}
