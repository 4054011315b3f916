package redisv9

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Watch returns a channel that gets a value when the lock of key was released, and when a release may have
// been missed because the connection broke: once when it breaks and once when it is back. An expiry is not
// signalled.
//
// All watchers of a Locker share one connection, which is opened with the first and kept half a minute after
// the last. On a Ring there is one for each shard that is up when Watch is called. A user of the server who
// may not subscribe gets [errors.ErrUnsupported].
func (l *Locker) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	w := make(watcher, 1)
	name := l.prefix + key
	if err := l.listen(ctx, name, w); err != nil {
		return nil, fmt.Errorf("redisv9: watch %q: %w", key, err)
	}
	context.AfterFunc(ctx, func() { l.subs.unlisten(name, w) })
	return w, nil
}

// watcher is woken by every message.
type watcher chan struct{}

func (w watcher) address() string { return "" }
func (w watcher) message(string)  { w.missed() }

func (w watcher) missed() {
	select {
	case w <- struct{}{}:
	default: // it has a wake-up waiting
	}
}

// listen subscribes on every server on which the channel's messages may be published.
func (l *Locker) listen(ctx context.Context, name string, who listener) error {
	if l.err != nil {
		return l.err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if l.limits.unbounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, defaultTimeout, errNoReply)
		defer cancel()
	}
	servers, err := l.servers(ctx)
	if err != nil {
		return err
	}
	if err := l.subs.listen(ctx, servers, name, who); err != nil {
		if errors.Is(context.Cause(ctx), errNoReply) {
			return errNoReply
		}
		return unsupported(err)
	}
	return nil
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
