package rueidis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/golockers/locker/internal/pubsub"
	"github.com/redis/rueidis"
)

// conn is a connection of rueidis that only the hub uses. rueidis's own subscriptions share a
// connection with other requests, stay on the server when their callers leave, and are silently
// repeated when a connection breaks. So messages would be lost, and waiters that have gone would
// count as alive.
//
// rueidis answers requests one by one. So a goroutine makes them, all that are waiting at once, and
// puts the answers and the messages in a queue.
type conn struct {
	client rueidis.DedicatedClient
	lost   <-chan error // when it breaks

	ctx    context.Context // until Close
	cancel context.CancelFunc
	closed sync.Once
	wake   chan struct{} // there are requests

	mu       sync.Mutex
	buffered []request // until Flush
	requests []request
	events   []pubsub.Event
	arrived  chan struct{} // there are events
	err      error         // of a request: the connection is not usable
}

type request struct {
	channel string // "": a ping
	command rueidis.Completed
}

// dial connects to the server that has the locks, and on a Cluster to any node.
func (l *Locker) dial(ctx context.Context, _ string) (pubsub.Conn, error) {
	client, err := l.dedicate(ctx)
	if err != nil {
		return nil, err
	}
	c := &conn{client: client, wake: make(chan struct{}, 1), arrived: make(chan struct{}, 1)}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.lost = client.SetPubSubHooks(rueidis.PubSubHooks{OnMessage: c.message})
	if !l.alone { // it connects with its first request
		err = client.Do(ctx, client.B().Ping().Build()).NonRedisError()
	}
	select {
	case err = <-c.lost:
	default:
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = c.Close()
		return nil, l.closed(err)
	}
	go c.ask()
	return c, nil
}

// dedicate takes a connection of the client's blocking pool, which may be exhausted.
func (l *Locker) dedicate(ctx context.Context) (rueidis.DedicatedClient, error) {
	got := make(chan rueidis.DedicatedClient, 1)
	go func() {
		client, _ := l.client.Dedicate()
		got <- client
	}()
	select {
	case client := <-got:
		return client, nil
	case <-ctx.Done():
		go func() { (<-got).Close() }()
		return nil, fmt.Errorf("no connection of the client's BlockingPoolSize is free: %w", ctx.Err())
	}
}

// closed marks the error of a closed client. With Sentinel or on a Cluster it may be that of one
// connection that rueidis has given up for another.
func (l *Locker) closed(err error) error {
	if errors.Is(err, rueidis.ErrClosing) && l.client.Mode() == rueidis.ClientModeStandalone {
		return closedError{err}
	}
	return err
}

// closedError is rueidis's error for a closed client, which a hub understands.
type closedError struct{ error }

func (e closedError) Is(target error) bool { return target == pubsub.ErrClosed }
func (e closedError) Unwrap() error        { return e.error }

func (c *conn) Subscribe(channel string) error {
	return c.add(request{channel, c.client.B().Subscribe().Channel(channel).Build()})
}

func (c *conn) Unsubscribe(channel string) error {
	return c.add(request{channel, c.client.B().Unsubscribe().Channel(channel).Build()})
}

func (c *conn) Ping() error { return c.add(request{"", c.client.B().Ping().Build()}) }

func (c *conn) add(r request) error {
	c.buffered = append(c.buffered, r)
	return c.ctx.Err()
}

func (c *conn) Flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests = append(c.requests, c.buffered...)
	c.buffered = c.buffered[:0]
	signal(c.wake)
	return c.ctx.Err()
}

// ask makes the requests until the connection is closed or not usable.
func (c *conn) ask() {
	for {
		select {
		case <-c.wake:
		case <-c.ctx.Done():
			return
		}
		for requests := c.next(); len(requests) > 0; requests = c.next() {
			commands := make(rueidis.Commands, len(requests))
			for i, r := range requests {
				commands[i] = r.command
			}
			for i, result := range c.client.DoMulti(c.ctx, commands...) {
				if !c.answer(requests[i], result.Error()) {
					return
				}
			}
		}
	}
}

// next returns requests that may be made together: with RESP2 a ping uses another connection than
// subscriptions do.
func (c *conn) next() []request {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.requests
	n := slices.IndexFunc(all, func(r request) bool { return (r.channel == "") != (all[0].channel == "") })
	if n < 0 {
		n = len(all)
	}
	c.requests = all[n:]
	return all[:n:n]
}

// answer queues the answer to a request. It reports whether the connection can still be used.
func (c *conn) answer(r request, err error) bool {
	var reply *rueidis.RedisError
	e := pubsub.Event{Kind: pubsub.Answer, Channel: r.channel}
	switch {
	case err == nil:
	case errors.As(err, &reply) && !isPassing(reply):
		e = pubsub.Event{Kind: pubsub.Refusal, Err: err}
	default:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.err = err
		signal(c.arrived)
		return false
	}
	c.push(e)
	return true
}

// isPassing reports whether a server refuses everything for a while, so that another connection has
// better chances.
func isPassing(reply *rueidis.RedisError) bool {
	word, _, _ := strings.Cut(reply.Error(), " ")
	return slices.Contains([]string{"LOADING", "MASTERDOWN", "CLUSTERDOWN", "READONLY"}, word)
}

// message is called by rueidis for each message.
func (c *conn) message(m rueidis.PubSubMessage) {
	c.push(pubsub.Event{Kind: pubsub.Message, Channel: m.Channel, Payload: m.Message})
}

func (c *conn) push(e pubsub.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, e)
	signal(c.arrived)
}

func (c *conn) Receive() (pubsub.Event, error) {
	for {
		if e, ok, err := c.pop(); ok || err != nil {
			return e, err
		}
		select {
		case <-c.arrived:
		case err := <-c.lost:
			if err == nil {
				err = net.ErrClosed
			}
			return pubsub.Event{}, err
		case <-c.ctx.Done():
			return pubsub.Event{}, net.ErrClosed
		}
	}
}

func (c *conn) pop() (e pubsub.Event, ok bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.events) == 0 {
		return e, false, c.err
	}
	e = c.events[0]
	clear(c.events[:1])
	if c.events = c.events[1:]; len(c.events) == 0 {
		c.events = nil // also frees what a peak has left
	}
	return e, true, nil
}

// Close does not wait for rueidis, which asks a server that may hang.
func (c *conn) Close() error {
	c.closed.Do(func() {
		c.cancel()
		go c.client.Close()
	})
	return nil
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
