package pubsub

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/pprof"
	"time"
)

const (
	dialLimit = 30 * time.Second // for clients that have no timeout of their own
	firstRest = 25 * time.Millisecond
	joinRest  = 100 * time.Millisecond // after that a Join cuts the pause short
	longRest  = 2 * time.Second
)

// session is the time during which a hub is used: from the first Join until a while after the last
// Close. One goroutine, run, dials and writes; while there is a connection, another one receives; a
// timer checks the deadlines, so that a dial or a write that hangs delays nothing else.
type session struct {
	ctx    context.Context
	cancel context.CancelFunc
	kick   chan struct{} // there is something to do
	timer  *time.Timer
	looked time.Time // when the deadlines were checked last
	link   *link     // nil while there is no connection
}

func (h *Hub) startLocked() {
	s := &session{kick: make(chan struct{}, 1), looked: time.Now()}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	h.session = s
	s.timer = time.AfterFunc(h.tick(), func() { h.check(s) })
	go h.run(s)
}

// endLocked ends the session. The session of the next Join takes up the subscriptions that remain.
func (h *Hub) endLocked() {
	h.session.cancel()
	h.session.timer.Stop()
	h.session = nil
	for _, c := range h.channels.m {
		c.reset()
		h.forgetLocked(c)
	}
	for sub := range h.pending.m {
		sub.settleLocked(h.err)
	}
}

// forgetLocked drops a channel that has no listener and is not subscribed to.
func (h *Hub) forgetLocked(c *channel) {
	if len(c.subs) > 0 {
		return
	}
	c.wanted = false
	h.idle.delete(c)
	if present, _ := h.channels.get(c.name); present == c {
		h.channels.delete(c.name)
	}
}

func (s *session) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// run keeps the hub connected.
func (h *Hub) run(s *session) {
	pprof.SetGoroutineLabels(context.Background()) // it is not the work of the first caller
	rest := time.Duration(0)
	for {
		first := h.first(s)
		if first == nil {
			return
		}
		start := time.Now()
		connected, err := h.connect(s, first)
		if h.disconnected(s, connected, err) {
			return
		}
		if time.Since(start) > time.Second {
			rest = 0
		}
		rest = min(max(2*rest, firstRest), longRest)
		h.rest(s, rest/2+rand.N(rest/2))
	}
}

// first returns the channel to begin with, preferably one whose first attempt is under way. It
// returns nil if the session is over, and ends it if there is no subscription.
func (h *Hub) first(s *session) *channel {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.session != s {
		return nil
	}
	for sub := range h.pending.m {
		return sub.channel
	}
	for _, c := range h.channels.m {
		if len(c.subs) > 0 {
			return c
		}
	}
	h.endLocked()
	return nil
}

// rest pauses after a failure. A Join cuts it short.
func (h *Hub) rest(s *session, d time.Duration) {
	least := min(d, joinRest)
	timer := time.NewTimer(least)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.ctx.Done():
		return
	}
	timer.Reset(d - least)
	for {
		h.mu.Lock()
		waiting := len(h.pending.m) > 0
		h.mu.Unlock()
		if waiting {
			return
		}
		select {
		case <-s.kick:
		case <-timer.C:
			return
		case <-s.ctx.Done():
			return
		}
	}
}

// connect serves one connection until it breaks or the session is over, and returns the reason. It
// reports whether there was a connection.
func (h *Hub) connect(s *session, first *channel) (connected bool, err error) {
	var conn Conn
	if err := protect(func() (err error) {
		ctx, cancel := context.WithTimeout(s.ctx, dialLimit)
		defer cancel()
		conn, err = h.dial(ctx, first.name)
		return err
	}); err != nil {
		return false, err
	}
	l := &link{hub: h, session: s, conn: conn}
	h.begin(s, l, first)
	requests := l.next(nil) // before what Dial has sent can be answered
	lost := make(chan error, 1)
	go func() { lost <- protect(l.receive) }()
	err = protect(func() error { return l.write(requests, lost) })
	conn.Close()
	<-lost
	return true, err
}

// begin makes l the present connection, with everything to be subscribed to.
func (h *Hub) begin(s *session, l *link, first *channel) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.session != s {
		return
	}
	s.link, l.heard, h.err = l, time.Now(), nil
	if c, ok := h.channels.get(first.name); ok {
		first = c
	} else { // it was given up meanwhile, but Dial may have subscribed to it
		h.channels.set(first.name, first)
	}
	first.wanted = true
	h.enqueueLocked(first)
	for _, c := range h.channels.m {
		h.enqueueLocked(c)
	}
	if len(first.subs) == 0 {
		h.idleLocked(first)
	}
}

// disconnected records why there is no connection, and reports whether the session is over. A
// first attempt during which a connection broke gets a second chance, since the break may be
// older than the attempt; a failed dial settles it. Live subscriptions miss messages from now on:
// Missed is called now, and again when they are live again, since only a look after that is
// certain to see everything.
func (h *Hub) disconnected(s *session, connected bool, err error) (over bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.session != s {
		return true
	}
	if l := s.link; l != nil && l.cause != nil {
		err = l.cause
	}
	if connected {
		err = fmt.Errorf("connection lost: %w", err)
	}
	s.link, h.err = nil, err
	closed := errors.Is(err, ErrClosed)
	for _, c := range h.channels.m {
		if c.live {
			for _, sub := range c.subs {
				sub.missedLocked()
			}
		}
		c.reset()
		h.forgetLocked(c)
	}
	h.refused.clear()
	for sub := range h.pending.m {
		if connected && !sub.tried && !closed {
			sub.tried = true
			continue
		}
		sub.settleLocked(err)
	}
	if closed {
		h.endLocked()
	}
	return closed
}

func (c *channel) reset() {
	c.queued, c.asked, c.unanswered, c.live, c.err = false, false, 0, false, nil
}

// tick returns the time between two checks of the deadlines.
func (h *Hub) tick() time.Duration { return min(time.Second, max(h.timeout/2, 10*time.Millisecond)) }

// check checks the deadlines.
func (h *Hub) check(s *session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.session != s {
		return
	}
	now := time.Now()
	if h.users == 0 && (now.Sub(h.unused) >= h.linger || impatient.Load()) {
		h.endLocked()
		return
	}
	for c := range h.idle.m {
		if now.Sub(c.since) >= channelLinger {
			h.sweepLocked(c)
		}
	}
	// A process that was stopped or starved has not yet read what may have arrived meanwhile.
	awake := now.Sub(s.looked) < h.tick()+h.timeout/2
	s.looked = now
	for sub := range h.pending.m {
		if awake && now.Sub(sub.joined) >= h.timeout {
			sub.settleLocked(h.noAnswer("a request to subscribe"))
		}
	}
	if awake && s.link != nil {
		s.link.checkLocked(now)
	}
	s.timer.Reset(h.tick())
}

// sweepLocked gives up a channel that has no listener.
func (h *Hub) sweepLocked(c *channel) {
	h.idle.delete(c)
	if c.wanted = false; h.session != nil {
		h.enqueueLocked(c)
	}
}

// protect turns a panic into an error: client libraries panic on replies that no server should
// send.
func protect(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the client panicked: %v", p)
		}
	}()
	return f()
}
