package pubsub

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const (
	timeout = 3 * time.Second
	trip    = time.Millisecond // from a flush to its answers
)

var (
	errDown   = errors.New("the server is down")
	errBroken = errors.New("the connection was cut")
	errNoPerm = errors.New("NOPERM")
	errClosed = errors.New("use of a closed connection")
)

// server is the server of a test's connections.
type server struct {
	mu        sync.Mutex
	down      error           // dials fail with it
	dialHangs chan struct{}   // dials wait for it, or for their context
	hung      bool            // it does not answer
	slow      time.Duration   // before each answer
	eager     bool            // dials subscribe to their channel
	loses     map[string]bool // the client, answers about these channels
	refuses   map[string]bool // channels
	conns     []*fakeConn     // all that were dialed
	dials     int
	dialing   int // at present
}

// fakeConn is a client library's connection.
type fakeConn struct {
	s        *server
	first    string
	requests []fakeRequest
	closed   chan struct{}
	once     sync.Once
	events   chan Event
	answered chan struct{} // of the last flush

	// Guarded by the server's lock:
	cut        error
	on         map[string]bool
	log        []string
	unanswered int // requests that have been flushed, now
	most       int // and at most
}

type fakeRequest struct{ op, channel string }

func (s *server) dial(ctx context.Context, channel string) (Conn, error) {
	s.mu.Lock()
	s.dials++
	s.dialing++
	hangs := s.dialHangs
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.dialing--
		s.mu.Unlock()
	}()
	if hangs != nil {
		select {
		case <-hangs:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down != nil {
		return nil, s.down
	}
	c := &fakeConn{s: s, first: channel, closed: make(chan struct{}), events: make(chan Event, 1<<14), on: make(map[string]bool)}
	s.conns = append(s.conns, c)
	if s.eager {
		c.unanswered++
		c.answer(fakeRequest{"+", channel})
	} else {
		c.first = ""
	}
	return c, nil
}

func (c *fakeConn) add(op, channel string) error {
	select {
	case <-c.closed:
		return errClosed
	default:
	}
	c.requests = append(c.requests, fakeRequest{op, channel})
	return nil
}

func (c *fakeConn) Subscribe(channel string) error {
	if c.first != "" {
		if c.first != channel {
			return fmt.Errorf("the first is %q, not %q", channel, c.first)
		}
		c.first = ""
		return nil
	}
	return c.add("+", channel)
}

func (c *fakeConn) Unsubscribe(channel string) error { return c.add("-", channel) }
func (c *fakeConn) Ping() error                      { return c.add("?", "") }

func (c *fakeConn) Flush() error {
	requests := c.requests
	c.requests = nil
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.unanswered += len(requests)
	c.most = max(c.most, c.unanswered)
	if c.s.hung {
		return nil
	}
	slow := c.s.slow
	before, done := c.answered, make(chan struct{})
	c.answered = done
	go func() {
		defer close(done)
		time.Sleep(trip)
		if before != nil {
			<-before
		}
		for _, r := range requests {
			time.Sleep(slow)
			c.s.mu.Lock()
			c.answer(r)
			c.s.mu.Unlock()
		}
	}()
	return nil
}

func (c *fakeConn) answer(r fakeRequest) {
	c.log = append(c.log, r.op+r.channel)
	c.unanswered--
	e := Event{Kind: Answer, Channel: r.channel}
	switch {
	case r.op == "+" && c.s.refuses[r.channel]:
		e = Event{Kind: Refusal, Err: errNoPerm}
	case r.op == "+":
		c.on[r.channel] = true
	case r.op == "-":
		delete(c.on, r.channel)
	}
	if !c.s.loses[r.channel] || e.Kind == Refusal {
		c.events <- e
	}
}

func (c *fakeConn) Receive() (Event, error) {
	select {
	case e := <-c.events:
		if e.Kind == 0 {
			panic("garbage")
		}
		return e, nil
	case <-c.closed:
		c.s.mu.Lock()
		defer c.s.mu.Unlock()
		if c.cut != nil {
			return Event{}, c.cut
		}
		return Event{}, errClosed
	}
}

func (c *fakeConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

// publish sends a message to every subscribed connection, and returns their number.
func (s *server) publish(channel, payload string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		if c.on[channel] && !c.isClosed() {
			c.events <- Event{Kind: Message, Channel: channel, Payload: payload}
			n++
		}
	}
	return n
}

func (c *fakeConn) isClosed() bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

// cut breaks the present connection.
func (s *server) cut() {
	s.mu.Lock()
	c := s.conns[len(s.conns)-1]
	c.cut = errBroken
	s.mu.Unlock()
	c.Close()
}

func (s *server) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// log returns the requests on the present connection.
func (s *server) log() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.conns[len(s.conns)-1].log)
}

func (s *server) dialed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dials
}

func (s *server) open() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		if !c.isClosed() {
			n++
		}
	}
	return n
}

// listener records the calls of its methods.
type listener struct {
	mu       sync.Mutex
	messages []string
	missed   int
	told     time.Time // of the last miss
}

func (l *listener) Message(payload string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.messages = append(l.messages, payload)
}

func (l *listener) Missed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.missed++
	l.told = time.Now()
}

// take returns the calls since its last call.
func (l *listener) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	heard := fmt.Sprintf("%v missed %d", l.messages, l.missed)
	l.messages, l.missed = nil, 0
	return heard
}

// play runs a test on a server and a hub, and fails it if anything is left afterwards: a goroutine
// or timer, which synctest detects, or an entry.
func play(t *testing.T, f func(t *testing.T, s *server, h *Hub)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &server{refuses: make(map[string]bool)}
		h := New(s.dial, timeout)
		defer isOver(t, s, h) // also after a failure, for synctest
		f(t, s, h)
	})
}

func isOver(t *testing.T, s *server, h *Hub) {
	h.mu.Lock()
	var subs []*Subscription
	for _, c := range h.channels.m {
		subs = append(subs, c.subs...)
	}
	h.mu.Unlock()
	for _, sub := range subs {
		sub.Close()
	}
	time.Sleep(defaultLinger + 5*time.Second)
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.session != nil || h.users != 0 || len(h.channels.m)+len(h.idle.m)+len(h.pending.m)+len(h.refused.m) > 0 {
		t.Errorf("something is left: %d channels", len(h.channels.m))
	}
	if h.missed.queue != nil || h.missed.active {
		t.Error("wake-ups are left")
	}
	if n := s.open(); n != 0 {
		t.Errorf("%d connections are left", n)
	}
}

// settled fails the test unless the first attempt is over, with that error.
func settled(t *testing.T, sub *Subscription, want error) {
	t.Helper()
	select {
	case <-sub.Done():
	default:
		t.Fatal("the first attempt is not over")
	}
	if got := sub.Err(); !errors.Is(got, want) {
		t.Fatalf("Err = %v, want %v", got, want)
	}
}

func unsettled(t *testing.T, sub *Subscription) {
	t.Helper()
	select {
	case <-sub.Done():
		t.Fatalf("the first attempt is over: %v", sub.Err())
	default:
	}
}

// hears fails the test unless those are the listener's calls since the last time.
func hears(t *testing.T, l *listener, want string) {
	t.Helper()
	synctest.Wait()
	if got := l.take(); got != want {
		t.Fatalf("heard %q, want %q", got, want)
	}
}

func equal[T comparable](t *testing.T, got, want T, what string) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: %v, want %v", what, got, want)
	}
}
