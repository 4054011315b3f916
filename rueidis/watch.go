package rueidis

import (
	"context"
	"errors"
	"fmt"

	"github.com/golockers/locker/internal/pubsub"
)

// Watch returns a channel that receives a value when the lock of key is released, and when a
// release may have been missed: once when the connection breaks and once when it is back, in both
// cases a thousand watchers a second. An expiry is not signaled.
//
// All watchers of a Locker share one connection, two with RESP2, which is opened for the first and
// kept for half a minute after the last. If a dial or the server hangs, Watch returns within about
// six seconds. If the user of the server may not subscribe to the key, the error is
// [errors.ErrUnsupported]; other keys are not affected.
func (l *Locker) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	hubs, err := l.hubs(ctx)
	var woken <-chan struct{}
	if err == nil {
		woken, err = pubsub.Watch(ctx, l.prefix+key, hubs...)
	}
	if err != nil {
		return nil, unsupported(err)
	}
	return woken, nil
}

// hubs returns the hub of all channels: what is published in a Cluster reaches every node.
func (l *Locker) hubs(context.Context) ([]*pubsub.Hub, error) {
	if l.waiters.Err != nil {
		return nil, l.waiters.Err
	}
	return []*pubsub.Hub{l.hub}, nil
}

// unsupported marks the error for a user who may not subscribe, since there are other ways to
// wait.
func unsupported(err error) error {
	if isReply(err, "NOPERM") {
		return fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	return err
}
