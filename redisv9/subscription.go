package redisv9

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/golockers/locker/internal/pubsub"
	"github.com/redis/go-redis/v9"
)

// subscriptions are what a Locker listens with: one hub, or one for each shard of a Ring.
type subscriptions struct {
	timeout time.Duration // how long a server may take to answer

	mu     sync.Mutex
	linger time.Duration // for tests; 0 is the hub's own
	hubs   map[subscriber]*pubsub.Hub
}

// subscriber is a client that can subscribe.
type subscriber interface {
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
}

// anySubscriber makes a map key of a client that may not be one.
type anySubscriber struct{ subscriber }

// on returns the hubs of the servers.
func (s *subscriptions) on(servers []subscriber) []*pubsub.Hub {
	s.mu.Lock()
	defer s.mu.Unlock()
	hubs := make([]*pubsub.Hub, len(servers))
	for i, server := range servers {
		h, ok := s.hubs[server]
		if !ok {
			h = s.add(server)
		}
		hubs[i] = h
	}
	if len(s.hubs) > len(servers) { // shards come and go
		maps.DeleteFunc(s.hubs, func(server subscriber, h *pubsub.Hub) bool {
			return !slices.Contains(servers, server) && !h.InUse()
		})
	}
	return hubs
}

func (s *subscriptions) add(server subscriber) *pubsub.Hub {
	if s.hubs == nil {
		s.hubs = make(map[subscriber]*pubsub.Hub)
	}
	h := pubsub.New(func(ctx context.Context, channel string) (pubsub.Conn, error) {
		return dial(ctx, server, channel, s.timeout)
	}, s.timeout)
	if s.linger > 0 {
		h.SetLinger(s.linger)
	}
	s.hubs[server] = h
	return h
}

// conn is go-redis's PubSub as a hub needs it. A PubSub also connects again by itself, with all
// channels in one request and sometimes without an error. The hub closes it after its first
// error, and treats answers to requests that it has not made as an error.
type conn struct {
	pubsub  *redis.PubSub
	timeout time.Duration
	first   string // subscribed to by dial, and not yet by the hub
	ctx     context.Context
	cancel  context.CancelFunc
}

// dial subscribes, as a PubSub connects with its first request. A Cluster's PubSub chooses the
// node by the channel's slot.
func dial(ctx context.Context, server subscriber, channel string, timeout time.Duration) (pubsub.Conn, error) {
	p := server.Subscribe(ctx)
	if err := p.Subscribe(ctx, channel); err != nil {
		_ = p.Close()
		if errors.Is(err, redis.ErrClosed) {
			err = closedError{err}
		}
		return nil, err
	}
	return &conn{pubsub: p, timeout: timeout, first: channel}, nil
}

// closedError is go-redis's error for a closed client, which a hub understands.
type closedError struct{ error }

func (e closedError) Is(target error) bool { return target == pubsub.ErrClosed }
func (e closedError) Unwrap() error        { return e.error }

// writing returns a context that bounds what is written up to the next Flush: the client may have
// no timeout.
func (c *conn) writing() context.Context {
	if c.ctx == nil {
		c.ctx, c.cancel = context.WithTimeout(context.Background(), c.timeout+time.Second)
	}
	return c.ctx
}

func (c *conn) Subscribe(channel string) error {
	if c.first != "" && c.first == channel {
		c.first = ""
		return nil
	}
	return c.pubsub.Subscribe(c.writing(), channel)
}

func (c *conn) Unsubscribe(channel string) error { return c.pubsub.Unsubscribe(c.writing(), channel) }
func (c *conn) Ping() error                      { return c.pubsub.Ping(c.writing()) }

func (c *conn) Flush() error {
	if c.ctx != nil {
		c.cancel()
		c.ctx = nil
	}
	return nil
}

func (c *conn) Receive() (pubsub.Event, error) {
	m, err := c.pubsub.Receive(context.Background())
	if isRefusal(err) {
		return pubsub.Event{Kind: pubsub.Refusal, Err: err}, nil
	}
	switch m := m.(type) {
	case *redis.Message:
		return pubsub.Event{Kind: pubsub.Message, Channel: m.Channel, Payload: m.Payload}, nil
	case *redis.Subscription:
		return pubsub.Event{Kind: pubsub.Answer, Channel: m.Channel}, nil
	case *redis.Pong:
		return pubsub.Event{Kind: pubsub.Answer}, nil
	}
	if err == nil {
		err = errors.New("not a message")
	}
	return pubsub.Event{}, err
}

// isRefusal reports whether an error is an answer on a connection that can still be used. After
// other errors from a server, such as READONLY, go-redis connects again.
func isRefusal(err error) bool {
	for _, prefix := range []string{"NOPERM", "NOAUTH", "BUSY", "ERR"} {
		if err != nil && redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}

func (c *conn) Close() error { return c.pubsub.Close() }
