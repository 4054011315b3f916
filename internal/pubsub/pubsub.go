// Package pubsub subscribes to channels for the adapters whose servers push messages: one
// connection for all listeners of a [Hub], which is opened for the first of them, opened again when
// it breaks, and closed half a minute after the last has left. The package does no I/O of its own:
// an adapter brings the connection, a [Conn], and a function that dials one.
//
// A hub promises:
//
//   - Join never blocks and never fails. The outcome of its first attempt is known within the
//     timeout and about a second, even when a dial hangs. Whatever the outcome, the hub goes on
//     trying until Close.
//   - A listener that may have missed a message is notified: once when a live subscription
//     breaks, and once when it is live again, or becomes live after its first attempt had failed.
//   - A channel that the server refuses affects no other channel.
//   - Requests: at most 512 are unanswered at a time, so that the replies to them fit into what a
//     server buffers for a subscriber. Dials: one at a time, with a growing pause between them,
//     up to 2 s, which a Join cuts to 100 ms.
//   - Wake-ups: at most 1,000 listeners a second are notified that they missed something, since
//     each of them will then ask the server.
//   - Memory: in proportion to the present subscriptions, even after a peak. An unused hub has no
//     timer, no entry and no goroutine, except for a dial that ignores its context, until that
//     returns.
package pubsub

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golockers/locker/internal/undo"
)

// Conn is a client library's connection that can subscribe. Receive is called on one goroutine and
// the other methods on another, except that Close may be called at any time and ends every other
// call.
type Conn interface {
	// Subscribe, Unsubscribe and Ping make requests, which the server answers once each, in order.
	// They may be buffered until Flush.
	Subscribe(channel string) error
	Unsubscribe(channel string) error
	Ping() error
	Flush() error

	// Receive returns what the server sends next. An error ends the connection.
	Receive() (Event, error)

	Close() error
}

// Event is a message or an answer.
type Event struct {
	Kind    Kind
	Channel string // of a message, or of an answer to Subscribe or Unsubscribe; "" for one to Ping
	Payload string // of a message
	Err     error  // of a refusal
}

// Kind is the kind of an [Event].
type Kind int

const (
	Message Kind = iota + 1
	Answer       // to the first request for the channel, or the first ping, that is not answered yet
	Refusal      // of the first request that is not answered yet
)

// Dial connects to the server. The channel is the first that will be subscribed to, for clients
// that choose a server by it. Dial should return when ctx ends; an error that wraps [ErrClosed]
// tells the hub to stop trying.
type Dial func(ctx context.Context, channel string) (Conn, error)

var (
	// ErrClosed is wrapped by the error of a Dial that will never succeed again.
	ErrClosed = undo.ErrClosed

	errLeft       = errors.New("the subscription was closed")
	errConnecting = errors.New("not subscribed yet")
)

// Listener receives the messages of a channel. Its methods must not block. They may be called
// concurrently, and once more while Close runs.
type Listener interface {
	Message(payload string)

	// Missed is called when messages may have been missed.
	Missed()
}

const (
	defaultLinger = 30 * time.Second // a connection is kept this long after its last listener,
	channelLinger = time.Second      // and a channel about this long
	quiet         = 10 * time.Second // a connection that was silent for this long is pinged
	window        = 512              // unanswered requests
)

// Hub shares one connection among its listeners. Make one with [New].
type Hub struct {
	dial    Dial
	timeout time.Duration // how long the server may take to answer

	mu       sync.Mutex
	linger   time.Duration
	channels table[string, *channel]        // wanted, or still subscribed to
	idle     table[*channel, struct{}]      // those of channels that are kept without a listener
	pending  table[*Subscription, struct{}] // those whose first attempt is under way
	refused  table[*channel, struct{}]      // those of channels that were refused and have listeners
	users    int                            // number of subscriptions
	unused   time.Time                      // when the last one ended
	session  *session                       // nil while the hub is not used
	err      error                          // why there is no connection
	missed   Pacer[*Subscription]
}

// New returns a hub. A server that does not answer a request within timeout is considered dead.
func New(dial Dial, timeout time.Duration) *Hub {
	h := &Hub{dial: dial, timeout: timeout, linger: defaultLinger}
	h.missed.Hand = tellMissed
	return h
}

// channel is a channel of the server. Its fields are guarded by the hub's lock.
type channel struct {
	name   string
	subs   []*Subscription
	wanted bool
	since  time.Time // since when it has no subscription

	// On the present connection:
	queued     bool  // it is in the link's queue
	asked      bool  // the last request was to subscribe
	unanswered int   // requests
	live       bool  // certainly subscribed to
	err        error // why it was refused
}

// Subscription is the subscription of one listener to one channel. It lasts until Close.
type Subscription struct {
	hub      *Hub
	channel  *channel
	listener Listener
	joined   time.Time
	done     chan struct{}

	// Guarded by the hub's lock:
	index   int   // in the channel's list, or -1 once closed
	settled bool  // done is closed
	tried   bool  // a connection broke under the first attempt, which has another chance
	missed  bool  // it is in the pacer's queue
	err     error // of the first attempt
}

