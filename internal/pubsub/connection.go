package pubsub

import (
	"fmt"
	"slices"
	"time"
)

// link is one connection. Its fields are guarded by the hub's lock.
type link struct {
	hub     *Hub
	session *session
	conn    Conn

	queue []*channel // that may need a request
	ping  bool       // a ping is to be sent
	sent  []request  // not answered yet, in order
	heard time.Time  // when something last came
	moved time.Time  // when an answer last came: a slow server that answers steadily is not dead
	asked time.Time  // when the refused channels were last asked for again
	cause error      // why the hub closed the connection
}

type request struct {
	channel   *channel // nil for a ping
	subscribe bool
	at        time.Time
}

func (r request) name() string {
	if r.channel == nil {
		return ""
	}
	return r.channel.name
}

// enqueueLocked puts a channel in the connection's queue. Without a connection there is nothing to
// do: the next one begins with all channels.
func (h *Hub) enqueueLocked(c *channel) {
	if l := h.session.link; l == nil {
		if len(c.subs) == 0 {
			h.forgetLocked(c)
		}
	} else if !c.queued && (c.wanted != c.asked || !c.wanted) {
		c.queued = true
		l.queue = append(l.queue, c)
		h.session.wake()
	}
}

// write sends these requests and all later ones, until the connection is lost or the session is
// over.
func (l *link) write(requests []request, lost chan error) error {
	for ; ; requests = l.next(requests[:0]) {
		if err := l.send(requests); err != nil {
			return err
		}
		if len(requests) > 0 {
			continue
		}
		select {
		case err := <-lost:
			lost <- err
			return err
		case <-l.session.kick:
		case <-l.session.ctx.Done():
			return l.session.ctx.Err()
		}
	}
}

func (l *link) send(requests []request) (err error) {
	if len(requests) == 0 {
		return nil
	}
	defer time.AfterFunc(l.hub.timeout+time.Second, l.hung).Stop() // many small writes may take a while
	for _, r := range requests {
		switch {
		case r.channel == nil:
			err = l.conn.Ping()
		case r.subscribe:
			err = l.conn.Subscribe(r.channel.name)
		default:
			err = l.conn.Unsubscribe(r.channel.name)
		}
		if err != nil {
			return err
		}
	}
	return l.conn.Flush()
}

// hung ends a connection on which a write hangs.
func (l *link) hung() {
	l.hub.mu.Lock()
	l.cause = l.hub.noAnswer("a write")
	l.hub.mu.Unlock()
	l.conn.Close()
}

// next takes requests from the queue, as many as the window has room for, and counts them as sent.
func (l *link) next(requests []request) []request {
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	add := func(r request) {
		requests = append(requests, r)
		l.sent = append(l.sent, r)
	}
	if l.ping {
		l.ping = false
		add(request{at: now})
	}
	taken := 0
	for ; taken < len(l.queue) && len(l.sent) < window; taken++ {
		c := l.queue[taken]
		c.queued = false
		switch {
		case c.wanted != c.asked:
			c.asked = c.wanted
			c.live = false
			c.unanswered++
			add(request{c, c.wanted, now})
		case !c.wanted && c.unanswered == 0:
			h.forgetLocked(c)
		}
	}
	if l.queue = l.queue[taken:]; len(l.queue) == 0 {
		l.queue = nil // also frees what a peak has left
	}
	return requests
}

// receive handles events until the connection is lost.
func (l *link) receive() error {
	var told []*Subscription
	for {
		event, err := l.conn.Receive()
		if err != nil {
			return err
		}
		if told, err = l.took(event, told[:0]); err != nil {
			return err
		}
		for _, sub := range told {
			sub.listener.Message(event.Payload)
		}
		if clear(told); cap(told) > 1024 {
			told = nil
		}
	}
}

// took handles an event. It returns the subscriptions that a message is for.
func (l *link) took(e Event, told []*Subscription) ([]*Subscription, error) {
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	l.heard = time.Now()
	if h.session != l.session || h.session.link != l {
		return told, nil
	}
	if e.Kind == Message {
		if c, ok := h.channels.get(e.Channel); ok {
			told = append(told, c.subs...)
		}
		return told, nil
	}
	l.moved = time.Now()
	n := 0 // the request that it answers
	if e.Kind == Answer {
		n = slices.IndexFunc(l.sent, func(r request) bool { return r.name() == e.Channel })
	}
	if n < 0 || n >= len(l.sent) {
		return told, fmt.Errorf("an answer without a request: %q %v", e.Channel, e.Err)
	}
	for _, r := range l.sent[:n] { // the client lost their answers, but requests are carried out in order
		h.answeredLocked(r, Event{Kind: Answer})
	}
	h.answeredLocked(l.sent[n], e)
	if l.sent = l.sent[n+1:]; len(l.queue) > 0 && len(l.sent) <= window/2 {
		l.session.wake()
	}
	return told, nil
}

// answeredLocked handles the answer to a request, which counts if it was the last one for its
// channel.
func (h *Hub) answeredLocked(r request, e Event) {
	c := r.channel
	if c == nil {
		return
	}
	if c.unanswered--; c.unanswered > 0 {
		return
	}
	switch {
	case !r.subscribe && !c.wanted:
		h.forgetLocked(c)
	case !r.subscribe: // it is queued, to be subscribed to again
	case e.Kind == Refusal:
		c.asked, c.err = false, e.Err
		for _, sub := range c.subs {
			sub.settleLocked(e.Err)
		}
		if len(c.subs) > 0 {
			h.refused.set(c, struct{}{})
		} else {
			h.forgetLocked(c)
		}
	default:
		c.live = true
		for _, sub := range c.subs {
			if sub.settled { // by an earlier connection, or an error
				sub.missedLocked()
			} else {
				sub.settleLocked(nil)
			}
		}
	}
}

// checkLocked ends a connection that is silent, or pings it. It requests refused channels again, as
// rights may change.
func (l *link) checkLocked(now time.Time) {
	h := l.hub
	switch {
	case len(l.sent) > 0 && now.Sub(l.sent[0].at) > h.timeout && now.Sub(l.moved) > h.timeout:
		if l.cause == nil {
			l.cause = h.noAnswer("a request to subscribe, or to a ping")
			go l.conn.Close() // it may wait for a write
		}
	case len(l.sent) == 0 && len(l.queue) == 0 && now.Sub(l.heard) >= quiet:
		l.ping = true
		l.session.wake()
	}
	if now.Sub(l.asked) >= quiet {
		l.asked = now
		for c := range h.refused.m {
			h.refused.delete(c)
			h.enqueueLocked(c)
		}
	}
}
