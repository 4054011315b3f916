package memcache

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	gomemcache "github.com/bradfitz/gomemcache/memcache"
	"github.com/golockers/locker/internal/testserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// mustAcquire takes a lock that is free.
func mustAcquire(t *testing.T, l *Locker, key, token string) {
	t.Helper()
	ok, err := l.Acquire(context.Background(), key, token, time.Minute)
	require.NoError(t, err)
	require.True(t, ok)
}

// isGone fails the test unless token no longer holds the lock and another can take it.
func isGone(t *testing.T, l *Locker, key, token string) {
	t.Helper()
	ctx := context.Background()
	ok, err := l.Extend(ctx, key, token, time.Minute)
	require.NoError(t, err)
	require.False(t, ok)
	ok, err = l.Release(ctx, key, token)
	require.NoError(t, err)
	require.False(t, ok)
	mustAcquire(t, l, key, token+"'s successor")
}

// The item that "get locker:name" shows.
func TestItem(t *testing.T) {
	t.Parallel()
	client := newClient(t, testserver.Memcached(t).Addr)
	mustAcquire(t, New(client), "invoice/42", "the token")
	item, err := client.Get("locker:invoice/42")
	require.NoError(t, err)
	assert.Equal(t, "the token", string(item.Value))
	assert.Equal(t, uint32(1282368363), item.Flags)

	mustAcquire(t, New(client, WithPrefix("")), "empty prefix", "t")
	_, err = client.Get("locker:empty prefix")
	require.ErrorIs(t, err, gomemcache.ErrMalformedKey)
	_, err = client.Get(itemKey("locker:", "empty prefix"))
	require.NoError(t, err)

	mustAcquire(t, New(client, WithPrefix("other:")), "invoice/42", "t")
	_, err = client.Get("other:invoice/42")
	require.NoError(t, err)
}

// An item of another program at the lock's key is an error and is left alone.
func TestForeignValues(t *testing.T) {
	t.Parallel()
	client := newClient(t, testserver.Memcached(t).Addr)
	l := New(client)
	for _, foreign := range []*gomemcache.Item{
		{Value: []byte("1")}, // a plain lock by add
		{Value: []byte("t")}, // our token by chance
		{Value: nil},
		{Value: []byte("t"), Flags: 1},
		{Value: nil, Flags: flags},
		{Value: make([]byte, 1025), Flags: flags},
		{Value: make([]byte, 100_000), Flags: 2},
	} {
		foreign.Key, foreign.Expiration = "locker:k", 3600
		require.NoError(t, client.Set(foreign))
		before, err := client.Get("locker:k")
		require.NoError(t, err)
		for name, op := range operations(l, "k", "t") {
			ok, err := op(context.Background())
			assert.EqualError(t, err, fmt.Sprintf(`the item "locker:k" is not a lock of this package: `+
				`%d bytes with flags %d`, len(foreign.Value), foreign.Flags), name)
			assert.False(t, ok)
		}
		after, err := client.Get("locker:k")
		require.NoError(t, err)
		assert.Equal(t, before, after)
	}
}

func TestRestartWhileHeld(t *testing.T) {
	t.Parallel()
	srv := testserver.Memcached(t)
	l := New(newClient(t, srv.Addr))
	mustAcquire(t, l, "k", "t")
	srv.Restart()
	// The client detects that its connection is gone, which is one error.
	require.Eventually(t, func() bool {
		ok, err := l.Extend(context.Background(), "k", "t", time.Minute)
		assert.False(t, ok)
		return err == nil
	}, 30*time.Second, 20*time.Millisecond)
	isGone(t, l, "k", "t")
}

// A restart within an operation can make it meet a new item with an old number, as the numbers
// start again. That is documented, not prevented. These are the two steps of a Release.
func TestRestartWithinRelease(t *testing.T) {
	t.Parallel()
	srv := testserver.Memcached(t)
	a, b := newClient(t, srv.Addr), newClient(t, srv.Addr)
	mustAcquire(t, New(a), "k", "a")
	item, err := a.Get("locker:k")
	require.NoError(t, err)
	require.NoError(t, a.Close()) // else the next step fails on a connection that is no more

	srv.Restart()
	mustAcquire(t, New(b), "k", "b")

	item.Expiration = -1
	require.NoError(t, a.CompareAndSwap(item), "this server does not start its numbers again: tell so")
	isGone(t, New(b), "k", "b")
}

// big is a token of which two megabytes hold only a few thousand. The server divides its memory by
// item size, so the items that evict it have to be as big.
var big = strings.Repeat("t", 1000)

func fill(client *gomemcache.Client, items int) error {
	for i := range items {
		err := client.Set(&gomemcache.Item{Key: fmt.Sprintf("fill:%09d", i), Value: []byte(big)})
		if err != nil {
			return err
		}
	}
	return nil
}

