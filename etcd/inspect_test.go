package etcd

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/golockers/locker"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func inspect(t *testing.T, l *Locker, key string) locker.Info {
	t.Helper()
	info, err := l.Inspect(t.Context(), key)
	require.NoError(t, err)
	return info
}

func TestInspect(t *testing.T) {
	t.Parallel()
	l, ctx := New(newClient(t, testserver.Etcd(t).Addr)), t.Context()
	assert.Equal(t, locker.Info{Key: "k"}, inspect(t, l, "k"))
	for _, token := range []string{"t", "a/b", "%2F", "\x00\xff", "a b"} {
		isOK(t)(l.Acquire(ctx, "k", token, time.Minute))
		info := inspect(t, l, "k")
		assert.Equal(t, locker.Info{Key: "k", Token: token, TTL: info.TTL}, info)
		assert.LessOrEqual(t, info.TTL, time.Minute)
		assert.Greater(t, info.TTL, 30*time.Second)
		isOK(t)(l.Release(ctx, "k", token))
	}
	isOK(t)(l.Acquire(ctx, "k", "t", time.Duration(longest)*time.Second))
	assert.Greater(t, inspect(t, l, "k").TTL, 280*365*24*time.Hour)
	assert.Equal(t, locker.Info{Key: "k/t"}, inspect(t, l, "k/t"))
}

// Break hands the lock to the next in the queue.
func TestBreak(t *testing.T) {
	t.Parallel()
	srv := testserver.Etcd(t)
	l, other := New(newClient(t, srv.Addr)), New(newClient(t, srv.Addr))
	lease, err := locker.Lock(t.Context(), l, "k", time.Minute, locker.WithToken("holder"))
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() {
		_, err := other.Wait(t.Context(), "k", "next", time.Minute)
		served <- err
	}()
	hasWaiters(t, l, "k", 1)
	broken, err := locker.Break(t.Context(), l, "k")
	require.NoError(t, err)
	assert.Equal(t, "holder", broken.Token)
	assert.Equal(t, 1, broken.Waiters)
	require.NoError(t, <-served)
	assert.Equal(t, "next", inspect(t, l, "k").Token)
	assert.ErrorIs(t, lease.Unlock(t.Context()), locker.ErrNotHeld)
	_, err = locker.Break(t.Context(), l, "free")
	assert.ErrorIs(t, err, locker.ErrNotHeld)
}

// A lock whose next holder has not noticed yet is free.
func TestInspectBetween(t *testing.T) {
	t.Parallel()
	client := newClient(t, testserver.Etcd(t).Addr)
	l, ctx := New(client), t.Context()
	lease, err := client.Grant(ctx, 60)
	require.NoError(t, err)
	_, err = client.Put(ctx, "locker/k/t", "wait 60", clientv3.WithLease(lease.ID))
	require.NoError(t, err)
	assert.Equal(t, locker.Info{Key: "k", Waiters: 1}, inspect(t, l, "k"))
	for info, err := range l.List(ctx, "") {
		t.Errorf("%v, %v", info, err)
	}
	isRefused(t)(l.Acquire(ctx, "k", "u", time.Minute))
}

func list(t *testing.T, l *Locker, prefix string) (keys []string) {
	t.Helper()
	for info, err := range l.List(t.Context(), prefix) {
		require.NoError(t, err)
		assert.Positive(t, info.TTL)
		keys = append(keys, fmt.Sprintf("%s %s %d", info.Key, info.Token, info.Waiters))
	}
	slices.Sort(keys)
	return keys
}

func TestList(t *testing.T) {
	t.Parallel()
	client := newClient(t, testserver.Etcd(t).Addr)
	l, ctx := New(client), t.Context()
	assert.Empty(t, list(t, l, ""))
	for _, key := range []string{"a", "a/", "a/b", "ab", "b", "%", "\xff\xff"} {
		isOK(t)(l.Acquire(ctx, key, "t", time.Minute))
	}
	isOK(t)(New(client, WithPrefix("lockers/")).Acquire(ctx, "a", "other", time.Minute))
	assert.Equal(t, []string{"% t 0", "a t 0", "a/ t 0", "a/b t 0", "ab t 0", "b t 0", "\xff\xff t 0"}, list(t, l, ""))
	assert.Equal(t, []string{"a t 0", "a/ t 0", "a/b t 0", "ab t 0"}, list(t, l, "a"))
	assert.Equal(t, []string{"a/ t 0", "a/b t 0"}, list(t, l, "a/"))
	assert.Equal(t, []string{"\xff\xff t 0"}, list(t, l, "\xff"))
	assert.Empty(t, list(t, l, "c"))
	for range l.List(ctx, "") {
		break
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	for _, err := range l.List(canceled, "") {
		assert.ErrorIs(t, err, context.Canceled)
	}
}

// A queue that does not fit into one page is one lock, whose first entry may be on any page.
func TestListPages(t *testing.T) {
	t.Parallel()
	client := newClient(t, testserver.Etcd(t).Addr)
	l, ctx := New(client), t.Context()
	isOK(t)(l.Acquire(ctx, "a", "t", time.Minute))
	isOK(t)(l.Acquire(ctx, "b", "zz", time.Minute))
	isOK(t)(l.Acquire(ctx, "c", "t", time.Minute))
	lease, err := client.Grant(ctx, 60)
	require.NoError(t, err)
	const waiters = 2*page + 10
	for i := 0; i < waiters; {
		var puts []clientv3.Op
		for ; len(puts) < 100 && i < waiters; i++ {
			puts = append(puts, clientv3.OpPut(fmt.Sprintf("locker/b/%05d", i), "wait 60", clientv3.WithLease(lease.ID)))
		}
		_, err := client.Txn(ctx).Then(puts...).Commit()
		require.NoError(t, err)
	}
	assert.Equal(t, []string{"a t 0", fmt.Sprintf("b zz %d", waiters), "c t 0"}, list(t, l, ""))
	assert.Equal(t, waiters, inspect(t, l, "b").Waiters)
}
