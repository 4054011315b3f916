package redigo

import (
	"context"
	"errors"
	"fmt"

	"github.com/golockers/locker/internal/pubsub"
	"github.com/gomodule/redigo/redis"
)

// Watch implements [locker.Watcher]: a Release by any Locker of this package wakes the watchers.
// All watchers of a Locker share one connection beside the pool's, which is dialed for the first
// watcher and kept for half a minute after the last. They are woken when it breaks and again when
// it is back, a thousand watchers a second.
//
// Watch returns within about 4 seconds even when a dial hangs. The error wraps
// [errors.ErrUnsupported] if the server does not know SUBSCRIBE or does not allow it for this key
// (other keys are not affected), and otherwise the connection's error.
func (l *Locker) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	if l.hub == nil { // made without New
		return nil, errNilPool
	}
	return pubsub.Watch(ctx, l.prefix+key, l.hub)
}

// dial makes a connection beside the pool's, so that waiting for a lock takes none from the pool's
// users.
func (l *Locker) dial(ctx context.Context) (redis.Conn, error) {
	switch {
	case l.pool == nil:
		return nil, errNilPool
	case l.pool.DialContext != nil:
		return l.pool.DialContext(ctx)
	case l.pool.Dial != nil:
		return l.pool.Dial()
	}
	return nil, errors.New("redigo: the pool has no Dial function")
}

func (l *Locker) subscriber(ctx context.Context, _ string) (pubsub.Conn, error) {
	c, err := usable(l.dial(ctx))
	if err != nil {
		return nil, err
	}
	return &subscriber{conn: redis.PubSubConn{Conn: c}, home: l.book + "watch"}, nil
}

// subscriber is a connection as the hub needs it.
type subscriber struct {
	conn redis.PubSubConn
	home string
}

func (s *subscriber) Subscribe(channel string) error { return s.conn.Conn.Send("SUBSCRIBE", channel) }
func (s *subscriber) Unsubscribe(channel string) error {
	return s.conn.Conn.Send("UNSUBSCRIBE", channel)
}

// Ping subscribes to a channel on which nothing is published: old servers allow a subscriber no
// PING.
func (s *subscriber) Ping() error { return s.Subscribe(s.home) }

func (s *subscriber) Flush() error { return s.conn.Conn.Flush() }
func (s *subscriber) Close() error { return s.conn.Conn.Close() }

func (s *subscriber) Receive() (pubsub.Event, error) {
	switch r := s.conn.ReceiveWithTimeout(0).(type) { // a read timeout is for replies
	case redis.Message:
		return pubsub.Event{Kind: pubsub.Message, Channel: r.Channel, Payload: string(r.Data)}, nil
	case redis.Subscription:
		if r.Channel == s.home {
			r.Channel = ""
		}
		return pubsub.Event{Kind: pubsub.Answer, Channel: r.Channel}, nil
	case redis.Error:
		err := error(&refusal{"SUBSCRIBE", r})
		if unknown(r) {
			err = fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
		}
		return pubsub.Event{Kind: pubsub.Refusal, Err: err}, nil
	case error:
		return pubsub.Event{}, r
	default:
		return pubsub.Event{}, fmt.Errorf("unexpected message %T", r)
	}
}
