package rueidis

import (
	"context"

	"github.com/golockers/locker/internal/pubsub"
)

// Watch returns a channel that receives a value when the lock of key is released, and when a
// release may have been missed: once when the connection breaks and once when it is back, in both
// cases a thousand watchers a second. An expiry is not signaled.
//
// All watchers of a Locker share one connection, two with RESP2, which is opened for the first and
// kept for a second or two after the last. It is one of the client's BlockingPoolSize. If a dial or the server hangs, Watch returns within about
// six seconds. If the user of the server may not subscribe to the key, the error is
// [errors.ErrUnsupported]; other keys are not affected.
func (l *Locker) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	return l.locks.Watch(ctx, key)
}

// hubs returns the hub of all channels: what is published in a Cluster reaches every node.
func (l *Locker) hubs(context.Context) ([]*pubsub.Hub, error) { return []*pubsub.Hub{l.hub}, nil }
