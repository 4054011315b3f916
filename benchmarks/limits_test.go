package main

import (
	"bytes"
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golockers/locker/internal/testserver"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// relay forwards connections to a server, and does something to requests that name a key.
type relay struct {
	addr, target string
	key          []byte
	seen         atomic.Int32
	request      func(nth int32) // before it is forwarded
	loses        func(nth int32) bool
}

func newRelay(t *testing.T, target, key string) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	r := &relay{
		addr: listener.Addr().String(), target: target, key: []byte(key),
		request: func(int32) {}, loses: func(int32) bool { return false },
	}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go r.serve(client)
		}
	}()
	return r
}

func (r *relay) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", r.target)
	if err != nil {
		return
	}
	defer server.Close()
	var loses atomic.Bool
	go func() {
		defer client.Close()
		reply := make([]byte, 1<<16)
		for {
			n, err := server.Read(reply)
			if err != nil || loses.Load() {
				return
			}
			if _, err := client.Write(reply[:n]); err != nil {
				return
			}
		}
	}()
	request := make([]byte, 1<<16)
	for {
		n, err := client.Read(request)
		if err != nil {
			return
		}
		if bytes.Contains(request[:n], r.key) {
			nth := r.seen.Add(1)
			r.request(nth)
			loses.Store(r.loses(nth))
		}
		if _, err := server.Write(request[:n]); err != nil {
			return
		}
	}
}

// warmUp makes the server know the scripts.
func warmUp(t *testing.T, allowed allow) {
	t.Helper()
	_, err := allowed(t.Context(), newKey("other"))
	require.NoError(t, err)
}

// eternalKeys returns how many keys of a server have no expiry.
func eternalKeys(t *testing.T, addr string) (n int) {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	keys, err := client.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	for _, key := range keys {
		if client.PTTL(t.Context(), key).Val() == -1 {
			n++
		}
	}
	return n
}

// A call pauses between its requests until its window is over: no key may be left without an expiry,
// and in the end calls are allowed again. What peers do is logged.
func TestLimitersPaused(t *testing.T) {
	t.Parallel()
	const per = 200 * time.Millisecond // twice that must be well within the second that a call may take
	for _, l := range limitings {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			server := testserver.Redis(t).Addr
			for step := int32(1); step <= 4; step++ {
				key := newKey("paused")
				r := newRelay(t, server, key)
				allowed, closeClient, err := l.open(r.addr, 1, per)
				require.NoError(t, err)
				defer closeClient()
				warmUp(t, allowed)
				r.request = func(nth int32) {
					if nth == step {
						time.Sleep(2 * per)
					}
				}
				_, err = allowed(t.Context(), key)
				require.NoError(t, err)
				_, err = allowed(t.Context(), key)
				require.NoError(t, err)
			}
			eternal := eternalKeys(t, server)
			if l.ours {
				assert.Zero(t, eternal)
			}
			t.Logf("%s: %d keys without an expiry", l.name, eternal)
		})
	}
}

// A process ends, or gives up, after the first request of a call: the next ones of its connection
// are never sent. The same must hold.
func TestLimitersGivenUp(t *testing.T) {
	t.Parallel()
	for _, l := range limitings {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			server := testserver.Redis(t).Addr
			key := newKey("given-up")
			r := newRelay(t, server, key)
			allowed, closeClient, err := l.open(r.addr, 1, time.Second)
			require.NoError(t, err)
			defer closeClient()
			warmUp(t, allowed)
			ctx, cancel := context.WithCancel(t.Context())
			r.loses = func(int32) bool { cancel(); return true }
			_, err = allowed(ctx, key)
			require.Error(t, err)
			eternal := eternalKeys(t, server)
			if l.ours {
				assert.Zero(t, eternal)
			}
			t.Logf("%s: %d keys without an expiry", l.name, eternal)
		})
	}
}

// All replies to one call are lost: it counts at most twice. What peers do is logged.
func TestLimitersRepliesLost(t *testing.T) {
	t.Parallel()
	const limit = 20
	for _, l := range limitings {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			server := testserver.Redis(t).Addr
			key := newKey("lost")
			r := newRelay(t, server, key)
			allowed, closeClient, err := l.open(r.addr, limit, 24*time.Hour)
			require.NoError(t, err)
			defer closeClient()
			warmUp(t, allowed)
			var healed atomic.Bool
			r.loses = func(int32) bool { return !healed.Load() }
			_, err = allowed(t.Context(), key)
			require.Error(t, err)
			healed.Store(true)
			left := 0
			for range limit {
				ok, err := allowed(t.Context(), key)
				require.NoError(t, err)
				if ok {
					left++
				}
			}
			if l.ours {
				assert.GreaterOrEqual(t, left, limit-2)
			}
			t.Logf("%s: counted %d times", l.name, limit-left)
		})
	}
}
