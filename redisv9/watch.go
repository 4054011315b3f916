package redisv9

import (
	"context"
	"errors"
	"sync"

	"github.com/golockers/locker/internal/pubsub"
	"github.com/redis/go-redis/v9"
)

// Watch returns a channel that receives a value when the lock of key is released, and when a
// release may have been missed: once when the connection breaks and once when it is back, in both
// cases a thousand watchers a second. An expiry is not signaled.
//
// All watchers of a Locker share one connection, which is opened for the first and kept for half a
// minute after the last. On a Ring there is one for each shard that is up when Watch is called, and
// Watch succeeds if at least one of them works; otherwise the error wraps the client's. If a dial
// or the server hangs, Watch returns within a second or two of the client's I/O timeout. If the
// user of the server may not subscribe to the key, the error is [errors.ErrUnsupported]; other keys
// are not affected.
func (l *Locker) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	return l.locks.Watch(ctx, key)
}

// hubs returns a hub for each server on which a channel's messages may be published.
func (l *Locker) hubs(ctx context.Context) ([]*pubsub.Hub, error) {
	if l.polls {
		return nil, errSharesPool
	}
	servers, err := l.servers(ctx)
	if err != nil {
		return nil, err
	}
	return l.subs.on(servers), nil
}

// servers returns the clients to subscribe with. What is published in a Cluster reaches every node.
func (l *Locker) servers(ctx context.Context) ([]subscriber, error) {
	ring, ok := l.client.(*redis.Ring)
	if !ok {
		return []subscriber{l.server}, nil
	}
	var mu sync.Mutex
	var shards []subscriber
	err := ring.ForEachShard(ctx, func(_ context.Context, shard *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		shards = append(shards, shard)
		return nil
	})
	if err == nil && len(shards) == 0 {
		err = errors.New("no shard of the ring is up")
	}
	return shards, err
}