// Join subscribes a listener to a channel.
func (h *Hub) Join(name string, l Listener) *Subscription {
	h.mu.Lock()
	defer h.mu.Unlock()
	c, ok := h.channels.get(name)
	if !ok {
		c = &channel{name: name}
		h.channels.set(name, c)
	}
	sub := &Subscription{hub: h, channel: c, listener: l, joined: time.Now(), done: make(chan struct{}), index: len(c.subs)}
	c.subs = append(c.subs, sub)
	c.wanted = true
	h.idle.delete(c)
	h.users++
	if h.session == nil {
		h.startLocked()
	}
	if c.live {
		sub.settleLocked(nil)
		return sub
	}
	h.pending.set(sub, struct{}{})
	c.err = nil // what was refused may be allowed by now
	h.refused.delete(c)
	h.enqueueLocked(c)
	h.session.wake() // from its pause, perhaps
	return sub
}

// Hub returns the hub that was joined.
func (s *Subscription) Hub() *Hub { return s.hub }

// Done returns a channel that is closed when the first attempt to subscribe is over, and by Close.
func (s *Subscription) Done() <-chan struct{} { return s.done }

// Err returns nil while the subscription is live, and otherwise the reason why it is not.
func (s *Subscription) Err() error {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	switch {
	case s.index < 0:
		return errLeft
	case s.channel.live:
		return nil
	case s.channel.err != nil:
		return s.channel.err
	case s.err != nil:
		return s.err
	case s.hub.err != nil:
		return s.hub.err
	}
	return errConnecting
}

// attempt returns the outcome of the first attempt, once that is over, or nil if a later one has
// succeeded.
func (s *Subscription) attempt() error {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	if s.channel.live && s.index >= 0 {
		return nil
	}
	return s.err
}

// Close ends the subscription. The channel and the connection are kept for a while, for the next
// one.
func (s *Subscription) Close() { s.close(false) }

// Drop is Close for a channel that must no longer look listened to: unless it has other listeners,
// it is unsubscribed from at once.
func (s *Subscription) Drop() { s.close(true) }

func (s *Subscription) close(atOnce bool) {
	h, c := s.hub, s.channel
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.index < 0 {
		return
	}
	last := len(c.subs) - 1
	c.subs[last].index, c.subs[s.index] = s.index, c.subs[last]
	c.subs[last] = nil
	if c.subs = c.subs[:last]; cap(c.subs) > 64 && last < cap(c.subs)/4 {
		c.subs = append([]*Subscription(nil), c.subs...)
	}
	s.index = -1
	s.settleLocked(errLeft)
	if last == 0 {
		h.refused.delete(c)
		if h.idleLocked(c); atOnce {
			h.sweepLocked(c)
		}
	}
	if h.users--; h.users == 0 {
		h.unused = time.Now()
	}
}

// idleLocked keeps a channel without listeners for a while, to save requests, if there is a
// connection.
func (h *Hub) idleLocked(c *channel) {
	if h.session == nil || h.session.link == nil {
		h.forgetLocked(c)
		return
	}
	c.since = time.Now()
	h.idle.set(c, struct{}{})
}

func (s *Subscription) settleLocked(err error) {
	if !s.settled {
		s.settled, s.err = true, err
		close(s.done)
		s.hub.pending.delete(s)
	}
}

// missedLocked queues the subscription for a call of its listener's Missed.
func (s *Subscription) missedLocked() {
	if !s.missed {
		s.missed = true
		s.hub.missed.Add(s)
	}
}

func tellMissed(s *Subscription) bool {
	s.hub.mu.Lock()
	s.missed = false
	gone := s.index < 0
	s.hub.mu.Unlock()
	if !gone {
		s.listener.Missed()
	}
	return !gone
}

// SetLinger sets how long the connection is kept after the last listener, half a minute by default.
func (h *Hub) SetLinger(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.linger = d
}

// impatient means that no connection is kept without listeners.
var impatient atomic.Bool

// StopLingering makes every hub close its connection a moment after its last listener has left, for
// tests that check for leaks at the end.
func StopLingering() { impatient.Store(true) }

// InUse reports whether the hub has a connection, or tries to have one.
func (h *Hub) InUse() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.session != nil
}

// Channels returns the number of channels that are subscribed to or wanted.
func (h *Hub) Channels() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.channels.m)
}

// Set is the subscriptions of one listener to one channel on several servers, on any of which
// messages may be published.
type Set []*Subscription

// Live returns when the first attempt is over on all servers, or ctx ends. The error is nil if at
// least one is live. When a server can be reached again later, the listener's Missed is called.
func (s Set) Live(ctx context.Context) error {
	for _, sub := range s {
		select {
		case <-sub.Done():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	err := errors.New("no server is up")
	for _, sub := range s {
		if err = sub.attempt(); err == nil {
			return nil
		}
	}
	return err
}

// Close ends all subscriptions.
func (s Set) Close() {
	for _, sub := range s {
		sub.Close()
	}
}

// Watcher is a listener that only receives wake-ups: a channel with room for one.
type Watcher chan struct{}

func (w Watcher) Message(string) { w.Missed() }

func (w Watcher) Missed() {
	select {
	case w <- struct{}{}:
	default: // it has a wake-up waiting
	}
}

// Watch joins a channel on each of the hubs, waits as [Set.Live] does, and ends the subscriptions
// with ctx.
func Watch(ctx context.Context, channel string, hubs ...*Hub) (<-chan struct{}, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	w, set := make(Watcher, 1), make(Set, len(hubs))
	for i, h := range hubs {
		set[i] = h.Join(channel, w)
	}
	if err := set.Live(ctx); err != nil {
		set.Close()
		return nil, err
	}
	context.AfterFunc(ctx, set.Close)
	return w, nil
}

// noAnswer returns the error for a server that hangs.
func (h *Hub) noAnswer(what string) error {
	return fmt.Errorf("no answer within %v to %s", h.timeout, what)
}