// A lock that is evicted is gone for its holder, and free.
func TestEviction(t *testing.T) {
	t.Parallel()
	client := newClient(t, testserver.Memcached(t, "-m", "2").Addr)
	l := New(client)
	mustAcquire(t, l, "k", big)
	// Reading it in between would keep the item: the server evicts the least recently used ones.
	require.NoError(t, fill(client, 20_000))
	isGone(t, l, "k", big)
}

// A full server that does not evict refuses requests that need memory, with the cause. A lock
// that is held then cannot be released, and lasts until its ttl is over.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	client := newClient(t, testserver.Memcached(t, "-m", "2", "-M").Addr)
	l := New(client)
	mustAcquire(t, l, "held", big)
	require.ErrorContains(t, fill(client, 20_000), "out of memory")

	for _, key := range []string{"held", "free"} {
		for name, op := range operations(l, key, big) {
			ok, err := op(context.Background())
			assert.False(t, ok, "%s %s", name, key)
			if key == "free" && name != "acquire" {
				assert.NoError(t, err, "%s: finding that it is free takes no memory", name)
				continue
			}
			assert.ErrorContains(t, err, "SERVER_ERROR out of memory", "%s %s", name, key)
		}
	}
	_, err := client.Get("locker:free")
	assert.ErrorIs(t, err, gomemcache.ErrCacheMiss, "a lock without a holder is left")
	item, err := client.Get("locker:held")
	require.NoError(t, err)
	assert.Equal(t, big, string(item.Value))
}

func TestNoCAS(t *testing.T) {
	t.Parallel()
	client := newClient(t, testserver.Memcached(t, "-C").Addr)
	l := New(client)
	mustAcquire(t, l, "k", "t")
	for name, op := range operations(l, "k", "t") {
		ok, err := op(context.Background())
		assert.ErrorIs(t, err, errNoCAS, name)
		assert.False(t, ok, name)
	}
	ok, err := l.Extend(context.Background(), "k", "another", time.Minute)
	require.NoError(t, err)
	require.False(t, ok)
}

func TestServerDown(t *testing.T) {
	t.Parallel()
	srv := testserver.Memcached(t)
	client := newClient(t, srv.Addr)
	srv.Stop()
	for name, op := range operations(New(client), "k", "t") {
		ok, err := op(context.Background())
		assert.ErrorContains(t, err, "connection refused", name)
		assert.False(t, ok, name)
	}
	for name, op := range operations(New(gomemcache.New()), "k", "t") {
		ok, err := op(context.Background())
		assert.ErrorIs(t, err, gomemcache.ErrNoServers, name)
		assert.False(t, ok, name)
	}
}

// Names are spread over the servers, each has its lock on one of them, and a server that is down
// affects only its own.
func TestSeveralServers(t *testing.T) {
	t.Parallel()
	servers := []*testserver.Server{testserver.Memcached(t), testserver.Memcached(t), testserver.Memcached(t)}
	addrs := []string{servers[0].Addr, servers[1].Addr, servers[2].Addr}
	a, b := New(newClient(t, addrs...)), New(newClient(t, addrs...))
	ctx := context.Background()
	each := []*gomemcache.Client{newClient(t, addrs[0]), newClient(t, addrs[1]), newClient(t, addrs[2])}
	var on [3][]string // the names that each server has
	for i := range 60 {
		name := fmt.Sprint("name", []string{"", " "}[i%2], i) // plain and hashed
		mustAcquire(t, a, name, "a")
		for s, client := range each {
			if _, err := client.Get(itemKey("locker:", name)); err == nil {
				on[s] = append(on[s], name)
			}
		}
	}
	for s := range servers {
		require.NotEmpty(t, on[s])
	}
	require.Equal(t, 60, len(on[0])+len(on[1])+len(on[2]))

	servers[1].Stop()
	for s, names := range on {
		for _, name := range names {
			ok, err := b.Acquire(ctx, name, "b", time.Minute)
			assert.False(t, ok)
			assert.Equal(t, s == 1, err != nil, "%v", err)
			ok, err = a.Release(ctx, name, "a")
			assert.Equal(t, s != 1, ok)
			assert.Equal(t, s == 1, err != nil, "%v", err)
		}
	}
}

// Clients with different lists look for a lock on different servers. That is documented, not prevented.
func TestDifferentServerLists(t *testing.T) {
	t.Parallel()
	x, y := testserver.Memcached(t).Addr, testserver.Memcached(t).Addr
	a, b := New(newClient(t, x, y)), New(newClient(t, y, x))
	mustAcquire(t, a, "k", "a")
	mustAcquire(t, b, "k", "b")
}
